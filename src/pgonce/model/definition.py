"""What a job means by an event: which columns name it, what it is worth, and what counts as the same payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pgonce.errors import ConfigurationError
from pgonce.model.canonical import CANONICAL_VERSION
from pgonce.model.money import MAX_SCALE

COLUMN_TYPES = ("text", "int", "decimal", "bool", "date", "timestamp", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The definition of a job, as it is stored at its first run and guarded afterwards.

    ``key`` are the columns of the event's id, in order; ``source_column`` names its source (None: one source for the
    whole input); ``amount`` the column of the money and ``amount_scale`` its decimal places (None: whole cents);
    ``payload`` the columns that are compared (None: all others but ``ignore``); ``types`` the declared types of
    columns; the hashes are those of the user's SQL. ``columns`` are the payload's columns as found at the first run,
    None while that has not happened or when the fields are an open set (NDJSON without ``payload``).
    """

    key: tuple[str, ...]
    source_column: str | None = None
    amount: str | None = None
    amount_scale: int | None = None
    payload: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    effect_sha256: str | None = None
    verify_sha256: str | None = None
    canonical_version: int = CANONICAL_VERSION
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.key:
            raise ConfigurationError("an event needs a key: name the column or columns that identify it with --key")
        for name, columns in (("key", self.key), ("payload", self.payload or ()), ("ignore", self.ignore)):
            if len(set(columns)) != len(columns):
                raise ConfigurationError(f"--{name} names a column twice: {', '.join(columns)}")
        for column, declared in self.types.items():
            if declared not in COLUMN_TYPES:
                raise ConfigurationError(
                    f"column {column} is declared as {declared!r}; the types are {', '.join(COLUMN_TYPES)}"
                )
        if self.amount is None and self.amount_scale is not None:
            raise ConfigurationError("--amount-scale needs --amount: which column is the money?")
        if not 0 <= (self.amount_scale or 0) <= MAX_SCALE:
            raise ConfigurationError(f"the amount's scale is {self.amount_scale}; it must be from 0 to {MAX_SCALE}")
        clash = set(self.payload or ()) & set(self.ignore)
        if clash:
            raise ConfigurationError(f"--payload and --ignore both name {', '.join(sorted(clash))}")

    @property
    def named_columns(self) -> tuple[str, ...]:
        """Every column that the definition cannot do without, in a stable order."""
        optional = (self.source_column, self.amount)
        named = (*self.key, *(name for name in optional if name), *(self.payload or ()), *self.types)
        return tuple(dict.fromkeys(named))

    @property
    def outside_payload(self) -> frozenset[str]:
        """The columns that are never part of an open payload: they are stored elsewhere, or change by themselves."""
        return frozenset((*self.key, *self.ignore)) | {name for name in (self.source_column, self.amount) if name}

    def resolved(self, header: Sequence[str] | None) -> Definition:
        """Fix the payload's columns for an input with this header (None: records name their own fields)."""
        if self.columns is not None:
            return self
        if self.payload is not None:
            return replace(self, columns=self.payload)
        if header is None:
            return self
        return replace(self, columns=tuple(name for name in header if name not in self.outside_payload))

    def spec(self) -> dict[str, object]:
        """Return the definition as plain values for a JSON document."""
        values: dict[str, object] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            values[item.name] = list(value) if isinstance(value, tuple) else value
        values["types"] = dict(self.types)
        return values

    @classmethod
    def from_spec(cls, spec: Mapping[str, object]) -> Definition:
        """Read a definition back from what ``spec`` returned."""
        known = {item.name for item in fields(cls)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in spec.items()
        }
        return cls(**{name: value for name, value in values.items() if name in known})

    def differences(self, given: Definition) -> list[str]:
        """Say in words what another definition has otherwise; the payload's found columns are not part of it."""
        found = []
        for item in fields(self):
            stored, other = getattr(self, item.name), getattr(given, item.name)
            if item.name != "columns" and stored != other:
                found.append(f"{item.name.replace('_', ' ')}: stored {_shown(stored)}, now {_shown(other)}")
        return found

    def missing_from(self, header: Sequence[str]) -> list[str]:
        """List the columns this definition needs that a header does not have."""
        needed = dict.fromkeys((*self.named_columns, *(self.columns or ())))
        return [name for name in needed if name not in header]

    def unknown_in(self, names: Sequence[str]) -> list[str]:
        """List columns of an input that are neither compared nor ignored on purpose: new ones."""
        if self.columns is None or self.payload is not None:
            return []
        known = {*self.columns, *self.outside_payload}
        return [name for name in names if name not in known]


def _shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{kind}" for name, kind in sorted(value.items())) or "none"
    return str(value)
