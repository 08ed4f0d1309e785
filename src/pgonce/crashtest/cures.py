"""What to do about a verdict, in words that fit where it was found."""

from __future__ import annotations

from pgonce.crashtest.explore import Result
from pgonce.crashtest.faults import Fault
from pgonce.crashtest.verdict import Verdict
from pgonce.crashtest.wire import Kind

DOUBLED = (
    "Commit the effect and the note that it is done in one transaction, with the input's own id as a primary key: "
    "insert the note with `on conflict do nothing`, and do the effect only if a row was inserted."
)
DOUBLED_AT_COMMIT = (
    "The COMMIT had worked and its answer was lost. Never take a failed COMMIT for undone: on the next try, read by "
    "the input's own id what is stored, under a lock, and go on from there. " + DOUBLED
)
DOUBLED_MANY = "Several statements in one message are one unit only if nothing in it commits. " + DOUBLED
LOST = (
    "The note that it is done (a mark, a position, an offset file) was kept although its effect was not. Write it in "
    "the effect's own transaction, never before it and never in a file; and never go on after a swallowed error."
)
CHANGED = (
    "What is there is neither twice nor missing, but not what a clean run leaves. If it is a log of runs, say "
    "--log-table TABLE; if a column counts attempts, say --ignore TABLE.COLUMN. Else let the run clear up what an "
    "unfinished one left, in the transaction that does the work."
)
STUCK = (
    "The run after the fault does not get through, so a person has to help. Let a run recognise what an earlier one "
    "left (a lock file, a staging table, a row with state `running`, a key that exists already) and go on from it."
)
UNREACHED = (
    "The program took another way this time, so nothing was tried here. Make its order of statements the same in every "
    "run (one worker, a fixed order of rows), or give it more chances by running the test again."
)
PLAIN = (
    "A second run changes something even without any fault. If the table is a log of runs, say --log-table TABLE. "
    "Else the program does not know its input again: give each input an id of its own, and keep it with the effect."
)
REFUSES = (
    "A second run fails although all is done, and after a lost answer a scheduler runs it a second time. Let it find "
    "that all is done, and end well. If it refuses on purpose, with an exit code of its own, say --ok-exit CODE."
)
SERIALIZATION = (
    "A serialization failure means that nothing of the transaction was done: try the whole transaction again, its "
    "reads included, a bounded number of times."
)


def cure_of(result: Result) -> str:
    """Return what to do about a result; empty for one that is safe."""
    boundary = result.trial.met.boundary
    if result.verdict is Verdict.DOUBLED:
        if boundary.statements > 1:
            return DOUBLED_MANY
        is_lost_answer = boundary.is_commit and result.trial.blow.is_after
        return DOUBLED_AT_COMMIT if is_lost_answer else DOUBLED
    if result.verdict in (Verdict.LOST, Verdict.STUCK) and result.trial.blow.fault is Fault.SERIALIZATION:
        return SERIALIZATION
    if result.verdict is Verdict.STUCK and boundary.kind is Kind.STARTUP:
        return STUCK
    return {
        Verdict.LOST: LOST,
        Verdict.CHANGED: CHANGED,
        Verdict.STUCK: STUCK,
        Verdict.UNREACHED: UNREACHED,
    }.get(result.verdict, "")
