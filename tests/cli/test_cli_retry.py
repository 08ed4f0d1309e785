"""``pgonce retry``, ``pgonce resolve`` and the options of ``pgonce run`` for trying again, as processes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cli.invoked import Ended
from cli.terminal import Terminal
from pgonce.cli.options import place_options
from pgonce.errors import OutcomeUnknown

EFFECT = "insert into public.log select event_id from chunk;\n"
SCHEMA = """
create table public.account (id text primary key);
insert into public.account values ('1');
create table public.log (event_id text constraint log_account_fkey references public.account);
create table public.closed (at timestamptz);
create function public.not_now() returns trigger language plpgsql as $$
begin
    if new.event_id = '2' and exists (select from public.closed) then
        raise exception 'the account is busy' using errcode = '40001';
    end if;
    return new;
end $$;
create trigger t before insert on public.log for each row execute function public.not_now();
"""
PAY = ("--job", "pay", "--key", "id", "--amount", "amount", "--effect", "effect.sql", "--backoff", "0.001")


@pytest.fixture
def terminal(database: str, tmp_path: Path) -> Terminal:
    """Give a terminal on a database with accounts, of which one is busy, and an input of two rows."""
    terminal = Terminal(database, tmp_path)
    sql(terminal, SCHEMA)
    (tmp_path / "effect.sql").write_text(EFFECT)
    (tmp_path / "in.csv").write_text("id,amount,note\n1,10,x\n2,20,x\n")
    return terminal


def sql(terminal: Terminal, text: str) -> list[tuple[Any, ...]]:
    """Run SQL beside the command."""
    with psycopg.connect(terminal.dsn) as connection:
        cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else []


def run(terminal: Terminal, *options: str) -> Ended:
    """Run the job over the input."""
    return terminal.pgonce("run", "in.csv", *PAY, *options)


def use_up(terminal: Terminal) -> None:
    """Let one start use up the budget of event 2."""
    sql(terminal, "insert into public.account values ('2'); insert into public.closed values (now())")
    done = run(terminal, "--attempts", "9")
    assert done.code == 75
    assert "1 event pending, every other row is settled; running again is safe. A person is needed" in done.err
    assert "1 pending event of this job used up the attempts of all starts" in done.err
    assert "pgonce retry --pending --job pay --why TEXT --dsn" in done.err


def test_a_grant_is_given_once_and_the_same_run_uses_it(terminal: Terminal) -> None:
    """R4: granted, said how much; a second call says that there are attempts left; then the same run applies it."""
    use_up(terminal)
    first = terminal.pgonce("retry", "--pending", "--why", "open again")
    assert first.code == 0
    assert "1 event of job pay may be tried 3 times more" in first.err
    assert "Hand in the same inputs again" in first.err
    second = terminal.pgonce("retry", "--pending", "--why", "open again")
    assert second.code == 0
    assert "no used-up event of job pay: nothing was changed. Pending with attempts left: 1 event" in second.err
    shown = terminal.pgonce("events", "get", "2", "--job", "pay")
    assert "attempts:    9, 3 granted beyond the job's budget" in shown.out
    assert "granted 3 attempts by" in shown.out
    sql(terminal, "delete from public.closed")
    assert run(terminal).code == 0
    assert sorted(sql(terminal, "select event_id from public.log")) == [("1",), ("2",)]
    third = terminal.pgonce("retry", "--pending", "--why", "open again")
    assert third.code == 3
    assert "no used-up event of job pay, and none that is pending: there is nothing to try again" in third.err
    assert run(terminal, "--json").json["shortcut"]


def test_a_grant_for_programs(terminal: Terminal) -> None:
    """--json: one document with stable keys, for a bulk and for ids."""
    use_up(terminal)
    bulk = terminal.pgonce("retry", "--pending", "--job", "pay", "--run", "1", "--budget", "5", "--why", "w", "--json")
    assert bulk.json == {
        "version": 1, "job": "pay", "run": 1, "source": None, "granted": 1, "budget": 5, "reopened": 0, "waiting": 1,
        "events": [],
    }  # fmt: skip
    named = terminal.pgonce("retry", "2", "1", "--job", "pay", "--why", "w", "--json")
    assert named.code == 0
    waiting = {"event_id": "2", "action": "waiting", "status": "pending", "attempts_left": 5, "line": 3}
    final = {"event_id": "1", "action": "final", "status": "completed", "attempts_left": 0, "line": 2}
    assert named.json["events"] == [{**one, "source": "", "run": 1} for one in (waiting, final)]
    history = terminal.pgonce("events", "get", "2", "--job", "pay", "--json").json["history"]
    assert [(step["action"], step["granted"], step["why"]) for step in history] == [("granted", 5, "w")]


def test_failed_events_are_reopened(terminal: Terminal) -> None:
    """--failed does for all of a job what events reopen does for one; an id does what the event needs."""
    assert run(terminal).code == 1
    done = terminal.pgonce("retry", "--failed", "--why", "the account is there")
    assert (done.code, "1 event of job pay failed and may be tried again, with all attempts" in done.err) == (0, True)
    assert terminal.pgonce("retry", "--failed", "--why", "the account is there").code == 0
    assert run(terminal).code == 1
    named = terminal.pgonce("retry", "2", "--why", "now it is")
    assert (named.code, "event '2' failed and is reopened: it may be tried 9 times" in named.err) == (0, True)
    sql(terminal, "insert into public.account values ('2')")
    assert run(terminal).code == 0
    final = terminal.pgonce("retry", "2", "--why", "again")
    assert (final.code, "event '2' is completed and final" in final.err) == (3, True)
    assert terminal.pgonce("reconcile").code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["--pending", "--failed"], 2),
        (["2", "--pending"], 2),
        (["2", "--run", "1"], 2),
        (["--failed", "--budget", "2"], 2),
        (["--pending", "--budget", "0"], 2),
        (["--pending", "--budget", "1001"], 2),
        (["nope"], 3),
        (["--pending", "--run", "99"], 3),
        (["--pending", "--job", "nope"], 78),
    ],
)
def test_what_makes_no_sense_or_is_not_there_changes_nothing(terminal: Terminal, words: list[str], code: int) -> None:
    """2 for usage, 3 for what is not found, 78 for a job that is not there."""
    use_up(terminal)
    assert terminal.pgonce("retry", *words, "--why", "w").code == code
    assert terminal.pgonce("retry", "--pending").code == 2
    assert sql(terminal, "select * from pgonce.event_history") == []


def test_a_run_tries_again_what_it_is_asked_to(terminal: Terminal) -> None:
    """--retry-on: final without it, retried with it and said so; the same seed and waits are taken."""
    asked = ("--retry-on", "23503=2", "--retry-on", "P0001", "--attempts", "5", "--seed", "7", "-v")
    done = run(terminal, *asked)
    assert done.code == 1
    retried = [line for line in done.err.splitlines() if "23503" in line]
    assert len(retried) >= 2
    assert sql(terminal, "select attempts from pgonce.event where event_id = '2'") == [(3,)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--retry-on", "23503=x"), "write CODE, or CODE=N"),
        (("--retry-on", "40001"), "tried again without being asked"),
        (("--retry-on", "40003"), "in doubt"),
        (("--retry-on", "nonsense"), "write the SQLSTATE"),
        (("--retry-on", "pgonce.effect_pkey"), "that is a key of pgonce"),
        (("--retry-on", "23503", "--retry-on", "23503"), "names 23503 twice"),
        (("--backoff", "x"), "write FIRST or FIRST,CAP"),
        (("--backoff", "2,1"), "cannot be used"),
        (("--attempts", "0"), "--attempts 0"),
        (("--deadline", "0"), "--deadline 0.0"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_before_anything_is_stored(
    terminal: Terminal, options: tuple[str, ...], words: str
) -> None:
    """78, and what to write instead; not even the job is there."""
    done = run(terminal, *options)
    assert (done.code, words in done.err) == (78, True), done.err
    assert sql(terminal, "select * from pgonce.job") == []


def test_resolve_says_how_far_a_run_is(terminal: Terminal) -> None:
    """Lines for people, a document for programs; 3 for a run that is not there, 2 for a chunk of none."""
    assert run(terminal).code == 1
    nothing = terminal.pgonce("resolve")
    assert (nothing.code, nothing.out, "nothing is in doubt: every start has ended" in nothing.err) == (0, "", True)
    shown = terminal.pgonce("resolve", "1", "--chunk", "1")
    assert shown.code == 0
    for words in (
        "run:         1 (job pay, in.csv)", "start:       1, finished", "settled:     up to line 3, byte 29 of 29",
        "outcome:     chunk 1 was committed", "next:        nothing; the run is finished",
    ):  # fmt: skip
        assert words in shown.out
    document = terminal.pgonce("resolve", "1", "--start", "1", "--chunk", "3", "--json").json
    [one] = document["runs"]
    assert (document["version"], one["established"], one["committed"], one["lines"]) == (1, True, False, 3)
    assert terminal.pgonce("resolve", "9").code == 3


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--chunk", "3"), 0, "chunk 3 was not committed: it was rolled back, or never sent"),
        (("--chunk", "4"), 3, "chunk 4 is not stored, and comes after one that is not: either the number is wrong, or"),
        (("--start", "7"), 3, "start:       7, not stored"),
        (("--start", "7", "--chunk", "1"), 3, "chunk 1 is not stored"),
    ],
)
def test_resolve_does_not_call_rolled_back_what_was_never_sent(
    terminal: Terminal, words: tuple[str, ...], code: int, says: str
) -> None:
    """R3: only the chunk after the last committed one can have been in doubt; another number has its own answer."""
    assert run(terminal).code == 1
    found = terminal.pgonce("resolve", "1", *words)
    assert found.code == code
    assert says in found.out
    assert terminal.pgonce("resolve", "--chunk", "1").code == 2
    assert terminal.pgonce("resolve", "1", "--deadline", "0").code == 78


def test_resolve_that_cannot_tell_ends_with_77_and_what_to_look_up(terminal: Terminal) -> None:
    """77 again: who holds the row is named, also in the document; nothing was written."""
    assert run(terminal).code == 1
    with psycopg.connect(terminal.dsn) as holder:
        holder.execute("update pgonce.start set moved_at = moved_at")
        done = terminal.pgonce("resolve", "1", "--deadline", "0.5")
        assert done.code == 77
        assert f"backend {holder.info.backend_pid} (see pg_stat_activity" in done.out
        assert "outcome unknown: run 1; it is settled neither way yet" in done.err
        document = terminal.pgonce("resolve", "1", "--deadline", "0.5", "--json", "--quiet")
        assert (document.code, document.json["runs"][0]["established"]) == (77, False)


def test_the_command_in_a_message_leads_to_the_same_database() -> None:
    """What finds out about a doubt repeats the place it arose in, without the password, so that it can be pasted."""

    def unresolved(**_values: object) -> None:
        raise OutcomeUnknown("nobody knows.", command="pgonce resolve 1 --start 1 --chunk 2")

    values = {"dsn": "host=h dbname=d password=x", "embedded": True, "schema": "other", "as_json": False}
    with pytest.raises(OutcomeUnknown) as caught:
        place_options(unresolved)(quiet=False, verbose=False, **values)
    told = str(caught.value)
    assert told.startswith("nobody knows. What became of it: pgonce resolve 1 --start 1 --chunk 2 --dsn ")
    assert told.endswith(" --embedded --schema other")
    assert "password" not in told


@pytest.mark.timeout(25)
def test_the_deadline_of_a_start_bounds_what_comes_before_its_first_chunk(terminal: Terminal) -> None:
    """R1: registering waits for a lock no longer than --deadline; its own patience would be half a minute."""
    with psycopg.connect(terminal.dsn) as other:
        other.execute("lock table pgonce.job in access exclusive mode")
        done = run(terminal, "--deadline", "1")
    assert done.code == 75, done.err
    assert run(terminal).code == 1


@pytest.mark.timeout(25)
def test_the_deadline_of_a_start_bounds_the_opening(tmp_path: Path) -> None:
    """R1: a server that accepts and never answers is given up at the deadline, with the code of one out of reach."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        terminal = Terminal(f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/none", tmp_path)
        (tmp_path / "in.csv").write_text("id,amount\n1,10\n")
        (tmp_path / "effect.sql").write_text(EFFECT)
        done = run(terminal, "--deadline", "1")
    assert done.code == 69, done.err
