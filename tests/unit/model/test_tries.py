"""How often a transaction may be tried: in a start, on its event, and for a reason that bounds it by itself."""

from __future__ import annotations

from pgonce.model.policy import Decision, Failure, Phase, decide
from pgonce.model.tries import Tries


def decision(sqlstate: str, *, alive: bool = True) -> Decision:
    return decide(
        Failure(
            phase=Phase.STATEMENT,
            severity="ERROR" if alive else "FATAL",
            sqlstate=sqlstate,
            connection_alive=alive,
        )
    )


def test_a_reason_is_counted_by_itself() -> None:
    """25P03 is tried once more, whatever else went wrong before it."""
    tries, idle = Tries(), decision("25P03", alive=False)
    tries.failed(decision("40001"), "40001")
    tries.failed(decision("40001"), "40001")
    tries.failed(idle, "25P03")
    assert not tries.too_often(idle, "25P03")
    tries.failed(idle, "25P03")
    assert tries.too_often(idle, "25P03")
    assert not tries.too_often(decision("40001"), "40001")


def test_what_counts_in_a_start_and_what_on_the_event() -> None:
    """R5: a crash and a doubt count in the start; waiting counts nowhere."""
    tries = Tries()
    for code, alive in (("40001", True), ("57P01", False), ("55P03", True), ("57P01", True)):
        tries.failed(decision(code, alive=alive), code)
    tries.in_doubt()
    assert (tries.attempts, tries.charged) == (4, 2)
    assert tries.used_up(4)
    assert not tries.used_up(5)
    assert tries.used_up(5, 2)
    assert not tries.used_up(5, 3)
