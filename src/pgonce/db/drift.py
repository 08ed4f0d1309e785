"""Has the schema drifted from what the migrations make? Both are described line by line, and the lines compared.

``sql/expected_schema.txt`` is the description of a freshly migrated schema; a test keeps it equal to what the
migrations make on the oldest and the newest supported server. What users keep in the schema beside pgonce's tables is
not looked at; what they attach to pgonce's tables is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files

from pgonce.db.reference import ROW, in_force
from pgonce.db.statements import DEFAULT_SCHEMA, quote_identifier
from pgonce.db.transaction import Transaction

EXPECTED = "expected_schema.txt"

SEPARATOR = ": "

# The tables that a chunk's rows are stored in.
CHUNK_TABLES = frozenset({"event", "effect", "event_history", "finding"})

# Where the foreign key is in force, it stands in the place of the trigger.
_SET_REFERENCE = f"trigger effect.effect_reference{SEPARATOR}"
_ROW_REFERENCE = (
    f"constraint effect.effect_event_fkey{SEPARATOR}"
    "FOREIGN KEY (job, source, event_id) REFERENCES event(job, source, event_id)"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One object of the schema that is not as the migrations make it; None stands for an object that is not there."""

    subject: str
    expected: str | None
    found: str | None

    @property
    def text(self) -> str:
        """Say what differs, in one sentence."""
        if self.found is None:
            return f"{self.subject} is missing; the migrations make it as: {self.expected}"
        if self.expected is None:
            return f"{self.subject} is not pgonce's: {self.found}"
        return f"{self.subject} is: {self.found}; the migrations make it as: {self.expected}"


def describe(transaction: Transaction) -> tuple[str, ...]:
    """Describe the schema as it stands, a line an object, the same for every schema name and server release.

    The transaction's search path is the schema alone afterwards. Safe to re-run: it only reads.
    """
    namespace = find_namespace(transaction)
    if namespace is None:
        return ()
    qualifier = quote_identifier(transaction.schema)
    transaction.connection.execute(
        "select set_config('search_path', %s, true), set_config('quote_all_identifiers', 'off', true)",
        (f"{qualifier}, pg_temp",),
    )
    rows = transaction.rows(
        "describe_schema", namespace=namespace, qualifier=f"{qualifier}.", plain=f"{DEFAULT_SCHEMA}."
    )
    return tuple(sorted(_line(*row) for row in rows))


def find_namespace(transaction: Transaction) -> int | None:
    """Find the oid of the schema; None if there is no such schema."""
    found = transaction.row("find_schema", schema=transaction.schema)
    return int(found[0]) if found else None


def _line(kind: str, owner: str, name: str, definition: str) -> str:
    subject = name if kind in ("table", "function") else f"{owner}.{name}"
    return f"{kind} {subject}{SEPARATOR}{' '.join(definition.split())}"


def expected(reference: str | None = None) -> tuple[str, ...]:
    """Read the description of the schema as this version's migrations make it, with the given reference in force."""
    lines = files("pgonce.sql").joinpath(EXPECTED).read_text(encoding="utf-8").splitlines()
    if reference == ROW:
        lines = sorted([*(line for line in lines if not line.startswith(_SET_REFERENCE)), _ROW_REFERENCE])
    return tuple(lines)


def compare(wanted: Iterable[str], there: Iterable[str]) -> list[Difference]:
    """Name every object that is missing, differs, or stands on a table of pgonce without being pgonce's."""
    want, have = _by_subject(wanted), _by_subject(there)
    tables = {subject.split(" ", 1)[1] for subject in want if subject.startswith("table ")}
    return [
        Difference(subject, want.get(subject), have.get(subject))
        for subject in sorted({*want, *have})
        if want.get(subject) != have.get(subject) and (subject in want or _is_on(subject, tables))
    ]


def foreign_code(transaction: Transaction) -> list[str]:
    """Name what is not pgonce's and may run with a row that is stored, or where the relation ``chunk`` is made.

    Triggers, checks, defaults, rules and policies on the tables that a chunk is stored in; event triggers. The
    transaction's search path is the schema alone afterwards. Safe to re-run: it only reads.
    """
    there = compare(expected(in_force(transaction)), describe(transaction))
    on_tables = [
        difference.subject
        for difference in there
        if difference.found is not None
        and difference.subject.split(" ", 1)[0] != "index"
        and difference.subject.split(" ", 1)[1].split(".", 1)[0] in CHUNK_TABLES
    ]
    return on_tables + [f"event trigger {name}" for (name,) in transaction.rows("table_event_triggers")]


def _by_subject(lines: Iterable[str]) -> Mapping[str, str]:
    return {subject: definition for subject, _, definition in (line.partition(SEPARATOR) for line in lines)}


def _is_on(subject: str, tables: set[str]) -> bool:
    """Say whether an object that nobody expected is attached to one of pgonce's tables."""
    kind, name = subject.split(" ", 1)
    return kind not in ("table", "function") and any(name.startswith(f"{table}.") for table in tables)
