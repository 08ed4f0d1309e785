"""``pgonce run`` as a process: exit codes, messages, and what is safe to run again."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cli.invoked import COMMAND_S_MAX, Command, Ended
from database.jobs import until

JOB = ("--job", "pay", "--key", "id", "--amount", "amount")


@pytest.fixture
def pgonce(database: str, tmp_path: Path) -> Command:
    """Give the command on a fresh database, in a fresh folder."""
    return Command(database, tmp_path)


def sql(pgonce: Command, text: str) -> list[tuple[Any, ...]]:
    """Run SQL beside the command."""
    with psycopg.connect(pgonce.dsn) as connection:
        cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else []


def effects(pgonce: Command) -> tuple[Any, ...]:
    """Return number and sum of the effects."""
    return sql(pgonce, "select count(*), coalesce(sum(amount_cents), 0)::bigint from pgonce.effect")[0]


def test_a_second_run_changes_nothing_and_says_so(pgonce: Command) -> None:
    """Exit 0 both times; the totals are on stdout, the words on stderr, and the money is there once."""
    name = pgonce.csv("a,100,x", "b,250,x")
    first, second = pgonce("run", name, *JOB), pgonce("run", name, *JOB)
    assert (first.code, second.code) == (0, 0)
    assert "applied\t2\t350\t2\t350" in first.out
    assert "running it again changes nothing" in first.err
    assert "already\t2\t350\t0\t0" in second.out
    assert "everything was applied already, nothing was changed" in second.err
    assert effects(pgonce) == (2, 350)


def test_another_definition_is_refused_naming_what_differs(pgonce: Command) -> None:
    """78, with the stored and the given value, and what to do."""
    name = pgonce.csv("a,100,x")
    assert pgonce("run", name, *JOB).code == 0
    found = pgonce("run", name, "--job", "pay", "--key", "id,note", "--amount", "amount")
    assert found.code == 78
    assert "key: stored id, now id,note" in found.err
    assert "pgonce job change pay" in found.err


def test_content_of_another_job_is_refused_unless_it_is_meant(pgonce: Command) -> None:
    """A typo in the job's name must not apply everything twice: 78 naming the run; --also says that it is meant."""
    name = pgonce.csv("a,100,x")
    assert pgonce("run", name, *JOB).code == 0
    other = ("run", name, "--job", "pya", "--key", "id", "--amount", "amount")
    refused = pgonce(*other)
    assert refused.code == 78
    assert "already taken by run 1" in refused.err
    assert "job 'pay', now 'pya'" in refused.err
    assert effects(pgonce) == (1, 100)
    assert pgonce(*other, "--also").code == 0
    assert effects(pgonce) == (2, 200)


def test_other_content_under_a_known_name_is_said(pgonce: Command) -> None:
    """The changed file is a run of its own; the note says so and what it was before."""
    assert pgonce("run", pgonce.csv("a,100,x"), *JOB).code == 0
    found = pgonce("run", pgonce.csv("a,100,x", "b,1,x"), *JOB, "--json")
    assert found.code == 0
    assert "has other content than when it was last read (run 1, finished)" in found.err
    assert found.json["this_start"]["already"]["rows"] == 1


def test_the_source_may_come_from_a_column(pgonce: Command) -> None:
    """The same id from two sources is two events."""
    name = pgonce.csv("a,1,x", "a,2,y", "a,1,x")
    found = pgonce("run", name, *JOB, "--source-column", "note", "--json")
    assert (found.code, found.json["whole_run"]["applied"]["rows"]) == (0, 2)
    assert sql(pgonce, "select source, event_id from pgonce.event order by 1") == [("x", "a"), ("y", "a")]
    both = pgonce("run", name, *JOB, "--source-column", "note", "--source", "z")
    assert both.code == 78
    assert "--source-column" in both.err


@pytest.mark.parametrize("option", ["--key", "--amount", "--source-column", "--payload", "--types"])
def test_an_unknown_column_is_refused_naming_those_there_are(pgonce: Command, option: str) -> None:
    """78 before anything is stored."""
    values = {"--key": "id", "--amount": "amount"} | {option: "price:int" if option == "--types" else "price"}
    words = [word for pair in values.items() for word in pair]
    found = pgonce("run", pgonce.csv("a,1,x"), "--job", "pay", *words)
    assert found.code == 78
    assert "no column 'price'; its columns are 'id', 'amount', 'note'" in found.err
    assert sql(pgonce, "select * from pgonce.job") == []


def test_standard_input_is_the_same_content_as_the_file(pgonce: Command) -> None:
    """`-` reads standard input; its content is recognised under whatever name."""
    name = pgonce.csv("a,100,x")
    data = (pgonce.folder / name).read_bytes()
    piped = pgonce("run", "-", *JOB, stdin=data)
    assert (piped.code, effects(pgonce)) == (0, (1, 100))
    assert "recognised as finished" in pgonce("run", name, *JOB).out


