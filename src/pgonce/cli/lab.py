"""``pgonce lab``: experiments on a throw-away server that show what a second run does, done right and done wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pgonce import lab as the_lab
from pgonce.cli.exits import CHECK_FOUND_SOMETHING, COMPLETE, INCONCLUSIVE
from pgonce.cli.options import json_option, print_json, print_table, quiet_option
from pgonce.cli.streams import say
from pgonce.errors import ConfigurationError, Inconclusive
from pgonce.lab import envfile, report
from pgonce.lab.edge import in_words
from pgonce.lab.play import Played, chosen


class _Explained(click.Group):
    """A group whose commands end with a sentence, whatever goes wrong in the lab."""

    def invoke(self, ctx: click.Context) -> Any:
        with in_words():
            return super().invoke(ctx)


@click.group("lab", cls=_Explained)
def lab() -> None:
    """See on a real server what running again does: `pgonce lab run` shows it done right, `--wrong` done wrong."""
    fill_standard_streams()
    envfile.isolate(os.environ)
    signal.signal(signal.SIGTERM, _end_like_ctrl_c)


def fill_standard_streams() -> None:
    """Open nothing in the place of closed standard streams: a lock or a socket with such a number would be lost."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _end_like_ctrl_c(_number: int, _frame: object) -> None:
    """End in order, so that a throw-away server is stopped before the process is gone."""
    sys.exit(128 + signal.SIGTERM)


@lab.command("up")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="The lab's folder: new or empty, a short path.")
@json_option
@quiet_option
def up(folder: Path | None, as_json: bool, quiet: bool) -> int:
    """Start a lab that stays up until `pgonce lab clean`, and write lab.env into this folder."""
    made = the_lab.up(folder)
    if as_json:
        print_json({"folder": str(made.folder), "dsn": made.server.dsn, "pid": made.server.postmaster_pid})
        return COMPLETE
    click.echo(f"the lab is up in {made.folder}")
    if not quiet:
        say('psql: . ./lab.env; psql -h "$LAB_DIR" -U lab -d postgres')
        say("`pgonce lab run` plays in it, `pgonce lab clean` stops and removes it")
    return COMPLETE


@lab.command("seed")
@json_option
@quiet_option
def seed(as_json: bool, quiet: bool) -> int:
    """Fill the lab with made-up orders, the same every time."""
    rows = the_lab.seed(_standing())
    if as_json:
        print_json({"table": "wiki_lab.orders", "rows": rows})
    else:
        click.echo(f"wiki_lab.orders: {rows} made-up orders")
    return COMPLETE


@lab.command("whoami")
@json_option
@quiet_option
def whoami(as_json: bool, quiet: bool) -> int:
    """Say who one is in the lab, and where its server is."""
    return _print_facts(the_lab.whoami(_standing()), as_json)


@lab.command("versions")
@json_option
@quiet_option
def versions(as_json: bool, quiet: bool) -> int:
    """Say the version of everything that takes part."""
    return _print_facts(the_lab.versions(_standing()), as_json)


@lab.command("shell")
def shell() -> int:
    """Print shell functions lab_up, lab_seed, lab_whoami, lab_versions and lab_clean, for lab-local.sh."""
    click.echo(the_lab.shell_functions(sys.executable), nl=False)
    return COMPLETE


@lab.command("clean")
@json_option
@quiet_option
def clean(as_json: bool, quiet: bool) -> int:
    """Stop the lab, remove its folder and lab.env. Without a lab there is nothing to do."""
    gone = the_lab.clean()
    if as_json:
        print_json({"removed": str(gone) if gone else None})
    else:
        click.echo(f"the lab in {gone} is stopped and removed" if gone else "there is no lab here")
    return COMPLETE


@lab.command("scenarios")
@json_option
def scenarios(as_json: bool) -> int:
    """List the scenarios: their names and what they ask."""
    if as_json:
        print_json([{"name": one.name, "title": one.title, "question": one.question} for one in the_lab.SCENARIOS])
    else:
        print_table(("name", "title"), [(one.name, one.title) for one in the_lab.SCENARIOS])
    return COMPLETE


