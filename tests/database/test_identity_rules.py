"""What is the same event and what is not: identity, replays and conflicts, through a whole run."""

from __future__ import annotations

import pytest

from database.jobs import Desk, in_thread, make_order, soon, until_blocked
from pgonce.engine.job import find
from pgonce.engine.register import Identity, register
from pgonce.errors import ConfigurationError, ContentTaken, DefinitionChanged
from pgonce.model.identity import fingerprint
from pgonce.sources import open_input

SIZES = [1, 2, 3, 1000]


def test_csv_7_and_json_7_are_one_event_and_007_is_another(desk: Desk) -> None:
    """I1: the id is text; a JSON integer is its decimal digits; leading zeros are kept."""
    desk.run(desk.csv([(7, 100), ("007", 20)], header="id,amount"))
    report = desk.run(desk.ndjson([{"id": 7, "amount": 100}, {"id": "7", "amount": 100}, {"id": "07", "amount": 3}]))
    assert desk.effects() == {"007": 20, "07": 3, "7": 100}
    assert (report.start.already.rows, report.start.applied.rows) == (2, 1)


def test_several_key_columns_are_an_array_in_the_order_stored_with_the_job(desk: Desk) -> None:
    """I1: ("a", "b,c") and ("a,b", "c") are two events, and the order of columns in a file does not matter."""
    first = desk.text('bank,no,amount\na,"b,c",1\n"a,b",c,2\n', name="one.csv")
    desk.run(first, key=("bank", "no"))
    assert desk.effects() == {'["a","b,c"]': 1, '["a,b","c"]': 2}
    turned = desk.text('amount,no,bank\n1,"b,c",a\n', name="two.csv")
    assert desk.run(turned, key=("bank", "no")).start.already.rows == 1
    with pytest.raises(DefinitionChanged, match="key: stored bank,no, now no,bank"):
        desk.run(desk.csv([("x", "y", 1)], header="bank,no,amount"), key=("no", "bank"))


@pytest.mark.parametrize(
    ("written", "word"), [(" 7", "blank"), ("7 ", "blank"), ("", "empty"), ("x" * 513, "512 bytes"), ("é" * 257, "512")]
)
def test_an_id_that_is_no_id_is_rejected_by_its_line(desk: Desk, written: str, word: str) -> None:
    """I1, F3: blank ends, an empty id and more than 512 bytes are refused; nothing is trimmed; others are applied."""
    report = desk.run(desk.csv([("a", 1), (written, 5), ("b", 2)], header="id,amount"))
    assert desk.effects() == {"a": 1, "b": 2}
    [(line, kind, reason)] = desk.findings()
    assert (line, kind) == (3, "rejected")
    assert word in reason
    assert (report.run.read.rows, report.run.read.cents, report.run.rejected.rows) == (3, 3, 1)


def test_an_id_of_exactly_512_bytes_is_taken_and_compared_bytewise(desk: Desk) -> None:
    """I1: the limit is inclusive; upper and lower case are two ids; both Unicode spellings of a letter are one."""
    desk.run(desk.csv([("x" * 512, 1), ("a", 2), ("A", 3), ("\u00e9", 4), ("e\u0301", 4)], header="id,amount"))
    assert desk.effects() == {"x" * 512: 1, "a": 2, "A": 3, "\u00e9": 4}


def test_the_source_is_part_of_the_identity(desk: Desk) -> None:
    """I1, R57: one id from two sources is two events; a source comes from a column or is given, never from a path."""
    desk.run(desk.csv([("n", 7, 1), ("s", 7, 2), ("n", 7, 1)], header="shop,id,amount"), source_column="shop")
    assert desk.sql("select source, event_id, amount_cents from pgonce.effect order by 1") == [
        ("n", "7", 1),
        ("s", "7", 2),
    ]
    desk.run(desk.csv([(7, 1)], header="id,amount"), job="other")
    assert desk.one("select source from pgonce.event where job = 'other'") == ""


def test_a_replay_answers_with_the_stored_result_and_changes_nothing(desk: Desk) -> None:
    """I2, I7, Q66: completed and failed answer as they did first, from another file and under another name."""
    desk.run(desk.csv([(1, 100, "x"), (2, -5, "y")]))
    before = desk.everything()
    report = desk.run(desk.csv([(2, -5, "y"), (1, 100, "x"), (1, 100, "x")]))
    assert desk.everything() == before
    assert (report.start.already.rows, report.start.failed.rows, report.start.failed.cents) == (2, 1, -5)
    assert report.exit_code == 1


def prune(desk: Desk) -> None:
    """Prune as the command does: payload and error go, the fingerprint stays."""
    for event_id, payload, amount in desk.sql("select event_id, payload, amount_cents from pgonce.event"):
        desk.sql(
            "update pgonce.event set status = 'pruned', payload = null, fingerprint = %s where event_id = %s",
            fingerprint(payload, amount),
            event_id,
        )


