"""The reference from an effect to its event: one check a statement (``set``, the default), or a foreign key (``row``).

The check of a set costs a tenth of what COPY costs, the foreign key more than COPY itself, and it says more: it also
wants the event completed with the same amount. The foreign key is for servers on which a trigger cannot look at a set.
"""

from __future__ import annotations

from importlib.resources import files

from pgonce.db.schema import lock
from pgonce.db.statements import qualify
from pgonce.db.transaction import Transaction
from pgonce.errors import ConfigurationError

SET, ROW = "set", "row"
REFERENCES = (SET, ROW)


def check_kind(kind: str) -> None:
    """Refuse a word that is none of the two. Raises ConfigurationError."""
    if kind not in REFERENCES:
        raise ConfigurationError(f"--reference {kind}: it is one of {', '.join(REFERENCES)}")


def in_force(transaction: Transaction) -> str | None:
    """Say which of the two stands in the schema, None if neither does. Safe to re-run: it only reads."""
    found = transaction.row("find_reference", schema=transaction.schema)
    return None if found is None else str(found[0])


def switch(transaction: Transaction, kind: str) -> bool:
    """Put one in the other's place in the open transaction; say whether that was needed.

    Locks both tables until COMMIT. The foreign key looks at every effect that is there, the check of a set at none.
    Raises ConfigurationError for a word that is none of the two.
    Safe to re-run: yes; what stands is left alone.
    """
    check_kind(kind)
    lock(transaction)
    if in_force(transaction) == kind:
        return False
    transaction.connection.execute(text(kind, transaction.schema).encode())
    return True


def text(kind: str, schema: str) -> str:
    """Return the SQL that puts one in the other's place, for this schema."""
    return qualify(files("pgonce.sql").joinpath("reference", f"{kind}.sql").read_text(encoding="utf-8"), schema)
