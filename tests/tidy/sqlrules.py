"""The house rules for the engine's SQL files, in the same form as those for Python."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pgonce.errors import ConfigurationError
from pgonce.model.sqltext import split_statements
from tidy.source import File

HEADER_PARTS = {
    "Lock:": "which lock it takes, or 'none'",
    "Zero rows:": "what it means that no row comes back or is changed",
}
QUALIFIERS = ("pgonce.", "pg_catalog.", "pg_temp.")

_SILENT = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|%\(\w+\)s", re.DOTALL)
_SHOUTED = re.compile(r"\b[A-Z]{2,}\b")
_TOKEN = re.compile(r'"[^"]*"|[a-z_][a-z0-9_.]*|[(),;]', re.IGNORECASE)
# "for update", "do update set", "is distinct from" and "extract(epoch from x)" name no table.
_NO_TABLE_AFTER = {"update": {"for", "key", "do"}, "from": {"distinct"}}
_FROM_IN_CALL = frozenset({"extract", "overlay", "position", "substring", "trim"})
_BEFORE_TABLE = frozenset({"from", "join", "into", "update", "using", "references"})
_AFTER_TABLE = frozenset(
    {"as", "on", "using", "set", "where", "group", "order", "limit", "returning", "for", "join", "left", "right"}
    | {"inner", "full", "cross", "natural", "values", "select", "default", "union", "except", "intersect", "having"}
    | {"window", "offset", "fetch", "when", "overriding"}
)


def headless_statements(files: list[File]) -> Iterator[str]:
    for file in files:
        header = _header(file)
        if (
            not header
            or not header[0].removeprefix("--").strip()
            or header[0].startswith(tuple(f"-- {p}" for p in HEADER_PARTS))
        ):
            yield f"{file.path}:1: the file does not begin with a '--' comment that says what the statement does"
        for part, meaning in HEADER_PARTS.items():
            if not any(line.removeprefix("--").strip().startswith(part) for line in header):
                yield f"{file.path}:1: the header has no '-- {part}' line; say {meaning}"


def several_statements(files: list[File]) -> Iterator[str]:
    for file in files:
        try:
            # The driver feeds a COPY of ours; only a user's script has nobody to do that.
            found = split_statements(file.text.replace(" from stdin ", " "))
        except ConfigurationError as error:
            yield f"{file.path}:1: {error}"
            continue
        if len(found) != 1:
            yield f"{file.path}:1: the file holds {len(found)} statements; one statement a file"


def shouted_keywords(files: list[File]) -> Iterator[str]:
    for file in files:
        for number, line in enumerate(_silenced(file.text).splitlines(), start=1):
            for found in _SHOUTED.finditer(line):
                yield f"{file.path}:{number}: {found.group()} is in capitals; SQL is written in lower case"


def unqualified_tables(files: list[File]) -> Iterator[str]:
    for file in files:
        text = _silenced(file.text)
        for name, at in _tables(text):
            if not name.lower().startswith(QUALIFIERS):
                number = text.count("\n", 0, at) + 1
                yield f"{file.path}:{number}: {name} is not qualified; write pgonce.{name}, whatever the search_path is"


def _header(file: File) -> list[str]:
    header = []
    for line in file.lines:
        if not line.startswith("--"):
            break
        header.append(line)
    return header


def _silenced(text: str) -> str:
    """Blank out comments, strings and parameters, keeping every line break where it was."""
    return _SILENT.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def _tables(text: str) -> Iterator[tuple[str, int]]:
    """Give the tables a statement names and where; names of its own `with` queries and functions are left out."""
    tokens = [(found.group(), found.start()) for found in _TOKEN.finditer(text)]
    words = [token.lower() for token, _ in tokens]
    own = {_name_before(words, i) for i, word in enumerate(words) if word == "as" and i and _opens_query(words, i)}
    callers: list[str] = []
    for i, word in enumerate(words):
        if word == "(":
            callers.append(words[i - 1] if i else "")
        elif word == ")" and callers:
            callers.pop()
        elif word in _BEFORE_TABLE and _names_table(words, i, callers):
            for j in _list_of_tables(words, i + 1):
                is_call = words[j + 1 : j + 2] == ["("] and word not in {"into", "references"}
                if words[j] not in own and not is_call:
                    yield tokens[j]


def _opens_query(words: list[str], i: int) -> bool:
    following = [word for word in words[i + 1 : i + 4] if word not in {"not", "materialized"}]
    return following[:1] == ["("]


def _name_before(words: list[str], i: int) -> str:
    """Give the name in ``name as (`` and ``name (column, ...) as (``."""
    i -= 1
    if words[i] == ")":
        i = max(j for j in range(i) if words[j] == "(") - 1
    return words[i]


def _names_table(words: list[str], i: int, callers: list[str]) -> bool:
    before = words[i - 1] if i else ""
    if before in _NO_TABLE_AFTER.get(words[i], ()):
        return False
    return not (words[i] == "from" and callers and callers[-1] in _FROM_IN_CALL)


def _list_of_tables(words: list[str], i: int) -> Iterator[int]:
    """Give the indexes of the tables in ``a, b as x, c y`` that begins at ``i``; a bracket ends the list."""
    while True:
        while words[i : i + 1] in (["only"], ["lateral"]):
            i += 1
        if i >= len(words) or words[i] in {"(", ")"}:
            return
        yield i
        i += 1
        if words[i : i + 1] == ["as"]:
            i += 2
        elif i < len(words) and words[i] not in _AFTER_TABLE and words[i] not in {"(", ")", ",", ";"}:
            i += 1
        if words[i : i + 1] != [","]:
            return
        i += 1