@pytest.mark.parametrize("state", ["completed", "failed", "pending"])
@pytest.mark.parametrize("changed", ["amount", "note"])
@pytest.mark.parametrize("same_input", [False, True])
def test_another_payload_is_a_conflict_in_every_state(desk: Desk, state: str, changed: str, same_input: bool) -> None:
    """I3, Q61, Q65: it names the field, both values, and when and from where the first came; the event stays."""
    if state != "completed":
        desk.sql("alter table pgonce.effect add constraint no_13 check (amount_cents <> 13)")
    if state == "pending":
        desk.sql(RAISING_40001)
    first, other = (1, 13, "old"), (1, 14 if changed == "amount" else 13, "new" if changed == "note" else "old")
    if same_input:
        report = desk.run(desk.csv([first, (2, 5, "z"), other], name="a.csv"), attempts=1)
    else:
        desk.run(desk.csv([first, (2, 5, "z")], name="a.csv"), attempts=1)
        report = desk.run(desk.csv([other], name="b.csv"), attempts=1)
    assert desk.statuses() == {"1": state, "2": "completed"}
    [(_, kind, reason)] = desk.findings()
    assert kind == "conflict"
    values = ("amount: stored 13, now 14") if changed == "amount" else 'note: stored "old", now "new"'
    assert values in reason
    assert "a.csv line 2 (run 1, 20" in reason
    assert report.start.conflict.rows == 1
    desk.sound()


RAISING_40001 = """
create function pgonce_40001() returns trigger language plpgsql as $$
begin
    if new.amount_cents = 13 then raise exception 'try later' using errcode = '40001'; end if;
    return new;
end $$;
create trigger t before insert on pgonce.effect for each row execute function pgonce_40001()
"""


def test_a_pruned_event_is_never_applied_again_and_still_tells_a_conflict(desk: Desk) -> None:
    """I8, I3: its replay is `already`; another payload is a conflict with both fingerprints."""
    desk.run(desk.csv([(1, 100, "x"), (2, 50, "y")]))
    prune(desk)
    assert desk.statuses() == {"1": "pruned", "2": "pruned"}
    report = desk.run(desk.csv([(2, 50, "y"), (1, 100, "other")]))
    assert (report.start.already.rows, report.start.conflict.rows, report.start.applied.rows) == (1, 1, 0)
    [(_, _, reason)] = desk.findings()
    assert fingerprint('["x"]', 100).hex() in reason
    assert fingerprint('["other"]', 100).hex() in reason
    assert desk.effects() == {"1": 100, "2": 50}


def test_redacted_fields_are_named_without_their_values(desk: Desk) -> None:
    """I3: --redact hides values in what is kept and shown; long values are shortened to 80 characters."""
    desk.run(desk.csv([(1, 1, "secret-one", "a" * 300)], header="id,amount,card,text"))
    desk.run(desk.csv([(1, 1, "secret-two", "b" * 300)], header="id,amount,card,text"), redact=["card"])
    [(_, _, reason)] = desk.findings()
    assert "card: stored (redacted), now (redacted)" in reason
    assert "secret" not in reason
    assert "a" * 70 in reason
    assert "a" * 90 not in reason


@pytest.mark.parametrize("chunk_rows", SIZES)
@pytest.mark.parametrize("checkpoint", ["chunk", "all"])
def test_the_first_in_input_order_counts_whatever_the_chunks(desk: Desk, chunk_rows: int, checkpoint: str) -> None:
    """I4: a second mention is a replay or a conflict, in the same chunk, a later one, or the whole file at once."""
    rows = [("b", 2, "y"), ("a", 1, "x"), ("b", 2, "y"), ("a", 9, "x"), ("c", 3, "z"), ("a", 1, "x")]
    report = desk.run(desk.csv(rows), chunk_rows=chunk_rows, checkpoint=checkpoint, on_error="quarantine")
    assert desk.effects() == {"a": 1, "b": 2, "c": 3}
    assert dict(desk.sql("select event_id, line from pgonce.event")) == {"b": 2, "a": 3, "c": 6}
    assert [(line, kind) for line, kind, _ in desk.findings()] == [(5, "conflict")]
    counts = report.run
    assert (counts.applied.rows, counts.already.rows, counts.conflict.rows) == (3, 2, 1)
    assert counts.balanced
    assert counts.read.cents == 18


def test_equal_payloads_are_equal_however_they_are_written(desk: Desk) -> None:
    """I5, Q65: key order, number forms, null and missing, and composed letters do not make a conflict."""
    desk.run(desk.ndjson(['{"id":1,"amount":5,"a":1.0,"b":null,"c":"\u00e9"}']))
    report = desk.run(desk.ndjson(['{"c":"e\u0301","a":1,"amount":5,"id":"1"}']))
    assert (report.start.already.rows, report.start.conflict.rows) == (1, 0)
    assert desk.run(desk.ndjson(['{"id":1,"amount":5,"a":"1","c":"\u00e9"}'])).start.conflict.rows == 1


