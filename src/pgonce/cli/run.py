"""``pgonce run`` and ``pgonce adopt``: thin callers of ``pgonce.api.run``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pgonce.api.run import carry_out, order
from pgonce.cli.options import Place, place_options, split_names
from pgonce.cli.progress import progress
from pgonce.cli.signals import stop_on_signals
from pgonce.cli.streams import silence
from pgonce.cli.summary import print_report
from pgonce.engine.run import Order
from pgonce.model.backoff import CAP_S, FIRST_S, read_backoff
from pgonce.model.limits import ATTEMPTS, CHECKPOINTS, CHUNK_ROWS, CHUNK_SECONDS, ON_ERROR, Limits
from pgonce.model.override import read_overrides
from pgonce.model.report import RunReport
from pgonce.sources import ReadingOptions
from pgonce.sources.options import COMPRESSIONS, FORMATS

Function = Callable[..., Any]


def _stack(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _types(_context: click.Context, _parameter: click.Parameter, value: str | None) -> dict[str, str]:
    pairs = [pair.split(":", 1) for pair in (value or "").split(",") if pair]
    if any(len(pair) != 2 for pair in pairs):
        raise click.BadParameter("write column:type, separated by commas")
    return {column.strip(): kind.strip() for column, kind in pairs}


definition_options = _stack(
    click.option(
        "--key", required=True, callback=split_names, help="Column, or columns in order, that identify an event."
    ),
    click.option("--amount", help="Column of the money: whole cents, unless --amount-scale."),
    click.option("--amount-scale", type=int, help="Decimal places of the amount; without it, amounts are whole cents."),
    click.option("--source-column", help="Column that names an event's source."),
    click.option(
        "--payload",
        callback=split_names,
        help="Columns to compare; all others are not. Default: all but key, source column, amount and --ignore.",
    ),
    click.option("--ignore", callback=split_names, help="Columns that change by themselves and are not compared."),
    click.option(
        "--types",
        callback=_types,
        metavar="COL:TYPE,...",
        help="Declared types: text, int, decimal, bool, date, timestamp, json.",
    ),
    click.option(
        "--effect",
        type=click.Path(dir_okay=False, path_type=Path),
        help="SQL that runs once a chunk and reads the relation chunk.",
    ),
    click.option(
        "--verify",
        type=click.Path(dir_okay=False, path_type=Path),
        help="SQL that must return no rows, in the same transaction.",
    ),
)

reading_options = _stack(
    click.option("--format", type=click.Choice(FORMATS), help="Default: by the file's name, else its content."),
    click.option("--compression", type=click.Choice(COMPRESSIONS), help="Default: by the first bytes."),
    click.option("--encoding", default="utf-8", show_default=True, help="Encoding of CSV and TSV."),
    click.option("--delimiter", help="One character. Default: comma, or tab for TSV."),
    click.option("--quotechar", default='"', show_default=True, help="One character; empty turns quoting off."),
    click.option("--no-header", is_flag=True, help="The first line is a row; name the columns with --columns."),
    click.option("--columns", callback=split_names, help="Column names of a file without a header."),
)

run_options = _stack(
    click.option("--job", required=True, help="Name of the job."),
    click.option("--source", default="", help="Source of every event of this input."),
    click.option(
        "--checkpoint",
        type=click.Choice(CHECKPOINTS),
        default="chunk",
        show_default=True,
        help="What one transaction holds.",
    ),
    click.option("--chunk-rows", type=int, default=CHUNK_ROWS, show_default=True, help="Most rows of a chunk."),
    click.option(
        "--chunk-seconds", type=float, default=CHUNK_SECONDS, show_default=True, help="Chunks are kept near this time."
    ),
    click.option(
        "--workers", type=int, default=1, show_default=True, help="Chunks at a time; the results are the same."
    ),
    click.option("--attempts", type=int, default=ATTEMPTS, show_default=True, help="Tries of one chunk."),
    click.option(
        "--chunk-deadline",
        type=float,
        help="Longest time for a chunk with all its tries, in seconds. [default: 60; a day for --checkpoint all]",
    ),
    click.option("--deadline", type=float, help="Longest time for this start, in seconds. Default: none."),
    click.option(
        "--retry-on",
        multiple=True,
        metavar="CODE[=N]",
        help="Try a chunk again, N times (1), for an error that is final otherwise: a SQLSTATE, or a constraint with "
        "its schema. Repeatable.",
    ),
    click.option(
        "--backoff",
        default=f"{FIRST_S:g},{CAP_S:g}",
        show_default=True,
        metavar="FIRST[,CAP]",
        help="Longest wait after the first try, and ever, in seconds; it doubles in between.",
    ),
    click.option(
        "--seed", type=int, help="Draw the waits between tries from this seed. For tests: workers must not share it."
    ),
    click.option(
        "--on-error", type=click.Choice(ON_ERROR), help="At a bad row. Default: quarantine; stop for --checkpoint all."
    ),
    click.option("--max-rejected", type=int, help="Stop before the bad row that exceeds this number."),
    click.option("--also", is_flag=True, help="Take content that was taken under another job, source or definition."),
    click.option("--take-over", is_flag=True, help="Take the run from an owner that is still connected."),
    click.option(
        "--wait", "wait_s", type=float, default=0.0, show_default=True, help="Seconds to wait for a live owner."
    ),
    click.option(
        "--redact",
        callback=split_names,
        help="Fields whose values the reason of a conflict does not tell. The row as it came is kept and can be shown.",
    ),
)

outcome_options = _stack(
    click.option(
        "--report",
        type=click.Path(path_type=str, allow_dash=True),
        help="After the last chunk, write a line of JSON per input row to this file (- is standard output).",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Do all of it, the effect too, in one transaction that is rolled back. Nothing is stored.",
    ),
)


@click.command("run")
@click.argument("input", type=click.Path(path_type=str))
@run_options
@definition_options
@reading_options
@outcome_options
@place_options
def run(**values: Any) -> int:
    """Apply every event of INPUT once (a file, or - for standard input)."""
    return _carry_out(kind="apply", **values)


@click.command("adopt")
@click.argument("input", type=click.Path(path_type=str))
@run_options
@definition_options
@reading_options
@outcome_options
@place_options
def adopt(**values: Any) -> int:
    """Register the events of INPUT as applied by an older program: completed, without an effect."""
    return _carry_out(kind="adopt", **values)


def reading_of(values: dict[str, Any]) -> ReadingOptions:
    """Take the reading options out of a command's values."""
    return ReadingOptions(
        format=values.pop("format"),
        compression=values.pop("compression"),
        encoding=values.pop("encoding"),
        delimiter=values.pop("delimiter"),
        quotechar=values.pop("quotechar") or None,
        header=not values.pop("no_header"),
        columns=values.pop("columns"),
    )


