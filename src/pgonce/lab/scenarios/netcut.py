"""The network is really cut around COMMIT: once before the server saw it, once after it was carried out."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from pgonce.crashtest.boundary import CUT_AFTER, CUT_BEFORE, PASS, Action, Boundary
from pgonce.lab.scenario import Line, Scenario, line
from pgonce.lab.scenarios.books import add_without_asking, apply_once, open_books, total
from pgonce.lab.stage import Connection, Stage


def right(stage: Stage) -> Iterator[Line]:
    """Run it again on a new connection: the event itself, under its lock, says whether it was applied."""
    for where, cut in (("before_commit", CUT_BEFORE), ("after_commit", CUT_AFTER)):
        told = _cut_at_commit(stage, cut)
        again = apply_once(stage, "again", stage.connect("again"), "e1")
        yield line(total(stage), 100, cut=where, told=told, rerun=again)


def wrong(stage: Stage) -> Iterator[Line]:
    """The two beliefs that an error without an answer invites."""
    told = _cut_at_commit(stage, CUT_BEFORE)
    stage.say("again", "believes that it was committed, and goes on to the next event")
    yield line(total(stage), 100, cut="before_commit", told=told, believed="committed")
    told = _cut_at_commit(stage, CUT_AFTER)
    stage.say("again", "believes that it failed, and does it again")
    add_without_asking(stage, "again", stage.connect("again"), "e1", 100)
    yield line(total(stage), 100, cut="after_commit", told=told, believed="failed")


def _cut_at_commit(stage: Stage, cut: Action) -> str:
    """Apply an event through the proxy; return what the client learned when its COMMIT was cut."""
    open_books(stage, {"e1": 100})

    def on_boundary(boundary: Boundary) -> Action:
        return cut if boundary.is_commit else PASS

    worker: Connection = stage.connect("worker", stage.proxy(on_boundary).dsn(stage.dsn("worker")))
    try:
        apply_once(stage, "worker", worker, "e1")
    except psycopg.OperationalError as error:
        return error.sqlstate or "no_sqlstate"
    return "committed"


SCENARIO = Scenario(
    name="netcut",
    title="The network is cut around COMMIT",
    question="The socket breaks while COMMIT is under way. Both cuts look the same to the client. Was it committed?",
    right_way="Ask the event itself: lock its row on a new connection, and apply it only if it is not completed.",
    right=right,
    wrong_way="Guess: whoever takes the error for success loses the money, whoever takes it for failure adds it twice.",
    wrong=wrong,
)
