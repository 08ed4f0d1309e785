"""Plant bugs in a copy of the source, one at a time, and require that the tests turn red: `make mutants`.

The bugs stand in mutants.txt. Each is a replacement of exact lines, so that a change of the source that moves it away
from its place is an error and not a bug that is never planted. Arguments choose mutants by a part of their name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = Path(__file__).with_suffix(".txt")

# The tests of one mutant take seconds; a mutant that makes one hang is caught by that, and must not stop the others.
MUTANT_S_MAX = 240.0

# A single test that hangs under a mutant fails after this.
TEST_S_MAX = 60


@dataclass(frozen=True, slots=True)
class Edit:
    """A piece of a file under ``src/pgonce`` that stands there once, and what is put in its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug, and the tests of which at least one has to fail under it."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def read_mutants() -> list[Mutant]:
    """Read the mutants of mutants.txt; its own first lines say how they are written."""
    return [_mutant(block) for block in MUTANTS.read_text().split("\n=== ")[1:]]


def _mutant(block: str) -> Mutant:
    head, *pieces = re.split(r"^--- ", block.rstrip("\n") + "\n", flags=re.MULTILINE)
    name, *tests = head.splitlines()
    edits = []
    for piece in pieces:
        taken, new = re.split(r"^\+\+\+\n", piece, flags=re.MULTILINE)
        file, old = taken.split("\n", 1)
        edits.append(Edit(file, old, new))
    return Mutant(name, tuple(edits), tuple(test.removeprefix("test ") for test in tests))


class NotPlanted(Exception):
    """The text of an edit does not stand in its file exactly once: the mutant has to follow the source."""


def plant(mutant: Mutant, package: Path) -> None:
    """Carry out the edits of a mutant in a copy of the package. Raises NotPlanted."""
    for edit in mutant.edits:
        path = package / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise NotPlanted(f"{edit.file} holds this text {text.count(edit.old)} times:\n{edit.old}")
        path.write_text(text.replace(edit.old, edit.new))


def run_tests(source: Path, tests: tuple[str, ...], limit_s: float) -> tuple[int | None, str]:
    """Run tests against a copy of the source; return pytest's exit code (None: it hung) and its output."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    where = "import pgonce, sys; sys.exit(not pgonce.__file__.startswith(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", where, str(source)], env=environment, cwd=ROOT, check=True)
    options = ("-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_S_MAX}", "--color=no", "--tb=line")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        return None if (output := _output(process, limit_s)) is None else process.returncode, output or ""
    finally:
        process.kill()
        process.wait()


def _output(process: subprocess.Popen[str], limit_s: float) -> str | None:
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        return None


def try_out(mutant: Mutant, folder: Path) -> str:
    """Run the tests of a mutant; return which test caught it, empty if none did."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        plant(mutant, source / "pgonce")
        code, output = run_tests(source, mutant.tests, MUTANT_S_MAX)
    finally:
        shutil.rmtree(source)
    if code is None:
        return f"hung for {MUTANT_S_MAX:.0f} s"
    failed = re.search(r"^FAILED \S+::(\S+)", output, re.MULTILINE)
    if code == 0:
        return ""
    if code != 1 or failed is None:
        raise RuntimeError(f"pytest ended with {code} and no failed test:\n{output[-3000:]}")
    return failed.group(1)


def main(names: list[str]) -> int:
    """Try the mutants; return 0 if every one was caught."""
    chosen = [mutant for mutant in read_mutants() if not names or any(name in mutant.name for name in names)]
    survived = []
    with tempfile.TemporaryDirectory(prefix="pgonce-mutants-") as folder:
        tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
        code, output = run_tests(ROOT / "src", tests, MUTANT_S_MAX * 2)
        if code != 0:
            print(f"these tests are red without any mutant:\n{output[-3000:]}")
            return 1
        print(f"{'mutant':<64}  {'seconds':>7}  caught by", flush=True)
        for mutant in chosen:
            began_s = time.monotonic()
            caught = try_out(mutant, Path(folder))
            print(f"{mutant.name:<64}  {time.monotonic() - began_s:7.1f}  {caught or 'NOTHING'}", flush=True)
            if not caught:
                survived.append(mutant.name)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mutants caught")
    return 1 if survived or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
