"""``pgonce db``: the schema, the look-over, and the embedded server; thin callers of ``pgonce.api.admin``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any

import click

from pgonce import server
from pgonce.api import admin
from pgonce.cli.options import Place, json_option, place_options, print_table, quiet_option
from pgonce.db.reference import REFERENCES, SET
from pgonce.db.statements import DEFAULT_SCHEMA


@click.group("db")
def db() -> None:
    """Make and check pgonce's schema; start, stop and enter the database."""


reference_option = click.option(
    "--reference",
    type=click.Choice(REFERENCES),
    help="How effects refer to their events: set (the default), checked once a statement, or row, a foreign key.",
)


@db.command("init")
@place_options
@reference_option
def init(place: Place, reference: str | None) -> int:
    """Make pgonce's schema in the database. Where it is there, nothing is done."""
    return _print_change(place, admin.init(**place.where(), reference=reference), reference)


@db.command("migrate")
@place_options
@reference_option
def migrate(place: Place, reference: str | None) -> int:
    """Bring the schema up to the version of this pgonce; --reference also puts the one in the other's place."""
    return _print_change(place, admin.migrate(**place.where(), reference=reference), reference)


def _print_change(place: Place, change: admin.SchemaChange, reference: str | None) -> int:
    asked = "" if reference is None else f"; effects refer to their events by: {change.reference}"
    if place.as_json:
        place.print_json(change.as_dict())
    elif change.applied:
        applied = ", ".join(change.applied)
        click.echo(f"schema {change.schema!r} is at version {change.after}; applied: {applied}{asked}")
    else:
        nothing = "" if asked else "; there was nothing to do"
        click.echo(f"schema {change.schema!r} is there at version {change.after}{nothing}{asked}")
    return 0


@db.command("sql")
@click.option("--schema", default=DEFAULT_SCHEMA, show_default=True, help="Schema of pgonce's tables.")
@click.option("--since", type=int, default=0, help="Leave out the migrations up to this version.")
@reference_option
def sql(schema: str, since: int, reference: str | None) -> int:
    """Print the SQL of the migrations, to be applied in one transaction by psql -1, Alembic or Django."""
    click.echo(admin.install_sql(schema, since=since, reference=reference or SET), nl=False)
    return 0


@db.command("doctor")
@place_options
def doctor(place: Place) -> int:
    """Look the database over: is the schema as the migrations make it, and does anything endanger or delay jobs?

    Exit code 0: nothing has to be put right. 3: something has.
    """
    diagnosis = admin.doctor(**place.where())
    if place.as_json:
        place.print_json(diagnosis.as_dict())
        return diagnosis.exit_code
    if diagnosis.findings:
        lines = [(one.level, one.check, one.subject, one.text) for one in diagnosis.findings]
        print_table(("level", "check", "subject", "what"), lines)
    problems = sum(one.level == "problem" for one in diagnosis.findings)
    place.tell(f"{problems} to be put right" if problems else "nothing has to be put right")
    return diagnosis.exit_code


@db.command("up")
@json_option
@quiet_option
def up(as_json: bool, quiet: bool) -> int:
    """Start the embedded server and keep it up until `pgonce db down`. Prints how to connect."""
    place = _place(as_json, quiet)
    made = admin.up()
    if as_json:
        place.print_json({"dsn": made.dsn, "pid": made.pid, "version": ".".join(map(str, made.version))})
        return 0
    click.echo(made.dsn)
    place.tell(f"the embedded server is up; it stays until pgonce db down. Its data is in {made.pgdata.parent}")
    place.tell(f"to use it by name: export PGONCE_DATABASE_URL={shlex.quote(made.dsn)}")
    return 0


@db.command("down")
@click.option("--now", is_flag=True, help="Stop it under its users; what they have committed stays.")
@json_option
@quiet_option
def down(now: bool, as_json: bool, quiet: bool) -> int:
    """Let the embedded server stop: at once, or when its last user has ended."""
    place = _place(as_json, quiet)
    users = admin.down(now=now)
    if as_json:
        place.print_json({"users": list(users), "running": bool(users)})
    elif users:
        click.echo(f"the embedded server stops when its users have ended: {', '.join(users)}")
    else:
        click.echo("the embedded server is down")
    return 0


@db.command("status")
@json_option
@quiet_option
def status(as_json: bool, quiet: bool) -> int:
    """Show the embedded server: whether it runs, where its data is, and who uses it."""
    place = _place(as_json, quiet)
    found = {name: _plain(value) for name, value in asdict(server.status()).items()}
    if as_json:
        place.print_json(found)
    else:
        print_table(("what", "value"), [(name, _shown(value)) for name, value in found.items()])
    return 0


@db.command("psql", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--dsn", metavar="DSN", help="Database, as libpq takes it. Never put a password here.")
@click.option("--embedded", is_flag=True, help="Use the embedded server, whatever the environment names.")
def psql(arguments: tuple[str, ...], dsn: str | None, embedded: bool) -> int:
    """Enter the database with psql; ARGUMENTS are psql's own."""
    return admin.psql(arguments, dsn, embedded=embedded)


def _place(as_json: bool, quiet: bool) -> Place:
    """Say how the embedded server's commands print; they have no database to choose."""
    return Place(dsn=None, embedded=True, schema=DEFAULT_SCHEMA, as_json=as_json, quiet=quiet, verbose=False)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, int | str | bool | None) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)
