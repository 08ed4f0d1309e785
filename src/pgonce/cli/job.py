"""``pgonce job``: list jobs, show their definitions, change one on record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from pgonce.api.job import change_job, list_jobs, show_job
from pgonce.api.run import order
from pgonce.cli.exits import CHECK_FOUND_SOMETHING, COMPLETE
from pgonce.cli.options import Place, place_options, print_table
from pgonce.cli.run import definition_options
from pgonce.engine.job import Version


@click.group("job")
def job() -> None:
    """What a job means by an event: list, show, change on record."""


@job.command("list")
@place_options
def list_(*, place: Place) -> int:
    """List all jobs."""
    found = list_jobs(**place.where())
    if place.as_json:
        place.print_json({"version": 1, "jobs": [line.as_dict() for line in found]})
        return COMPLETE
    lines = (
        (line.job, line.version, ",".join(line.key), f"{line.changed_at:%Y-%m-%d %H:%M:%S}", line.who, line.why)
        for line in found
    )
    print_table(("job", "version", "key", "in force since", "by", "why"), lines)
    return COMPLETE


@job.command("show")
@click.argument("name", metavar="JOB")
@place_options
def show(*, place: Place, name: str) -> int:
    """Show the definition of JOB that is in force, and every version there was."""
    found = show_job(name, **place.where())
    if not found:
        place.tell(f"there is no job {name!r}; pgonce job list names them")
        return CHECK_FOUND_SOMETHING
    now = found[-1]
    if place.as_json:
        history = [version.as_dict() for version in found]
        place.print_json({"version": 1, "job": name, "in_force": now.as_dict(), "versions": history})
        return COMPLETE
    click.echo(f"job {name}, version {now.version} in force")
    print_table(("setting", "value"), _settings(now))
    click.echo()
    lines = ((v.version, f"{v.created_at:%Y-%m-%d %H:%M:%S}", v.who, v.why) for v in found)
    print_table(("version", "since", "by", "why"), lines)
    return COMPLETE


@job.command("change")
@click.argument("name", metavar="JOB")
@click.option("--why", required=True, help="Why it is changed; kept on record.")
@definition_options
@place_options
def change(*, place: Place, name: str, why: str, **values: Any) -> int:
    """Put another definition of JOB in force, given in full by the options that pgonce run takes.

    Events that are stored stay as they are. Running it again changes nothing.
    """
    values["ignore"] = values["ignore"] or ()
    changed = change_job(order(job=name, **values), why=why, **place.where())
    version = changed.stored.version
    if place.as_json:
        definition = changed.stored.definition.spec()
        place.print_json(
            {"version": 1, "job": name, "in_force": version, "changed": changed.changed, "definition": definition}
        )
    if changed.changed:
        place.tell(f"job {name}: version {version} is in force from now on")
    else:
        place.tell(f"job {name} has this definition already, as version {version}; nothing was changed")
    return COMPLETE


def _settings(version: Version) -> Iterator[tuple[str, str]]:
    for name, value in version.definition.spec().items():
        if value in (None, [], {}):
            continue
        if isinstance(value, list):
            value = ",".join(map(str, value))
        elif isinstance(value, dict):
            value = ",".join(f"{column}:{kind}" for column, kind in sorted(value.items()))
        yield name.replace("_", " "), str(value)