@lab.command("run")
@click.argument("names", metavar="[SCENARIO]...", nargs=-1)
@click.option("--wrong", is_flag=True, help="Let deliberately wrong workers do it, and show the damage.")
@json_option
@quiet_option
def run(names: tuple[str, ...], wrong: bool, as_json: bool, quiet: bool) -> int:
    """Play scenarios, all if none is named: in the lab of lab.env or LAB_DIR, or in a throw-away one.

    Those that crash the server are always played in a throw-away lab.
    Exit code 0: the money is exact everywhere. 3: it is not (so always with --wrong). 70: a scenario showed nothing.
    """
    wanted = _wanted(names, wrong=wrong)
    played = []
    inconclusive = []
    with _Labs(quiet=quiet) as labs:
        for scenario in wanted:
            tell: Callable[[str], None] = (lambda _: None) if as_json else click.echo
            try:
                played.append(the_lab.play(labs.for_scenario(scenario), scenario, wrong=wrong, tell=tell))
            except Inconclusive as error:
                inconclusive.append(scenario.name)
                say(f"{scenario.name}: {error}")
    if as_json:
        print_json({"scenarios": [_facts(one) for one in played], "inconclusive": inconclusive})
    elif not quiet:
        say(f"scenarios: {len(played)}, in {sum(one.took_s for one in played):.1f} s")
    if inconclusive and (wrong or all(one.exact for one in played)):
        return INCONCLUSIVE
    return COMPLETE if all(one.exact for one in played) else CHECK_FOUND_SOMETHING


@lab.command("report")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("lab-report.html"),
    show_default=True,
    help="The page to write; an older one is replaced.",
)
@quiet_option
def write_report(output: Path, quiet: bool) -> int:
    """Play every scenario, right and wrong, and write one page with both side by side.

    Exit code 0: every right worker was exact. 3: one was not. 70: a scenario showed nothing, and no page was written.
    """
    pairs: list[report.Pair] = []
    with report.written(output) as parts, _Labs(quiet=quiet) as labs:
        one_lab = labs.throw_away()
        for scenario in the_lab.SCENARIOS:
            if not quiet:
                say(f"playing {scenario.name}")
            right = the_lab.play(one_lab, scenario)
            pairs.append((right, the_lab.play(one_lab, scenario, wrong=True) if scenario.wrong else None))
        parts.append(report.page(pairs, the_lab.versions(one_lab)))
    click.echo(str(output))
    return COMPLETE if all(right.exact for right, _ in pairs) else CHECK_FOUND_SOMETHING


def _wanted(names: tuple[str, ...], *, wrong: bool) -> list[the_lab.Scenario]:
    try:
        found = chosen(names)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    harmless = [one.name for one in found if wrong and one.wrong is None]
    if harmless and names:
        raise click.UsageError(f"the scenario {harmless[0]!r} has no wrong worker; play it without --wrong")
    return [one for one in found if one.name not in harmless]


class _Labs:
    """The labs that scenarios are played in: the one that is up, and a throw-away one, made when it is needed."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._standing = the_lab.find()
        self._made: the_lab.Lab | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> _Labs:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def for_scenario(self, scenario: the_lab.Scenario) -> the_lab.Lab:
        """Choose the lab: one that is up is never crashed or set back under its user."""
        return self.throw_away() if self._standing is None or scenario.stops_server else self._standing

    def throw_away(self) -> the_lab.Lab:
        """Return the throw-away lab, with the same orders in it."""
        if self._made is None:
            self._made = self._open.enter_context(the_lab.throw_away())
            the_lab.seed(self._made)
            if not self._quiet:
                say(f"a throw-away server, PostgreSQL 18.6, in {self._made.folder}")
        return self._made


def _standing() -> the_lab.Lab:
    found = the_lab.find()
    if found is None:
        raise ConfigurationError("there is no lab here: no lab.env, and no LAB_DIR. Start one with `pgonce lab up`.")
    return found


def _facts(one: Played) -> dict[str, Any]:
    return {
        "name": one.scenario.name,
        "wrong": one.wrong,
        "exact": one.exact,
        "lines": one.texts(),
        "cents": [line.cents for line in one.lines],
        "cents_right": [line.cents_right for line in one.lines],
        "took_s": round(one.took_s, 3),
    }


def _print_facts(facts: dict[str, str], as_json: bool) -> int:
    if as_json:
        print_json(facts)
    else:
        print_table(("what", "value"), facts.items())
    return COMPLETE
