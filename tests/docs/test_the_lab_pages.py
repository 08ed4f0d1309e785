"""The tutorials of the lab: their commands are there, their step by step does what is shown, both languages agree.

The blocks of the English page that say ``runnable`` are run with those of all pages. Those that say ``lab`` need one
lab that stays up, and two terminals between them; they are run here. A block ``text terminal=A`` is what one sees in
terminal A: ``$ `` before lines of the shell, the prompt of psql before statements. A statement at the end of a block
without an answer waits: the answer stands where the next block of its terminal begins.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import psycopg
import pytest

from docs.pages import ROOT, Block, blocks, commands, shown
from docs.running import environment, execute, run_block, run_console
from pgonce.cli.lab import lab
from pgonce.lab import SCENARIOS
from server.processes import until

pytestmark = pytest.mark.xdist_group("lab")

TUTORIAL = ROOT / "docs" / "tutorial"
ENGLISH, VIETNAMESE = TUTORIAL / "the-lab.md", TUTORIAL / "the-lab.vi.md"
PAGES = [ENGLISH, VIETNAMESE, ROOT / "README.md", ROOT / "docs" / "reference" / "cli.md"]

_CALL = re.compile(r"pgonce (lab [a-z][^`\n>;|]*)")
_PROMPT = re.compile(r"postgres([=-])\*?# (.*)")
_END = "end-of-answer"


def listed_blocks(page: Path) -> list[Block]:
    return list(blocks(page.read_text(encoding="utf-8")))


def lines_of(page: Path, command: str) -> list[str]:
    """Return the output that a page shows a command with."""
    consoles = (block for block in listed_blocks(page) if block.language == "console")
    [output] = [one.expected or "" for block in consoles for one in commands(block) if one.text == command]
    return output.splitlines()


def by_name(lines: list[str]) -> dict[str, list[str]]:
    """Sort the lines of scenarios by name; what the experiment prints has no name before it."""
    names = {scenario.name for scenario in SCENARIOS}
    found: dict[str, list[str]] = {}
    for line in lines:
        name = line.partition(":")[0].removesuffix(" (wrong)")
        if line != "..." and name != "pgonce":
            found.setdefault(name if name in names else "experiment", []).append(line)
    return found


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as it is typed, and the answer it is shown with; None if it is still waiting for one."""

    text: str
    answer: str | None


def dialogue(text: str) -> tuple[list[str], str, list[Statement]]:
    """Take a terminal's block apart: lines for the shell, the answer it begins with, statements."""
    shell, begin, typed = list[str](), "", list[tuple[str, str]]()
    for line in text.splitlines():
        if found := _PROMPT.fullmatch(line):
            if found[1] == "-":
                typed[-1] = (f"{typed[-1][0]}\n{found[2]}", "")
            else:
                typed.append((found[2], ""))
        elif line.startswith("$ "):
            shell.append(line[2:])
        elif typed:
            typed[-1] = (typed[-1][0], f"{typed[-1][1]}{line}\n")
        else:
            begin += f"{line}\n"
    return shell, begin, [Statement(text, answer or None) for text, answer in typed]


