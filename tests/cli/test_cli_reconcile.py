"""``pgonce reconcile``: 0 if everything balances, 3 if not, and what is wrong by name."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from cli.terminal import Terminal


@pytest.fixture
def terminal(database: str, tmp_path: Path) -> Terminal:
    """Give a terminal on a fresh database, with one input applied."""
    terminal = Terminal(database, tmp_path)
    assert terminal.run("pay.csv", "id,amount\na,5\nb,-7\n,1\n").code == 1
    return terminal


def test_what_balances_ends_with_0(terminal: Terminal) -> None:
    """Tables for people, a document for programs, one line on stderr."""
    done = terminal.pgonce("reconcile", "--job", "pay")
    assert done.code == 0
    assert "everything balances: 1 runs, 1 sources" in done.err
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert dict(zip(lines[0], lines[1], strict=True))["balanced"] == "yes"
    document = terminal.pgonce("reconcile", "--json", "--run", "1").json
    assert (document["version"], document["balanced"], document["found"]) == (1, True, 0)
    assert document["runs"][0]["counts"]["failed"] == {"rows": 1, "cents": -7}
    assert document["sources"][0]["effects"] == {"rows": 1, "cents": 5}
    assert terminal.pgonce("reconcile", "-q").out == ""


def test_what_does_not_balance_ends_with_3_and_is_named(terminal: Terminal) -> None:
    """Exit code 3; the event and what to do are on stderr and in the document."""
    with psycopg.connect(terminal.dsn) as connection:
        connection.execute("alter table pgonce.effect disable trigger effect_reference")
        connection.execute("insert into pgonce.effect values (7, 'pay', '', 'b')")
    done = terminal.pgonce("reconcile")
    assert done.code == 3
    assert "effect_of_open_event: event 'b': the event is failed and yet there is an effect of 7 cents" in done.err
    assert "\tNO" in done.out
    document = terminal.pgonce("reconcile", "--json").json
    assert [one["kind"] for one in document["discrepancies"]] == ["source_unbalanced", "effect_of_open_event"]
    assert terminal.pgonce("reconcile", "--job", "nope").code == 78
    assert terminal.pgonce("reconcile", "--run", "9").code == 78
