"""The programs of the zoo, right and wrong, under `pgonce crashtest`: for each fault the worst verdict is the expected.

Minutes a program, so only where asked for: ``pytest -m campaign tests/crashtest/test_zoo.py -k NAME``.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pgonce.crashtest.baseline import Rules
from pgonce.crashtest.conduct import Plan, conduct
from pgonce.crashtest.lane import Command

ZOO = Path(__file__).parents[1] / "zoo"

# On a busy machine a program takes a multiple of the time that its keeper allows it.
PATIENCE = 4


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(file.parent.name for file in ZOO.glob("*/zoo.toml")))
def test_a_program_of_the_zoo_gets_its_verdicts(name: str, folder: Path, tmp_path: Path) -> None:
    """No false SAFE and no false alarm, with an injected fault and by a plain second run."""
    told = tomllib.loads((ZOO / name / "zoo.toml").read_text(encoding="utf-8"))
    for need in told.get("needs", ()):
        if not _is_there(need):
            pytest.skip(f"{need} is not there")
    left_out = shutil.ignore_patterns("zoo.toml", "__pycache__")
    shutil.copytree(ZOO / name, folder, ignore=left_out, dirs_exist_ok=True)
    limit_s = told.get("time_limit_s")
    report = conduct(
        Plan(
            command=Command(argv=_argv(told["command"]), folder=folder),
            setup=tuple(_setup(told, folder, tmp_path)),
            rules=Rules(ignore=frozenset(told.get("ignore", ())), log_tables=frozenset(told.get("log_tables", ()))),
            limit_s=limit_s * PATIENCE if limit_s else None,
        ),
        tell=lambda _: None,
        on_result=lambda *_: None,
    )
    found = {fault.value: verdict.value for fault in report.faults if (verdict := report.worst_of(fault))}
    assert found == {fault: verdict for fault, verdict in told["expect"].items() if fault != "point"}
    assert report.baseline.again[0].value == told["rerun"]


def _argv(command: list[str]) -> tuple[str, ...]:
    ours = {"python": [sys.executable], "pgonce": [sys.executable, "-m", "pgonce"]}
    return (*ours.get(command[0], [command[0]]), *command[1:])


def _setup(told: dict[str, Any], folder: Path, tmp_path: Path) -> list[Path]:
    scripts = []
    if "before_setup" in told:
        made = subprocess.run(_argv(told["before_setup"]), cwd=folder, capture_output=True, text=True, check=True)
        (tmp_path / "before.sql").write_text(made.stdout, encoding="utf-8")
        scripts.append(tmp_path / "before.sql")
    return [*scripts, folder / told["setup"]] if "setup" in told else scripts


def _is_there(need: str) -> bool:
    kind, _, what = need.partition(":")
    if kind == "python":
        return importlib.util.find_spec(what) is not None
    if kind == "program":
        return shutil.which(what) is not None
    if kind == "npm":
        modules = ZOO.parents[1] / ".make" / "zoo" / "node_modules" / what
        return shutil.which("node") is not None and modules.exists()
    return (Path("/usr/include") / what).exists()
