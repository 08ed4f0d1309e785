"""Check, then act: two workers see the same pending event."""

from __future__ import annotations

from collections.abc import Iterator

from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import LOCK, LOOK, add_and_mark, apply_once, open_books, total
from pgonce.lab.stage import END_S_MAX, Stage


def right(stage: Stage) -> Iterator[Line]:
    """Lock first, then look: the second worker is seen waiting for the first one."""
    open_books(stage, {"e1": 100})
    a, b = stage.connect("A"), stage.connect("B")
    [(amount, _)] = stage.execute("A", a, LOCK, "e1")
    second = stage.start("B", lambda: apply_once(stage, "B", b, "e1"))
    seen = "observed" if stage.wait_until_blocked("B", by="A") else "not_observed"
    first = add_and_mark(stage, "A", a, "e1", amount)
    said = second.result(END_S_MAX)
    yield line(total(stage), 100, blocked_B_by_A=seen, A=first, B=said)


def wrong(stage: Stage) -> Iterator[Line]:
    """Look in one transaction, write in another: both have seen pending."""
    open_books(stage, {"e1": 100})
    seen, did = {}, {}
    workers = {actor: stage.connect(actor) for actor in ("A", "B")}
    for actor, connection in workers.items():
        [(amount, seen[actor])] = stage.execute(actor, connection, LOOK, "e1")
        stage.commit(actor, connection)
    for actor, connection in workers.items():
        did[actor] = add_and_mark(stage, actor, connection, "e1", amount)
    yield line(total(stage), 100, A_saw=seen["A"], B_saw=seen["B"], **did)


SCENARIO = Scenario(
    name="check-then-act",
    title="Check, then act",
    question="Two workers pick up the same event at the same time. Who applies it?",
    right_way="Whoever locks its row first. The other one waits for the lock, looks only then, and sees completed.",
    right=right,
    wrong_way="Both: each looked before the other one wrote, and wrote in a transaction of its own.",
    wrong=wrong,
)