class Terminal:
    """A psql that is started and typed into as the page says."""

    def __init__(self, shell: list[str], folder: Path) -> None:
        self.waiting = False
        self.popen = subprocess.Popen(
            ["bash", "-c", "\n".join(shell)],
            cwd=folder,
            env=environment(folder) | {"HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def type(self, text: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{text}\n" if text == "\\q" else f"{text}\n\\! echo {_END}\n")
        self.popen.stdin.flush()

    def answer(self) -> str:
        assert self.popen.stdout is not None
        lines = []
        for line in self.popen.stdout:
            if line.rstrip() == _END:
                break
            lines.append(line)
        return "".join(lines)

    def close(self) -> None:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.wait(timeout=30)
        self.popen.stdout.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to follow the page in; a lab that is up there at the end is cleaned."""
    monkeypatch.delenv("LAB_DIR", raising=False)
    desk = tmp_path / "page"
    desk.mkdir()
    yield desk
    execute("pgonce lab clean", desk, 0)


def _waits(folder: Path) -> Callable[[], bool]:
    """Make a question to the lab's server: is anybody blocked by somebody?"""
    lab_dir = execute('. ./lab.env; printf %s "$LAB_DIR"', folder, 0).stdout

    def ask() -> bool:
        with psycopg.connect(host=lab_dir, user="lab", dbname="postgres") as connection:
            blocked = "select count(*) from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"
            return connection.execute(blocked).fetchone() == (1,)

    return ask


def _act(terminal: Terminal, begin: str, statements: list[Statement], waits: Callable[[], bool], where: str) -> None:
    assert terminal.waiting is bool(begin), f"{where}: an answer comes only to a statement that waits"
    if begin:
        said = terminal.answer()
        assert shown(begin, said), f"{where}: at last it answered\n{said}"
        terminal.waiting = False
    for statement in statements:
        terminal.type(statement.text)
        if statement.text == "\\q":
            terminal.close()
        elif statement.answer is None:
            assert statement is statements[-1], f"{where}: {statement.text} has no answer"
            until(waits)
            terminal.waiting = True
        else:
            said = terminal.answer()
            assert shown(statement.answer, said), f"{where}: {statement.text} answered\n{said}"


@pytest.mark.timeout(300)
def test_the_step_by_step_does_what_it_shows(folder: Path) -> None:
    """Every block for a lab that stays up, and every line in both terminals, in the order of the page."""
    terminals: dict[str, Terminal] = {}
    with ExitStack() as open_terminals:
        for block in listed_blocks(ENGLISH):
            where = f"the-lab.md, line {block.line}"
            if block.file_name is not None:
                run_block(block, folder, where)
            elif "lab" in block.words:
                run_console(commands(block), folder, where)
            elif name := next((word for word in block.words if word.startswith("terminal=")), None):
                shell, begin, statements = dialogue(block.text)
                if shell:
                    terminals[name] = Terminal(shell, folder)
                    open_terminals.callback(terminals[name].close)
                _act(terminals[name], begin, statements, _waits(folder), where)
    assert len(terminals) == 2
    assert all(terminal.popen.returncode == 0 for terminal in terminals.values())
    assert not (folder / "lab.env").exists()


def test_both_languages_show_the_same() -> None:
    """Each block of the Vietnamese page is that of the English one; being the same, it is run only once."""
    english, vietnamese = listed_blocks(ENGLISH), listed_blocks(VIETNAMESE)
    assert [(block.language, block.text) for block in vietnamese] == [(block.language, block.text) for block in english]
    assert not any(block.runnable for block in vietnamese)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_call_of_the_lab_is_one(page: Path) -> None:
    """A command in a block or in a sentence of a page has the subcommand, the options and the scenarios it says."""
    calls = _CALL.findall(page.read_text(encoding="utf-8"))
    assert calls
    for call in calls:
        _, name, *arguments = shlex.split(call)
        command = lab.commands.get(name)
        assert command is not None, f"{page.name}: there is no pgonce {call}"
        if "[" not in call:
            context = command.make_context(name, list(arguments))
            unknown = {*context.params.get("names", ())} - {scenario.name for scenario in SCENARIOS}
            assert not unknown, f"{page.name}: there is no scenario {unknown}"


@pytest.mark.parametrize("page", [ENGLISH, VIETNAMESE], ids=lambda page: page.name)
def test_every_scenario_is_explained(page: Path) -> None:
    """A scenario's lines are shown, right and wrong, and a paragraph for each says why."""
    text = page.read_text(encoding="utf-8")
    right, wrong = lines_of(page, "pgonce lab run"), lines_of(page, "pgonce lab run --wrong")
    assert list(by_name(right)) == [scenario.name for scenario in SCENARIOS]
    assert list(by_name(wrong)) == [scenario.name for scenario in SCENARIOS if scenario.wrong is not None]
    for name in by_name(wrong):
        assert text.count(f"\n**{name}.** ") == 2, f"{page.name}: {name} is explained once as right, once as wrong"
    for line in by_name(right)["experiment"]:
        assert f"`{line}`:" in text or f"`{line.partition(':')[0]}: ...`:" in text, f"{page.name}: {line}"


def test_the_readme_shows_lines_of_the_tutorial() -> None:
    """What is run there need not be run twice."""
    readme = by_name(lines_of(ROOT / "README.md", "pgonce lab run"))
    tutorial = by_name(lines_of(ENGLISH, "pgonce lab run"))
    assert readme
    assert all(set(lines) <= set(tutorial[name]) for name, lines in readme.items())


def test_a_wrong_dialogue_is_found() -> None:
    """A terminal's block is read as it is meant: lines for the shell, an answer first, several lines, and no answer."""
    assert dialogue("$ psql\npostgres=# begin;\nBEGIN\npostgres=*# select\npostgres-*# 1;\n") == (
        ["psql"],
        "",
        [Statement("begin;", "BEGIN\n"), Statement("select\n1;", None)],
    )
    assert dialogue(" late\npostgres=*# \\q\n") == ([], " late\n", [Statement("\\q", None)])
    with pytest.raises(click.UsageError):
        lab.commands["run"].make_context("run", ["--wrongly"])
