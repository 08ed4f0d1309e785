"""``pgonce crashtest -- COMMAND``: is any program, in any language, safe to run again?"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from pgonce.cli.exits import CHECK_FOUND_SOMETHING, COMPLETE, INCONCLUSIVE
from pgonce.cli.lab import fill_standard_streams
from pgonce.cli.options import json_option, print_json, quiet_option
from pgonce.cli.printable import printable
from pgonce.cli.streams import say
from pgonce.crashtest import asjunit, astext
from pgonce.crashtest import page as aspage
from pgonce.crashtest.asjson import report_as_dict
from pgonce.crashtest.baseline import Rules
from pgonce.crashtest.conduct import conduct
from pgonce.crashtest.explore import Result
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.lane import Command
from pgonce.crashtest.limits import RERUNS, SAMPLE_PER_STATEMENT
from pgonce.crashtest.plan import Plan
from pgonce.errors import ConfigurationError

# Between two lines of progress; a person looks up now and then.
PROGRESS_S = 2.0

_FILE = click.Path(path_type=Path, dir_okay=False)
_PATH = click.Path(path_type=Path)
_OPTIONS = (
    click.option("--setup", "setup", multiple=True, type=_PATH, help="SQL file that makes the state before a run."),
    click.option("--dsn", metavar="DSN", help="A database to copy; it is only read. Never put a password here."),
    click.option("--database", metavar="NAME", help="The database to copy, on the server of --dsn or libpq's own."),
    click.option(
        "--on-server", is_flag=True, help="Test in clones on the server of --dsn itself; it is not crashed there."
    ),
    click.option("--workdir", type=_PATH, help="The program's working folder, to be copied. Default: this folder."),
    click.option("--empty-workdir", is_flag=True, help="Run in an empty folder instead of a copy."),
    click.option(
        "--env", "assignments", multiple=True, metavar="NAME=TEXT", help="Set a variable; {dsn}, {host}, {port} ..."
    ),
    click.option("--template", type=_PATH, help="A file in the working folder in which {dsn}, {port} ... are filled."),
    click.option(
        "--listen", "port", type=click.IntRange(1, 65535), help="The port on 127.0.0.1 that the program uses."
    ),
    click.option("--isolate/--no-isolate", default=True, show_default=True, help="Give it no other network."),
    click.option(
        "--fault",
        "faults",
        multiple=True,
        type=click.Choice([fault.value for fault in Fault]),
        help="Only this fault; may be repeated. Default: all.",
    ),
    click.option("--kill", "kills", type=click.Choice(["session", "client"]), default="session", show_default=True),
    click.option("--tables", multiple=True, metavar="TABLE", help="Compare only this table; may be repeated."),
    click.option("--ignore", multiple=True, metavar="TABLE[.COLUMN]", help="Do not compare this."),
    click.option("--log-table", "log_tables", multiple=True, metavar="TABLE", help="A log that each run may add to."),
    click.option("--compare-files", "files", multiple=True, metavar="GLOB", help="Compare these files, too."),
    click.option("--invariant", "invariants", multiple=True, metavar="SELECT", help="A query that must give no rows."),
    click.option("--invariants-only", is_flag=True, help="Do not compare states, only look at the invariants."),
    click.option("--ok-exit", "ok_exits", multiple=True, type=int, help="An exit code that also means success."),
    click.option("--exhaustive", is_flag=True, help="Try every occurrence of a statement."),
    click.option("--per-statement", type=click.IntRange(1), default=SAMPLE_PER_STATEMENT, show_default=True),
    click.option("--points", "points_max", type=click.IntRange(1), help="Try at most so many points."),
    click.option("--time", "time_s_max", type=click.FloatRange(min=1), metavar="SECONDS", help="Stop after so long."),
    click.option("--limit", "limit_s", type=click.FloatRange(min=0.1), metavar="SECONDS", help="For one run."),
    click.option("--until", default="", metavar="SELECT", help="For a worker that never ends: true when all is done."),
    click.option("--reruns", type=click.IntRange(1), default=RERUNS, show_default=True, help="Runs after a fault."),
    click.option("--only", multiple=True, metavar="POINT[:FAULT]", help="Try only this point."),
    click.option("--resume", type=_PATH, metavar="FILE", help="Keep what was tried here, and go on from it."),
    click.option("--seed", type=int, default=0, show_default=True, help="For what is chosen by chance."),
    click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Servers at work at once."),
    click.option("--report", "html", type=_FILE, metavar="FILE", help="Write the report as one HTML page."),
    click.option("--junit", "junit", type=_FILE, metavar="FILE", help="Write the report as JUnit XML."),
    click.option("-v", "--verbose", is_flag=True, help="Tell every trial, and every fault in full."),
)


def _with_options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("crashtest", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@_with_options
@json_option
@quiet_option
@click.argument("command", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED)
def crashtest(command: tuple[str, ...], as_json: bool, quiet: bool, verbose: bool, **options: Any) -> int:
    """Fail a program at each statement boundary, run it again, and compare the end with that of a clean run.

    It runs on a throw-away server and in a copy of this folder; PGHOST, PGPORT, PGUSER, PGDATABASE, PGPASSWORD and
    DATABASE_URL lead it there.

    Exit code 0: safe at every point that was tried. 3: not safe. 70: it could not be tested, or not everywhere.
    """
    fill_standard_streams()
    signal.signal(signal.SIGTERM, _end_like_ctrl_c)
    pages = [(path, page) for path, page in ((options.pop("html"), aspage), (options.pop("junit"), asjunit)) if path]
    for path, _ in pages:
        write_whole(path, "")
    ours = [path for path, _ in pages] + [options["resume"]] * (options["resume"] is not None)
    talk = _Talk(quiet=quiet, verbose=verbose)
    report = conduct(_plan(command, options, frozenset(ours)), tell=talk.tell, on_result=talk.result)
    for path, page in pages:
        write_whole(path, page.document(report))
        talk.tell(f"wrote {path}")
    if as_json:
        print_json(report_as_dict(report))
    else:
        for line in astext.lines(report, verbose=verbose):
            click.echo(printable(line))
    if report.stopped_by:
        kept = options["resume"]
        how = (
            f"what was tried is kept in {kept}: the same command goes on"
            if kept
            else "with --resume FILE it could go on"
        )
        talk.tell(f"stopped; {how}")
        return report.stopped_by
    if report.is_proven_unsafe:
        return CHECK_FOUND_SOMETHING
    return COMPLETE if report.is_safe else INCONCLUSIVE


def _plan(command: tuple[str, ...], options: dict[str, Any], ours: frozenset[Path]) -> Plan:
    if options["empty_workdir"] and options["workdir"]:
        raise click.UsageError("--empty-workdir and --workdir contradict each other")
    folder = None if options["empty_workdir"] else (options["workdir"] or Path())
    return Plan(
        command=Command(
            argv=command,
            folder=folder,
            assignments=options["assignments"],
            template=options["template"],
            port=options["port"],
            isolate=options["isolate"],
            kills_client_only=options["kills"] == "client",
            until=options["until"],
            not_copied=ours,
        ),
        setup=options["setup"],
        original_dsn=options["dsn"],
        original_database=options["database"],
        on_server=options["on_server"],
        rules=Rules(
            tables=_names(options["tables"]),
            ignore=_names(options["ignore"]),
            log_tables=_names(options["log_tables"]),
            files=options["files"],
            invariants=options["invariants"],
            invariants_only=options["invariants_only"],
            ok_exits=frozenset({0, *options["ok_exits"]}),
        ),
        faults=tuple(Fault(name) for name in options["faults"]),
        only=frozenset(options["only"]),
        per_statement=None if options["exhaustive"] else options["per_statement"],
        points_max=options["points_max"],
        time_s_max=options["time_s_max"],
        limit_s=options["limit_s"],
        reruns=options["reruns"],
        jobs=options["jobs"],
        seed=options["seed"],
        resume=options["resume"],
    )


def _names(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.removeprefix("public.") for name in names)


class _Talk:
    """What is said on stderr while the test runs."""

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self._quiet = quiet
        self._verbose = verbose
        self._said_at = time.monotonic()
        self._unsafe = 0

    def tell(self, text: str) -> None:
        if not self._quiet:
            say(text)

    def result(self, result: Result, done: int, whole: int) -> None:
        self._unsafe += result.verdict.is_unsafe
        if self._verbose:
            words = printable(result.trial.met.words)[:60]
            self.tell(f"{done}/{whole} {result.verdict.value} {result.trial.name} {result.trial.blow.name}: {words}")
        elif time.monotonic() - self._said_at >= PROGRESS_S:
            self._said_at = time.monotonic()
            self.tell(f"{done} of {whole} trials, {self._unsafe} not safe")


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step: an older one stays whole until the new one is. An empty text only tries whether it can.

    Raises ConfigurationError if it cannot be written.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.write_text(text, encoding="utf-8", errors="replace")
        if text:
            new.replace(path)
        else:
            new.unlink()
    except OSError as error:
        raise ConfigurationError(f"cannot write {str(path)!r}: {error.strerror}. Name another file.") from error


def _end_like_ctrl_c(_number: int, _frame: object) -> None:
    """End in order, so that server and program are gone before this process is."""
    sys.exit(128 + signal.SIGTERM)
