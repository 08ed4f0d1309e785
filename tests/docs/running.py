"""Run the blocks of a page, one after the other, where nothing names a database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from docs.pages import Block, Command, commands, shown

COMMAND_S_MAX = 200.0


def environment(folder: Path) -> dict[str, str]:
    """Give a page an environment in which nothing names a database, and the data folder lies beside it."""
    misleading = ("DATABASE_URL", "LAB_DIR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG") and name not in misleading}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = folder.parent / "home"
    return kept | {"PATH": path, "PGONCE_HOME": str(home), "NO_COLOR": "1", "PYTHONUTF8": "1"}


def execute(command: str, folder: Path, last_code: int) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does that saw ``last_code`` before it."""
    return subprocess.run(
        ["bash", "-c", f"(exit {last_code})\n{command}"],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )


def run_console(listed: list[Command], folder: Path, page: str) -> None:
    """Run commands one after the other. One that fails has to be followed by ``echo $?``, so that the page says so."""
    code = 0
    for number, command in enumerate(listed):
        done = execute(command.text, folder, code)
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        where = f"{page}, line {command.line}: $ {command.text}\n"
        follower = listed[number + 1].text if number + 1 < len(listed) else ""
        assert code == 0 or follower == "echo $?", f"{where}ended with {code}:\n{done.stdout}"
        if command.expected is not None:
            assert shown(command.expected, done.stdout), f"{where}printed\n{done.stdout}\nand not\n{command.expected}"


def run_block(block: Block, folder: Path, page: str) -> None:
    if block.file_name is not None:
        (folder / block.file_name).write_text(block.text, encoding="utf-8")
    if not block.runnable:
        return
    if block.language == "python":
        script = folder / f"block_{block.line}.py"
        script.write_text(block.text, encoding="utf-8")
        run_console([Command(f"python {script.name}", None, block.line)], folder, page)
    else:
        run_console(commands(block), folder, page)
