"""Write src/pgonce/sql/expected_schema.txt from what the migrations make: run this after adding one."""

from __future__ import annotations

from pathlib import Path

from conftest import make_clerk
from pgonce import server
from pgonce.db import drift
from pgonce.db.schema import migrate

TARGET = Path(__file__).parents[2] / "src" / "pgonce" / "sql" / drift.EXPECTED


def main() -> None:
    """Migrate an empty database, describe it, and keep the description."""
    with server.scratch() as scratch:
        clerk = make_clerk(scratch.dsn)
        clerk.do(migrate)
        lines = clerk.do(drift.describe, commit=False)
        clerk.session.close()
    TARGET.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
