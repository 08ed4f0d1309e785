"""The network is really cut around COMMIT: once before the server saw it, once after it was carried out."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from pgonce.crashtest.boundary import CUT_AFTER, CUT_BEFORE, PASS, Action, Boundary
from pgonce.errors import Inconclusive
from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import add_and_mark, apply_once, open_books, total
from pgonce.lab.stage import Connection, Stage

PLACES = {CUT_BEFORE: ("before_commit", ""), CUT_AFTER: ("after_commit", "COMMIT")}
"""Where each cut is, and what the server had answered to the COMMIT by then."""


def right(stage: Stage) -> Iterator[Line]:
    """Run it again on a new connection: the event itself, under its lock, says whether it was applied."""
    for cut in (CUT_BEFORE, CUT_AFTER):
        where, told = _cut_at_commit(stage, cut)
        again = apply_once(stage, "again", stage.connect("again"), "e1")
        yield line(total(stage), 100, cut=where, told=told, rerun=again)


def wrong(stage: Stage) -> Iterator[Line]:
    """The two beliefs that an error without an answer invites."""
    where, told = _cut_at_commit(stage, CUT_BEFORE)
    stage.say("again", "believes that it was committed, and goes on to the next event")
    yield line(total(stage), 100, cut=where, told=told, believed="committed")
    where, told = _cut_at_commit(stage, CUT_AFTER)
    stage.say("again", "believes that it failed, and does it again")
    add_and_mark(stage, "again", stage.connect("again"), "e1", 100)
    yield line(total(stage), 100, cut=where, told=told, believed="failed")


def _cut_at_commit(stage: Stage, cut: Action) -> tuple[str, str]:
    """Apply an event through the proxy; return where it was cut, and what the client learned then.

    Raises Inconclusive if the proxy did not cut at the one COMMIT, or if the server had answered something else.
    """
    open_books(stage, {"e1": 100})

    def on_boundary(boundary: Boundary) -> Action:
        return cut if boundary.is_commit else PASS

    proxy = stage.proxy(on_boundary)
    worker: Connection = stage.connect("worker", proxy.dsn(stage.dsn("worker")))
    told = "committed"
    try:
        apply_once(stage, "worker", worker, "e1")
    except psycopg.OperationalError as error:
        told = error.sqlstate or "no_sqlstate"
    where, answer = PLACES[cut]
    done = [(fired.boundary.is_commit, fired.action, fired.answer) for fired in proxy.fired]
    if done != [(True, cut, answer)] or told == "committed":
        raise Inconclusive(
            f"the connection was not cut {where.replace('_', ' ')}: the client was told {told}. Run it again."
        )
    stage.say("monitor", f"cut {where.replace('_', ' ')}; the answer that was withheld: {answer or 'none'}")
    return where, told


SCENARIO = Scenario(
    name="netcut",
    title="The network is cut around COMMIT",
    question="The socket breaks while COMMIT is under way. Both cuts look the same to the client. Was it committed?",
    right_way="Ask the event itself: lock its row on a new connection, and apply it only if it is not completed.",
    right=right,
    wrong_way="Guess: whoever takes the error for success loses the money, whoever takes it for failure adds it twice.",
    wrong=wrong,
)
