"""Options that several commands share, and how they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click

from pgonce.db.statements import DEFAULT_SCHEMA

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which database a command works in, and how much it says."""

    dsn: str | None
    embedded: bool
    schema: str
    as_json: bool
    quiet: bool
    verbose: bool

    def tell(self, text: str) -> None:
        """Say something on stderr, unless told to be quiet."""
        if not self.quiet:
            click.echo(f"pgonce: {text}", err=True)

    def where(self) -> dict[str, Any]:
        """Return the options that choose the database, for the calls of ``pgonce.api``."""
        return {"dsn": self.dsn, "embedded": self.embedded, "schema": self.schema, "tell": self.tell}

    def print_json(self, value: object) -> None:
        """Write one JSON document to stdout."""
        click.echo(json.dumps(value, ensure_ascii=False, default=str))


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose the database and the output; the command gets them as ``place``."""

    def with_place(**values: Any) -> Any:
        names = ("dsn", "embedded", "schema", "as_json", "quiet", "verbose")
        place = Place(**{name: values.pop(name) for name in names})
        return function(place=place, **values)

    with_place.__name__ = function.__name__
    with_place.__doc__ = function.__doc__
    options = (
        click.option("--dsn", metavar="DSN", help="Database, as libpq takes it. Never put a password here."),
        click.option("--embedded", is_flag=True, help="Use the embedded server, whatever the environment names."),
        click.option("--schema", default=DEFAULT_SCHEMA, show_default=True, help="Schema of pgonce's tables."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys."),
        click.option("-q", "--quiet", is_flag=True, help="No messages and no progress on stderr."),
        click.option("-v", "--verbose", is_flag=True, help="Say more on stderr."),
    )
    decorated: Callable[..., Any] = with_place
    decorated.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def split_names(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Read a comma-separated list of column names."""
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise click.BadParameter(f"{value!r} has an empty name in it")
    return names


def print_table(headers: Iterable[str], rows: Iterable[Iterable[object]], *, title: str | None = None) -> None:
    """Print rows: as a table on a terminal, as tab-separated lines elsewhere."""
    if sys.stdout is not None and sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*headers, title=title, title_justify="left")
        for row in rows:
            table.add_row(*("" if cell is None else str(cell) for cell in row))
        Console().print(table)
        return
    click.echo("\t".join(headers))
    for row in rows:
        click.echo("\t".join("" if cell is None else str(cell) for cell in row))