def test_the_keys_of_the_json_are_stable(pgonce: Command) -> None:
    """Scripts depend on them: adding a key is allowed, renaming one is not."""
    found = pgonce("run", pgonce.csv("a,1,x", ",2,x"), *JOB, "--json")
    assert found.code == 1
    assert list(found.json) == [
        "version", "job", "run", "start", "kind", "input", "source", "database", "checkpoint", "shortcut", "this_start",
        "whole_run", "notes", "exit_code", "used_up",
    ]  # fmt: skip
    counts = ["read", "applied", "adopted", "already", "failed", "conflict", "rejected", "pending"]
    assert list(found.json["whole_run"]) == counts
    assert all(set(value) == {"rows", "cents"} for value in found.json["whole_run"].values())
    assert (found.json["version"], found.json["exit_code"], found.json["whole_run"]["rejected"]["rows"]) == (1, 1, 1)


def test_quiet_says_nothing(pgonce: Command) -> None:
    """-q leaves nothing on stderr, and on stdout only what was asked for as JSON."""
    name = pgonce.csv("a,1,x")
    assert pgonce("run", name, *JOB, "-q") == Ended(0, "", "")
    assert pgonce("run", name, *JOB, "-q", "--json").json["shortcut"] is True


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("run", "in.csv"),
        ("run", "in.csv", *JOB, "--nonsense"),
        ("run", "in.csv", *JOB, "--chunk-rows", "many"),
        ("run", "in.csv", *JOB, "--types", "amount"),
        ("run", "in.csv", *JOB, "--checkpoint", "never"),
        ("run", "in.csv", *JOB, "--dry-run", "--report", "out.ndjson"),
        ("run", "in.csv", *JOB, "--json", "--report", "-"),
        ("nonsense",),
    ],
)
def test_wrong_usage_exits_2(pgonce: Command, words: tuple[str, ...]) -> None:
    """Usage errors are told from everything else, and touch nothing."""
    pgonce.csv("a,1,x")
    found = pgonce(*words, on_database=words[0] != "nonsense")
    assert found.code == 2
    assert "Error:" in found.err
    assert sql(pgonce, "select * from pgonce.job") == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("missing.csv", *JOB), 78, "missing.csv: no such file"),
        (("in.csv", *JOB, "--chunk-rows", "0"), 78, "--chunk-rows 0"),
        (("in.csv", *JOB, "--effect", "missing.sql"), 78, "missing.sql cannot be read"),
        (("in.csv", *JOB, "--report", "missing/out.ndjson"), 78, "row report missing/out.ndjson cannot be written"),
        (("in.csv", *JOB, "--schema", "nothing"), 78, "no schema 'nothing'"),
    ],
)
def test_what_does_not_fit_together_exits_78(pgonce: Command, words: tuple[str, ...], code: int, said: str) -> None:
    """Before anything is stored, and saying which option or path it was."""
    pgonce.csv("a,1,x")
    found = pgonce("run", *words)
    assert found.code == code
    assert said in found.err
    assert sql(pgonce, "select * from pgonce.job") == []


def stopped_inside(pgonce: Command, number: int, *words: str, times: int = 1) -> Ended:
    """Start a run whose second chunk waits for a lock of the test, signal it there, then let it go on."""
    (pgonce.folder / "wait.sql").write_text(
        "select case when exists (select from chunk where event_id = '3') then pg_advisory_xact_lock_shared(7) end\n"
    )
    with psycopg.connect(pgonce.dsn) as connection:
        connection.execute("select pg_advisory_xact_lock(7)")
        waiting = f"select pid from pg_stat_activity where {connection.info.backend_pid} = any(pg_blocking_pids(pid))"
        with pgonce.started("run", *words, "--effect", "wait.sql", "--chunk-rows", "2") as process:
            assert process.stderr is not None
            until(lambda: sql(pgonce, waiting), "a chunk that waits")
            process.send_signal(number)
            heard = b""
            while b"stopping after this chunk" not in heard:
                heard += process.stderr.readline()
            for _ in range(times - 1):
                process.send_signal(number)
                process.wait(COMMAND_S_MAX)
            connection.rollback()
            out, err = process.communicate(timeout=COMMAND_S_MAX)
    return pgonce.ended(process, out, heard + err)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_ends_the_chunk_and_the_same_command_goes_on(
    pgonce: Command, number: signal.Signals, code: int
) -> None:
    """The chunk in hand is committed, the exit code names the signal, and the next start resumes from there."""
    name = pgonce.csv(*(f"{n},{n},x" for n in range(1, 8)))
    found = stopped_inside(pgonce, number, name, *JOB)
    assert found.code == code
    assert "safe to run again" in found.err
    assert effects(pgonce) == (4, 10)
    again = pgonce("run", name, *JOB, "--effect", "wait.sql", "--json")
    assert again.code == 0
    assert (again.json["start"], again.json["this_start"]["read"]["rows"]) == (2, 3)
    assert effects(pgonce) == (7, 28)


