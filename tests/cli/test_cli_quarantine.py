"""``pgonce quarantine``: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.terminal import Terminal

BAD = "id,amount,note\na,-5,x\n,3,no id\nb,7,y\na,9,other\n"


@pytest.fixture
def terminal(database: str, tmp_path: Path) -> Terminal:
    """Give a terminal on a fresh database, with one input applied: failed, rejected, good, conflict."""
    terminal = Terminal(database, tmp_path)
    assert terminal.run("bad.csv", BAD).code == 1
    return terminal


def test_list_prints_what_needs_a_person(terminal: Terminal) -> None:
    """A line each in input order; --kind narrows; the counts are of all."""
    done = terminal.pgonce("quarantine", "list", "--job", "pay")
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert lines[0] == ["run", "line", "kind", "source", "id", "cents", "reason"]
    assert [line[:3] for line in lines[1:]] == [["1", "2", "failed"], ["1", "3", "rejected"], ["1", "5", "conflict"]]
    limited = terminal.pgonce("quarantine", "list", "--job", "pay", "--limit", "1")
    assert "1 of 3 rows are listed" in limited.err
    document = terminal.pgonce("quarantine", "list", "--job", "pay", "--kind", "rejected", "--json").json
    assert (document["counts"], [row["line"] for row in document["rows"]]) == ({"rejected": 1}, [3])


def test_show_prints_the_row_or_ends_with_3(terminal: Terminal) -> None:
    """The row as it came; exit code 3 where nothing is quarantined."""
    done = terminal.pgonce("quarantine", "show", "3", "--job", "pay")
    assert (done.code, ",3,no id" in done.out) == (0, True)
    [row] = terminal.pgonce("quarantine", "show", "2", "--job", "pay", "--json").json["rows"]
    assert (row["kind"], row["payload"], row["raw"]) == ("failed", {"note": "x"}, None)
    nothing = terminal.pgonce("quarantine", "show", "4", "--job", "pay")
    assert (nothing.code, nothing.out) == (3, "")
    assert "nothing is quarantined at line 4 of job pay" in nothing.err


def test_export_writes_rows_to_be_corrected(terminal: Terminal) -> None:
    """The file has the input's header and rows; the message says which ids are taken."""
    words = ["quarantine", "export", "--job", "pay", "-o", "out.csv", "--format", "rows"]
    refused = terminal.pgonce(*words)
    assert (refused.code, "--like FILE" in refused.err) == (78, True)
    done = terminal.pgonce(*words, "--like", "bad.csv")
    assert (terminal.folder / "out.csv").read_text() == "id,amount,note\na,-5,x\n,3,no id\na,9,other\n"
    assert "1 rejected, 1 conflict, 1 failed" in done.err
    assert "ids of failed and conflicting rows are taken" in done.err


def test_export_reports_as_json(terminal: Terminal) -> None:
    """The default form; --json says how many of each kind."""
    done = terminal.pgonce("quarantine", "export", "--job", "pay", "-o", "out.ndjson", "--json")
    assert done.json == {"version": 1, "rows": {"rejected": 1, "conflict": 1, "failed": 1}, "cut_off": 0}
    lines = [json.loads(line) for line in (terminal.folder / "out.ndjson").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["failed", "rejected", "conflict"]
    assert terminal.pgonce("quarantine", "export", "--job", "pay", "-o", "no/such/folder").code == 78
