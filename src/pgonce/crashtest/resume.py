"""Keep what was tried in a file, one line a trial, so that a test that was stopped can go on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pgonce.crashtest.asjson import evidence_from, result_as_dict
from pgonce.crashtest.explore import Result, Trial
from pgonce.crashtest.verdict import Verdict
from pgonce.errors import ConfigurationError


class Ledger:
    """The results of earlier starts of the same test; without a file it remembers nothing."""

    def __init__(self, path: Path | None, argv: Sequence[str], *, made_of: str) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        if path is None:
            return
        head = {"pgonce_crashtest": 1, "command": list(argv), "made_of": made_of}
        try:
            if not path.exists() or path.stat().st_size == 0:
                path.write_text(json.dumps(head) + "\n", encoding="utf-8")
                return
            lines = path.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise ConfigurationError(f"cannot use {str(path)!r} to resume: {error.strerror}") from error
        found = _parsed(lines[0])
        if found != head:
            raise ConfigurationError(
                f"{str(path)!r} keeps the results of another command, or of another state, program or way to compare; "
                "remove it, or name another file"
            )
        for line in lines[1:]:
            entry = _parsed(line)
            if entry is not None:  # a line that was cut short by a kill is tried again
                self._known[f"{entry['point']} {entry['blow']}"] = entry

    def known(self, trial: Trial) -> Result | None:
        """Return what an earlier start found, if it tried this."""
        entry = self._known.get(f"{trial.met.point.id} {trial.blow.name}")
        if entry is None or entry["verdict"] == Verdict.UNREACHED.value:
            return None
        return Result(
            trial,
            Verdict(entry["verdict"]),
            entry["why"],
            evidence_from(entry),
            tuple(entry["exits"]),
            entry["output"],
            entry["took_s"],
            entry["own_s"],
            tuple(entry["notes"]),
        )

    def keep(self, result: Result) -> None:
        """Write a result down."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result_as_dict(result)) + "\n")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