@pytest.mark.parametrize("written", ["9223372036854775808", "1e3", "12.5", "", "1,000", "NaN"])
def test_an_amount_that_is_not_whole_cents_is_rejected(desk: Desk, written: str) -> None:
    """I6: overflow and anything that is not an exact number of cents is a clear finding, never a rounded amount."""
    report = desk.run(desk.text(f'id,amount\n1,"{written}"\n2,9223372036854775807\n', name="a.csv"))
    assert desk.effects() == {"2": 2**63 - 1}
    assert report.run.rejected.rows == 1
    assert "amount" in desk.findings()[0][2]


def test_sums_beyond_64_bits_are_counted_exactly(desk: Desk) -> None:
    """I6: the amounts of a run may add up to more than one amount can be."""
    report = desk.run(desk.csv([(number, 2**63 - 1) for number in range(4)], header="id,amount"), chunk_rows=2)
    assert report.run.read.cents == report.run.applied.cents == 4 * (2**63 - 1)


def test_an_amended_event_is_a_replay_of_both_what_it_was_and_what_it_is(desk: Desk) -> None:
    """I7: the amended payload is applied; the row as it first came stays a replay; a third one is a conflict."""
    path = desk.csv([(1, -5, "x")])
    desk.run(path)
    desk.amend("1", 5)
    assert desk.run(path).start.applied.rows == 1
    assert desk.effects() == {"1": 5}
    assert desk.run(desk.csv([(1, 5, "x"), (1, -5, "x"), (1, 6, "x")])).start.conflict.rows == 1


def test_another_definition_under_the_same_name_is_refused_naming_what_differs(desk: Desk) -> None:
    """I9: key, amount, payload, source rule, types and the effect's hash are stored and guarded."""
    path = desk.csv([(1, 5, "x")])
    desk.run(path, effect="select 1")
    for options, word in [
        ({"key": ("note",)}, "key: stored id, now note"),
        ({"amount": None}, "amount: stored amount, now none"),
        ({"amount_scale": 2}, "amount scale: stored none, now 2"),
        ({"payload": ("note",)}, "payload: stored none, now note"),
        ({"ignore": ("note",)}, "ignore: stored none, now note"),
        ({"types": {"note": "int"}}, "types: stored none, now note:int"),
        ({"source_column": "note"}, "source column: stored none, now note"),
        ({"effect": "select 2"}, "effect sha256"),
    ]:
        with pytest.raises(DefinitionChanged) as caught:
            desk.run(path, **{"effect": "select 1"} | options)
        assert word in str(caught.value)
        assert "pgonce job change pay" in str(caught.value)
    assert desk.one("select count(*) from pgonce.event") == 1


def test_content_that_was_taken_under_another_identity_is_refused_until_also_is_said(desk: Desk) -> None:
    """I9: a typo in the job's or source's name must not apply everything twice."""
    rows = [(1, 5, "x"), (2, 6, "y")]
    desk.run(desk.csv(rows))
    with pytest.raises(ContentTaken, match=r"already taken by run 1 .* job 'pay', now 'pya'.*--also"):
        desk.run(desk.csv(rows, name="copy.csv"), job="pya")
    with pytest.raises(ContentTaken, match="source '', now 'shop'"):
        desk.run(desk.csv(rows), source="shop")
    assert desk.one("select count(*) from pgonce.effect") == 2
    assert desk.run(desk.csv(rows), job="pya", also=True).start.applied.rows == 2
    assert desk.run(desk.csv(rows), job="pya").shortcut


def test_two_sessions_that_take_one_content_under_two_jobs_at_once_do_not_both_pass(desk: Desk) -> None:
    """I9, E4: the second waits for the first's registration to end, and then sees it."""
    path = desk.csv([(1, 5, "x")])
    desk.run(desk.csv([(9, 9, "")]), job="one")
    desk.run(desk.csv([(8, 9, "")]), job="two")
    with open_input(path) as source, desk.clerk.session.transaction(soon(desk.clerk)) as transaction:
        stored = find(transaction, "one")
        assert stored is not None
        register(transaction, Identity.of(source, stored, kind="apply", source_text=""), also=False)
        pid = desk.clerk.session.backend_pid
        assert pid is not None
        with in_thread(desk.run, path, clerk=desk.make_clerk(), job="two") as racing:
            until_blocked(desk, pid)
            assert not racing.done()
            transaction.connection.execute("commit")
            transaction.connection.execute("begin")
        with pytest.raises(ContentTaken, match="job 'one', now 'two'"):
            racing.result()
    assert desk.run(path, job="one").start.applied.rows == 1


@pytest.mark.parametrize("name", ["", " pay", "p\ny", "x" * 129])
def test_a_job_name_that_cannot_be_typed_again_is_refused(desk: Desk, name: str) -> None:
    """I9: the name is the guard's key."""
    with pytest.raises(ConfigurationError, match="cannot be the name of a job"):
        desk.run(desk.csv([(1, 1, "")]), order=make_order(name))