def test_the_second_signal_ends_the_process_at_once(pgonce: Command) -> None:
    """What was committed stays, the open chunk is rolled back by the server, and the same command goes on."""
    name = pgonce.csv(*(f"{n},{n},x" for n in range(1, 8)))
    found = stopped_inside(pgonce, signal.SIGINT, name, *JOB, times=2)
    assert found.code == 130
    assert effects(pgonce) == (2, 3)
    assert pgonce("run", name, *JOB, "--effect", "wait.sql").code == 0
    assert effects(pgonce) == (7, 28)


def test_a_dry_run_says_what_would_be_and_stores_nothing(pgonce: Command) -> None:
    """The counts and exit code of the run; what a rollback does not undo; nothing stored."""
    name = pgonce.csv("a,1,x", "a,2,x")
    found = pgonce("run", name, *JOB, "--dry-run")
    assert found.code == 1
    assert "dry run: rolled back" in found.out
    assert "sequences" in found.err
    assert "NOTIFY was not sent" in found.err
    told = pgonce("run", name, *JOB, "--dry-run", "--json").json
    assert (told["dry_run"], told["whole_run"]["conflict"]["rows"]) == (True, 1)
    for table in ("job", "run", "start", "event", "finding"):
        assert sql(pgonce, f"select * from pgonce.{table}") == []


def test_the_row_report_is_the_same_for_every_start(pgonce: Command) -> None:
    """Written after the run and again by the shortcut; a file and standard output get the same bytes."""
    name = pgonce.csv("a,1,x", "a,2,x", "b,2,x")
    assert pgonce("run", name, *JOB, "--report", "one.ndjson").code == 1
    assert pgonce("run", name, *JOB, "--report", "two.ndjson").code == 1
    printed = pgonce("run", name, *JOB, "--report", "-")
    one = (pgonce.folder / "one.ndjson").read_text()
    assert one == (pgonce.folder / "two.ndjson").read_text() == printed.out
    assert [json.loads(line)["result"] for line in one.splitlines()] == ["applied", "conflict", "applied"]
    assert "for a person to look at" in printed.err


def test_a_report_that_cannot_be_written_is_not_silent(pgonce: Command) -> None:
    """The run is complete and its totals are printed, but 75 says that something is left to do; even when quiet."""
    name = pgonce.csv("a,1,x")
    found = pgonce("run", name, *JOB, "--report", "/dev/full")
    assert found.code == 75
    assert "applied\t1\t1\t1\t1" in found.out
    assert "the run is complete, but its row report /dev/full could not be written" in found.err
    assert "No space left" in pgonce("run", name, *JOB, "--report", "/dev/full", "-q").err
    assert pgonce("run", name, *JOB, "--report", "out.ndjson").code == 0


def test_a_reader_that_leaves_early_is_no_traceback(pgonce: Command) -> None:
    """`pgonce run --report - | head -1`: the run is complete, and the exit code says that the report is not."""
    name = pgonce.csv(*(f"{n},1,{'x' * 500}" for n in range(1000)))
    with pgonce.started("run", name, *JOB, "--report", "-") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        process.wait(COMMAND_S_MAX)
    assert pgonce.ended(process, b"", err).code == 75
    assert effects(pgonce)[0] == 1000


def test_an_interrupt_while_standard_input_is_read_applies_nothing(pgonce: Command) -> None:
    """Ctrl-C before the first chunk: 130, no traceback, and nothing of the input is applied."""
    name = pgonce.csv("a,1,x")
    with pgonce.started("run", "-", *JOB) as process:
        assert process.stdin is not None
        process.stdin.write((pgonce.folder / name).read_bytes())
        process.stdin.flush()
        until(lambda: _caught(process), "a command that catches SIGINT")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=COMMAND_S_MAX)
    assert pgonce.ended(process, out, err).code == 130
    assert effects(pgonce) == (0, 0)


def _caught(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether a process has a handler for SIGTERM, which only our command sets."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (mask,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(mask & (1 << (signal.SIGTERM - 1)))


def test_a_database_that_does_not_answer_is_said_early_and_the_wait_can_be_ended(pgonce: Command) -> None:
    """L6: nobody waits for half a minute without a word, and a signal ends the wait."""
    name = pgonce.csv("a,1,x")
    with pgonce.started("run", name, *JOB, "--dsn", f"host={pgonce.folder}", on_database=False) as process:
        assert process.stderr is not None
        said = [process.stderr.readline().decode() for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=COMMAND_S_MAX)
    assert "cannot connect yet" in said[1]
    assert process.returncode == 143
    assert b"Traceback" not in rest
