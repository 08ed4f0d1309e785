"""Write docs/reference/errors.md from the policy in the code: run this (`make errors-page`) after changing a rule."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pgonce.model.policylines import IN_DOUBT_ALWAYS, MEANINGS, UNKNOWN_IN_WORDS, Line, all_lines

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"

HEAD = """\
# Errors of the server

What each error means for a run, and what to do about it. This page is written by `make errors-page` from the policy in
the code, [model/policy.py](../../src/pgonce/model/policy.py); [`pgonce errors`](cli.md#pgonce-errors) prints the same,
and one code in words: `pgonce errors 40001`.

What decides is, in this order, how far the transaction had come, the severity of the error, and its SQLSTATE.

1. After COMMIT was answered nothing can undo the success.
2. Before there is a connection nothing was sent: it is tried until the deadline, unless the server refused by name.
3. {in_doubt}
4. From BEGIN to the last statement COMMIT was not sent, so nothing was applied.

"""

VERDICTS = """\
## Verdicts

| verdict | meaning |
|---|---|
"""

TABLE = """\
## The policy

*Connecting* holds while there is no connection, *before COMMIT* from then until COMMIT is sent, *at COMMIT* where
COMMIT was answered with an ERROR. A dash: another line holds there. *Tried again*: how often the whole transaction is,
*within the attempts* of `--attempts`, or *until the deadline* of `--chunk-deadline`, whichever ends first. *Attempt*: a
try uses one up; of *this start*: it counts here, but not against the event's budget over all starts, as no crash does.
A code of two characters stands for every code of that class that has no line of its own; *none* is what the driver
tells without a SQLSTATE.

| code | what, and when | connecting | before COMMIT | at COMMIT | tried again | attempt | what to do |
|---|---|---|---|---|---|---|---|
"""

TAIL = """
An error that no line names: {unknown}
"""


def text() -> str:
    """Make the page."""
    verdicts = "".join(f"| {verdict} | {words} |\n" for verdict, words in MEANINGS.items())
    rows = "".join(_row(_cells(line)) for line in all_lines())
    head = HEAD.replace("{in_doubt}", _wrapped(IN_DOUBT_ALWAYS, indent="   "))
    tail = TAIL.replace("{unknown}", _wrapped(UNKNOWN_IN_WORDS, first=len("An error that no line names: ")))
    return f"{head}{VERDICTS}{verdicts}\n{TABLE}{rows}{tail}"


def _cells(line: Line) -> Iterable[str]:
    verdicts = (verdict or "-" for verdict in (line.connecting, line.before_commit, line.at_commit))
    name = f"{line.name}, {line.circumstance}" if line.circumstance not in ("", line.name) else line.name
    code = f"`{line.code}`" if line.code.upper() == line.code else line.code
    return (code, name, *verdicts, line.tried_again, line.attempt, line.remedy)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _wrapped(words: str, *, indent: str = "", first: int = 0) -> str:
    """Break a text at 120 characters, as the pages are; its first line begins after ``first`` characters."""
    lines, length = [""], max(first, len(indent))
    for word in words.split():
        if length + 1 + len(word) > 120:
            lines.append(indent)
            length = len(indent)
        lines[-1] += word if not lines[-1].strip() else f" {word}"
        length += len(word) + 1
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    PAGE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