def order_of(values: dict[str, Any], *, kind: str) -> Order:
    """Take the order out of a command's values."""
    limits = Limits(
        checkpoint=values.pop("checkpoint"),
        chunk_rows=values.pop("chunk_rows"),
        chunk_seconds=values.pop("chunk_seconds"),
        attempts=values.pop("attempts"),
        chunk_deadline_s=values.pop("chunk_deadline"),
        deadline_s=values.pop("deadline"),
        on_error=values.pop("on_error"),
        max_rejected=values.pop("max_rejected"),
        retry_on=read_overrides(values.pop("retry_on")),
        backoff=read_backoff(values.pop("backoff")),
        seed=values.pop("seed"),
        workers=values.pop("workers"),
    )
    for name in ("ignore", "redact"):
        values[name] = values[name] or ()
    return order(kind=kind, limits=limits, **values)


def _carry_out(
    *,
    kind: str,
    place: Place,
    input: str,  # noqa: A002 - the word users say
    report: str | None,
    dry_run: bool,
    **values: Any,
) -> int:
    if report is not None and dry_run:
        raise click.UsageError("--dry-run stores nothing that --report could be made from; give one of them.")
    if report == "-" and place.as_json:
        raise click.UsageError("--json and --report - both write to standard output; give the report a file.")
    reading = reading_of(values)
    what = order_of(values, kind=kind)
    results: list[RunReport] = []
    try:
        with stop_on_signals() as interrupted, progress(place) as observer:
            carry_out(
                input,
                what,
                reading=reading,
                observer=observer,
                interrupted=interrupted,
                report=report,
                dry_run=dry_run,
                done=results.append,
                **place.where(),
            )
    finally:
        for result in results:
            _print(place, result, dry_run=dry_run, only_messages=report == "-")
    return results[0].exit_code


def _print(place: Place, result: RunReport, **how: bool) -> None:
    """Print a result; a standard output that is full or that nobody reads makes no failure of what is committed."""
    try:
        print_report(place, result, **how)
    except OSError as error:
        silence(sys.stdout)
        place.tell(f"the result could not be printed ({error}); see pgonce runs. The exit code is the run's own")
