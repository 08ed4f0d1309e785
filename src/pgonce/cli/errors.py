"""``pgonce errors``: what each error of the server means for a run, printed from the policy itself. No database."""

from __future__ import annotations

import json

import click

from pgonce.cli.exits import COMPLETE
from pgonce.cli.options import print_table
from pgonce.cli.streams import say
from pgonce.model.policy import UNKNOWN, Verdict
from pgonce.model.policylines import (
    IN_DOUBT_ALWAYS,
    MEANINGS,
    UNKNOWN_IN_WORDS,
    Line,
    all_lines,
    is_code,
    line_of,
    lines_for,
    may_be_unknown,
)

ATTEMPTS_IN_WORDS = {
    "yes": "a try uses one up, of this start and of the event's budget",
    "of this start": "a try uses up one of this start, none of the event's budget",
    "no": "a try uses none up",
}
TITLES = (
    *("code", "name", "circumstance", "connecting", "before COMMIT", "at COMMIT"),
    *("tried again", "uses an attempt", "what to do"),
)


def _checked(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    value = value and value.upper()
    if value is not None and not is_code(value):
        raise click.BadParameter(
            f"{value!r} is no SQLSTATE: write five digits or capital letters, like 40001, or two for a class, like 40"
        )
    return value


@click.command("errors")
@click.argument("sqlstate", required=False, callback=_checked)
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")
def errors(sqlstate: str | None, as_json: bool) -> int:
    """Show what each error means for a run, and what to do about it; SQLSTATE shows one code, or a class of two
    characters, in words.

    It needs no database.
    """
    lines = lines_for(sqlstate) if sqlstate else all_lines()
    if as_json:
        rules = [line.as_dict() for line in lines if line.code != line_of(UNKNOWN).code]
        told = {"version": 1, "sqlstate": sqlstate, "rules": rules, "unknown": line_of(UNKNOWN).as_dict()}
        click.echo(json.dumps(told))
    elif sqlstate is None:
        print_table(TITLES, (_cells(line) for line in lines))
        say(IN_DOUBT_ALWAYS)
    else:
        click.echo("\n\n".join(_in_words(sqlstate, lines)))
    return COMPLETE


def _cells(line: Line) -> tuple[str, ...]:
    verdicts = (verdict or "-" for verdict in (line.connecting, line.before_commit, line.at_commit))
    return (line.code, line.name, line.circumstance, *verdicts, line.tried_again, line.attempt, line.remedy)


def _in_words(code: str, lines: list[Line]) -> list[str]:
    told = [_rule_in_words(line) for line in lines]
    if may_be_unknown(code):
        another = f"Another error of class {code}" if len(code) == 2 else f"{code} in any other circumstance"
        told.append(f"{another if lines else code}: {UNKNOWN_IN_WORDS}")
    return [*told, IN_DOUBT_ALWAYS]


def _rule_in_words(line: Line) -> str:
    where = f", {line.circumstance}" if line.circumstance else ""
    phases = (("connecting", line.connecting), ("before COMMIT", line.before_commit), ("at COMMIT", line.at_commit))
    facts = [(name, f"{verdict}: {MEANINGS[Verdict(verdict)]}") for name, verdict in phases if verdict is not None]
    facts += [
        ("tried again", line.tried_again + (", on a new connection" if line.fresh_connection else "")),
        ("attempts", ATTEMPTS_IN_WORDS[line.attempt]),
        ("what to do", line.remedy),
    ]
    code = f"class {line.code}:" if len(line.code) == 2 else line.code
    return "\n".join([f"{code} {line.name}{where}", *(f"  {name:<13}  {text}" for name, text in facts)])
