"""Options that several commands share, and how they print."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click

from pgonce.cli.streams import say
from pgonce.db.connect import without_password
from pgonce.db.statements import DEFAULT_SCHEMA
from pgonce.errors import PgonceError

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
        """Say something on stderr, unless told to be quiet. Whether anybody hears it changes nothing."""
        if not self.quiet:
            say(text)

    def where(self) -> dict[str, Any]:
        """Return the options that choose the database, for the calls of ``pgonce.api``."""
        return {"dsn": self.dsn, "embedded": self.embedded, "schema": self.schema, "tell": self.tell}

    @property
    def words(self) -> str:
        """The options that choose this database, to be shown in a suggested command; a password is left out."""
        words = []
        if self.dsn:
            words += ["--dsn", without_password(self.dsn)[0]]
        if self.embedded:
            words.append("--embedded")
        if self.schema != DEFAULT_SCHEMA:
            words += ["--schema", self.schema]
        return "".join(f" {shlex.quote(word)}" for word in words)

    def print_json(self, value: object) -> None:
        """Write one JSON document to stdout."""
        print_json(value)


# For commands that have no database to choose.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No messages on stderr; errors are said.")


def print_json(value: object) -> None:
    """Write one JSON document to stdout."""
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose the database and the output; the command gets them as ``place``."""

    def with_place(**values: Any) -> Any:
        names = ("dsn", "embedded", "schema", "as_json", "quiet", "verbose")
        place = Place(**{name: values.pop(name) for name in names})
        try:
            return function(place=place, **values)
        except PgonceError as error:
            if error.command is not None:
                error.command += place.words
            raise

    with_place.__name__ = function.__name__
    with_place.__doc__ = function.__doc__
    options = (
        click.option("--dsn", metavar="DSN", help="Database, as libpq takes it. Never put a password here."),
        click.option("--embedded", is_flag=True, help="Use the embedded server, whatever the environment names."),
        click.option("--schema", default=DEFAULT_SCHEMA, show_default=True, help="Schema of pgonce's tables."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys. Errors go to stderr."),
        click.option("-q", "--quiet", is_flag=True, help="No messages, progress and summary; errors are said."),
        click.option("-v", "--verbose", is_flag=True, help="Say every chunk and every retry on stderr."),
    )
    decorated: Callable[..., Any] = with_place
    vars(with_place)["__click_params__"] = getattr(function, "__click_params__", [])
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
    """Print rows: as a table on a terminal, as tab-separated lines elsewhere. A number is never cut off."""
    titles, lines = list(headers), [list(row) for row in rows]
    if sys.stdout is not None and sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for number, name in enumerate(titles):
            is_number = bool(lines) and all(isinstance(line[number], int | None) for line in lines)
            table.add_column(
                name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold", min_width=3
            )
        for line in lines:
            table.add_row(*("" if cell is None else str(cell) for cell in line))
        Console().print(table)
        return
    click.echo("\t".join(titles))
    for line in lines:
        click.echo("\t".join("" if cell is None else str(cell) for cell in line))
