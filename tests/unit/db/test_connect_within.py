"""How long a connection may take: libpq bounds each host by itself, so what is left is shared among them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgonce.db import connect as module
from pgonce.db.connect import Target, connect


@pytest.mark.parametrize(
    ("conninfo", "pghost", "within_s", "each_s"),
    [
        ("host=a", "", 30.0, 10),
        ("host=a", "", 6.0, 6),
        ("host=a,b,c", "", 6.0, 2),
        ("host=a,b,c", "", 9.5, 4),
        ("host=a,b", "", 1.0, 2),
        ("postgresql://u@a:1,b:2/d", "", 8.0, 4),
        ("host=a,b hostaddr=1.1.1.1", "", 6.0, 6),
        ("", "a,b,c", 9.0, 3),
        ("", "", 5.0, 5),
        ("host=a,b connect_timeout=7", "", 2.0, 2),
        ("host=a,b connect_timeout=7", "", 60.0, 7),
        ("host=a connect_timeout=0", "", 60.0, 10),
        ("host=a connect_timeout=30", "", 60.0, 30),
        ("host=a", "", 1e12, 10),
    ],
)
def test_all_hosts_share_what_is_left(
    monkeypatch: pytest.MonkeyPatch, conninfo: str, pghost: str, within_s: float, each_s: int
) -> None:
    """R1: what the user set himself holds within the deadline; libpq's least is two seconds."""
    seen: list[dict[str, Any]] = []

    def remember(conninfo: str, **_options: object) -> None:
        seen.append(conninfo_to_dict(conninfo))
        raise psycopg.OperationalError

    monkeypatch.setattr(module.psycopg, "connect", remember)
    monkeypatch.delenv("PGHOSTADDR", raising=False)
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    monkeypatch.setenv("PGHOST", pghost)
    with pytest.raises(psycopg.OperationalError):
        connect(Target(conninfo=conninfo, named_by="a test"), application="x", within_s=within_s)
    assert int(seen[0]["connect_timeout"]) == each_s
