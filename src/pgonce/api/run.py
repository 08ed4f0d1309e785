"""``pgonce.run`` and ``pgonce.adopt``: a file of events, each applied once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

from pgonce.api.database import opened
from pgonce.api.report import RowReportFile, row_report_file
from pgonce.db.failure import OUR_KEYS
from pgonce.db.statements import DEFAULT_SCHEMA
from pgonce.engine.dryrun import rehearse
from pgonce.engine.effect import Script
from pgonce.engine.job import check_name
from pgonce.engine.rowreport import Reported
from pgonce.engine.run import Order
from pgonce.engine.run import run as run_order
from pgonce.errors import ConfigurationError, RowRefused
from pgonce.model.deadline import Deadline
from pgonce.model.definition import Definition
from pgonce.model.identity import source_text
from pgonce.model.limits import Limits
from pgonce.model.observer import Observer, Silent
from pgonce.model.report import RunReport
from pgonce.sources import ReadingOptions, open_input


def order(
    *,
    job: str,
    key: str | Sequence[str],
    amount: str | None = None,
    amount_scale: int | None = None,
    source: str = "",
    source_column: str | None = None,
    payload: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
    effect: str | Path | None = None,
    verify: str | Path | None = None,
    kind: str = "apply",
    limits: Limits | None = None,
    also: bool = False,
    take_over: bool = False,
    wait_s: float = 0.0,
    redact: Sequence[str] = (),
) -> Order:
    """Put an order together from plain values, reading the files of the user's SQL.

    Raises ConfigurationError when they do not fit together.
    """
    if source and source_column:
        raise ConfigurationError("--source and --source-column both say where events come from; give one of them")
    if verify is not None and effect is None:
        raise ConfigurationError("--verify checks an effect; there is none without --effect")
    if not 0 <= wait_s < inf:
        raise ConfigurationError(f"--wait {wait_s}: it has to be a number of seconds, 0 or more")
    check_name(job)
    script, check = _script(effect), _script(verify)
    definition = Definition(
        key=(key,) if isinstance(key, str) else tuple(key),
        source_column=source_column,
        amount=amount,
        amount_scale=amount_scale,
        payload=None if payload is None else tuple(payload),
        ignore=tuple(ignore),
        types=dict(types or {}),
        effect_sha256=script.sha256 if script else None,
        verify_sha256=check.sha256 if check else None,
    )
    return Order(
        job=job,
        definition=definition,
        source=_source(source),
        kind=kind,
        effect=script,
        verify=check,
        limits=limits or Limits(),
        also=also,
        take_over=take_over,
        wait_s=wait_s,
        redact=frozenset(redact),
    )


def _source(source: str) -> str:
    """Return the source as it is stored. Raises ConfigurationError for one that cannot be."""
    try:
        return source_text(source, "--source")
    except RowRefused as refusal:
        raise ConfigurationError(str(refusal)) from refusal


def _script(path: str | Path | None) -> Script | None:
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the SQL file {path} cannot be read: {error}") from error
    return Script.read(str(path), text)


def run(
    input: str | Path,  # noqa: A002 - the word users say
    *,
    job: str,
    key: str | Sequence[str],
    amount: str | None = None,
    amount_scale: int | None = None,
    source: str = "",
    source_column: str | None = None,
    payload: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
    effect: str | Path | None = None,
    verify: str | Path | None = None,
    reading: ReadingOptions | None = None,
    limits: Limits | None = None,
    also: bool = False,
    take_over: bool = False,
    wait_s: float = 0.0,
    redact: Sequence[str] = (),
    dsn: str | None = None,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    observer: Observer | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    report: str | Path | None = None,
    dry_run: bool = False,
) -> RunReport:
    """Apply each event of a file once, and report; run again, it reports everything ``already`` and changes nothing.

    ``input`` is a path (CSV, TSV, NDJSON, CloudEvents JSON, Parquet; gzip or zstd) or ``-``. ``key`` names the column
    or columns that identify an event (of CloudEvents ``ce_id``, with ``ce_source`` as ``source_column``), ``amount``
    the column of its money: whole cents, or decimal text with ``amount_scale`` places. ``effect`` is a file of SQL that
    runs once a chunk in the checkpoint's transaction and sees the relation ``chunk``; ``verify`` a file of SQL that
    must return no rows. ``report`` names a file that gets a line of JSON per input row; ``dry_run``
    does all of it in one transaction that is rolled back. ``wait_s`` is in seconds.
    Returns a RunReport with counts in rows and cents; bad rows do not raise, they are in it and in its ``exit_code``.
    Raises the classes of ``pgonce.errors``; committed chunks stay then, and the same call goes on from there.
    Safe to re-run: always, at every point of failure.
    """
    what = order(
        job=job,
        key=key,
        amount=amount,
        amount_scale=amount_scale,
        source=source,
        source_column=source_column,
        payload=payload,
        ignore=ignore,
        types=types,
        effect=effect,
        verify=verify,
        limits=limits,
        also=also,
        take_over=take_over,
        wait_s=wait_s,
        redact=redact,
    )
    return carry_out(
        input,
        what,
        reading=reading,
        dsn=dsn,
        embedded=embedded,
        schema=schema,
        observer=observer,
        interrupted=interrupted,
        report=report,
        dry_run=dry_run,
    )


def carry_out(
    input: str | Path,  # noqa: A002 - the word users say
    what: Order,
    *,
    reading: ReadingOptions | None = None,
    dsn: str | None = None,
    embedded: bool = False,
    schema: str = DEFAULT_SCHEMA,
    observer: Observer | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda _text: None,
    report: str | Path | None = None,
    dry_run: bool = False,
    done: Callable[[RunReport], None] = lambda _report: None,
) -> RunReport:
    """Carry out an order over an input; or rehearse it, and roll everything back.

    ``done`` is told the result before the row report is written: it stands whatever becomes of that file.
    Safe to re-run: always.
    """
    refuse_own_keys(what.limits.retry_on, schema)
    limit_s = what.limits.deadline_s
    until = None if limit_s is None else Deadline.after(limit_s, time.monotonic)
    if dry_run and report is not None:
        raise ConfigurationError("a dry run stores nothing that a row report could be made from; leave --report out")
    with (
        _reserved(report, str(input)) as file,
        open_input(input, reading) as source,
        opened(
            dsn,
            embedded=embedded,
            schema=schema,
            application=f"pgonce/{what.job}",
            backoff=what.limits.backoff,
            seed=what.limits.seed,
            until=until,
            tell=tell,
            interrupted=interrupted,
        ) as clerk,
    ):
        carry = rehearse if dry_run else run_order
        result = carry(clerk, source, what, observer=observer or Silent(), interrupted=interrupted)
        done(result)
        if file is not None:
            rows = Reported(job=what.job, run_id=result.run_id, source=what.source)
            file.write(clerk, source, rows, interrupted=interrupted)
        return result


def refuse_own_keys(retry_on: Mapping[str, int], schema: str) -> None:
    """Raise ConfigurationError if a key of pgonce is to be tried again: what is stored is compared instead."""
    for name in OUR_KEYS:
        if f"{schema}.{name}" in retry_on:
            raise ConfigurationError(
                f"--retry-on {schema}.{name}: that is a key of pgonce. Who meets it compares the stored event; trying "
                "again would only meet it again"
            )


@contextmanager
def _reserved(report: str | Path | None, input_name: str) -> Iterator[RowReportFile | None]:
    if report is None:
        yield None
        return
    with row_report_file(report, input_name=input_name) as file:
        yield file
