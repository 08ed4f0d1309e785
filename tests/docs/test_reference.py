"""The reference names everything: every command and option, every public name, exit code, column and type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import click
import psycopg
import pytest

import pgonce
from docs.pages import ROOT, anchors, links
from pgonce.cli import exits
from pgonce.cli.main import cli
from pgonce.model.canonical import CANONICAL_VERSION
from pgonce.model.definition import COLUMN_TYPES
from pgonce.model.outcome import RESULTS

REFERENCE = ROOT / "docs" / "reference"
_HEADING = re.compile(r"^(#+) +(.+)$", re.MULTILINE)


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Map each heading to the text below it, down to the next heading of the same or a higher level."""
    found = list(_HEADING.finditer(text))
    sections = {}
    for number, heading in enumerate(found):
        following = (later.start() for later in found[number + 1 :] if len(later[1]) <= len(heading[1]))
        sections[heading[2]] = text[heading.end() : next(following, len(text))]
    return sections


def with_linked(section: str, all_sections: dict[str, str]) -> str:
    """Add the sections of the same page that a section links to, and those they link to."""
    by_anchor = {next(iter(anchors(f"# {name}"))): text for name, text in all_sections.items()}
    parts, todo, seen = [section], [section], set[str]()
    while todo:
        for target in links(todo.pop()):
            anchor = target.removeprefix("#")
            if target.startswith("#") and anchor not in seen:
                seen.add(anchor)
                parts.append(by_anchor[anchor])
                todo.append(by_anchor[anchor])
    return "\n".join(parts)


def all_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from all_commands(below, f"{path} {name}")
    else:
        yield path, command


COMMANDS = dict(all_commands(cli, "pgonce"))


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_of_a_command_is_in_its_section(path: str) -> None:
    """A command has a section of its own that names each of its options, or links to a section that does."""
    every = sections(page("cli.md"))
    assert path in every, f"docs/reference/cli.md has no section {path}"
    text = with_linked(every[path], every)
    options = [parameter for parameter in COMMANDS[path].params if isinstance(parameter, click.Option)]
    names = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    missing = sorted(name for name in names if not re.search(rf"`{re.escape(name)}(?![\w-])", text))
    assert not missing, f"docs/reference/cli.md, section {path}, does not name {', '.join(missing)}"


def test_no_section_is_of_a_command_that_is_not_there() -> None:
    """A section that begins with the program's name is a command or a group of commands."""
    there = {*COMMANDS, *(path.rpartition(" ")[0] for path in COMMANDS)}
    named = {name for name in sections(page("cli.md")) if name.startswith("pgonce ")}
    assert named <= there


def test_every_public_name_is_documented() -> None:
    """Each name of ``pgonce.__all__`` stands on the page for Python, with the fields of what is a value."""
    text = page("python.md")
    missing = [name for name in pgonce.__all__ if not re.search(rf"`(pgonce\.)?{name}`", text)]
    for name in pgonce.__all__:
        thing = getattr(pgonce, name)
        if is_dataclass(thing):
            missing += [f"{name}.{item.name}" for item in fields(thing) if not re.search(rf"`{item.name}(_s)?`", text)]
    assert not missing


def test_the_signature_of_run_is_as_documented() -> None:
    """The page shows each parameter of ``pgonce.run``, in order."""
    shown = re.search(r"^run\((.+?)\) -> RunReport$", page("python.md"), re.MULTILINE | re.DOTALL)
    assert shown is not None
    names = [part.split("=")[0].strip() for part in re.split(r",\s+(?=[a-z*])", shown[1]) if part != "*"]
    assert names == list(inspect.signature(pgonce.run).parameters)


def test_every_error_has_its_exit_code() -> None:
    """The table of errors gives each class its parent and the exit code that the command ends with."""
    rows = dict(re.findall(r"^\| `(\w+)` \| `\w+` \|.*\| ([\d, ]*?) ?\|$", page("python.md"), re.MULTILINE))
    for name in pgonce.__all__:
        thing = getattr(pgonce, name)
        if inspect.isclass(thing) and issubclass(thing, pgonce.PgonceError) and thing is not pgonce.PgonceError:
            assert str(exits.exit_code_of(thing("text"))) in rows[name].split(", "), name


@pytest.mark.parametrize("where", [REFERENCE / "exit-codes.md", ROOT / "README.md"], ids=lambda path: path.name)
def test_every_exit_code_is_in_the_table(where: Path) -> None:
    """Each exit code of the command has a row, and each row is an exit code of the command."""
    first_cells = re.findall(r"^\| ([\d, ]+) \|", where.read_text(encoding="utf-8"), re.MULTILINE)
    shown = {int(code) for cell in first_cells for code in cell.split(",")}
    assert shown == {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}


@pytest.mark.parametrize("table", ["event", "effect"])
def test_every_public_column_is_documented(table: str, database: str) -> None:
    """The page of tables has each column of a public table, with its type."""
    section = sections(page("tables.md"))[f"pgonce.{table}"]
    shown = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)
    with psycopg.connect(database) as connection:
        there = connection.execute(
            "select attname::text, replace(atttypid::regtype::text, 'timestamp with time zone', 'timestamptz')"
            " from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped",
            (f"pgonce.{table}",),
        ).fetchall()
    assert sorted(shown) == sorted(there)


def test_every_other_table_is_documented(database: str) -> None:
    """The page of tables names each table of the schema."""
    text = page("tables.md")
    with psycopg.connect(database) as connection:
        there = connection.execute("select tablename::text from pg_tables where schemaname = 'pgonce'")
        missing = [name for (name,) in there if f"`{name}`" not in text and f"## pgonce.{name}" not in text]
    assert not missing


def test_results_states_and_types_are_documented() -> None:
    """Each result of a row, each state of an event and each declared type is explained."""
    glossary, canonical = page("glossary.md"), page("canonical-rule.md")
    assert not [name for name in (*RESULTS, "completed", "pruned", "read") if f"`{name}`" not in glossary]
    assert not [name for name in COLUMN_TYPES if f"| `{name}` |" not in canonical]
    assert f"version {CANONICAL_VERSION} of the rule" in canonical


def test_every_decision_is_listed() -> None:
    """Each page of a decision is in the list, with its own title, and says context, decision and consequences."""
    folder = ROOT / "docs" / "adr"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    for decision in sorted(folder.glob("[0-9]*.md")):
        text = decision.read_text(encoding="utf-8")
        assert f"[{text.splitlines()[0].removeprefix('# ')}]({decision.name})" in listed
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences")), decision.name
