"""The policy's table as lines to be read: what ``pgonce errors`` and the page of errors print. No rules of its own."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from pgonce.model.policy import RULES, UNKNOWN, Failure, Phase, Rule, Verdict, When, rule_for, rules_of, verdict_of

NO_SQLSTATE = "none"
"""Stands for the code of a rule that holds where no server named a SQLSTATE."""

ANY_OTHER = "other"
"""Stands for the code of the rule that holds for every error that no other rule names."""

IN_DOUBT_ALWAYS = (
    '"At COMMIT" is about a COMMIT that was answered with an ERROR. FATAL, PANIC, no answer, a time-out or an '
    "interrupt leave every COMMIT in doubt, whatever the code."
)
UNKNOWN_IN_WORDS = (
    "pgonce does not know it. Nothing of the chunk was applied, it is not tried again (--retry-on CODE has it tried), "
    "no row is marked as failed (raise P0001 to have a row refused), and the run stops with the position before the "
    "chunk, exit code 1."
)

MEANINGS: dict[Verdict, str] = {
    Verdict.TRANSIENT: "nothing was applied; the whole transaction is tried again. If its attempts are used up, the "
    "row stays pending and the others go on: exit code 75",
    Verdict.PERMANENT: "nothing was applied, and with this input it never will be; the row to blame is found and "
    "refused (failed), the others are applied: exit code 1",
    Verdict.AMBIGUOUS: "COMMIT may have succeeded; a row, read under its lock, tells. If not, it is tried again; if "
    "that cannot be told in time: exit code 77",
    Verdict.BUG: "nothing was applied; SQL or code is wrong, or the error unknown. The run stops before the chunk, no "
    "row is to blame: exit code 1",
    Verdict.OPERATOR: "nothing was applied; the environment needs a person. The run stops before the chunk, no row is "
    "to blame: exit code 75, or 78 or 1 where running again would not help",
    Verdict.REPLAY_CHECK: "nothing was applied; one of pgonce's own keys is taken, which its stored row explains",
    Verdict.COMMITTED: "the transaction is committed",
}
"""Each verdict in words."""

_CODE = re.compile(r"[0-9A-Z]{5}|[0-9A-Z]{2}")


@dataclass(frozen=True, slots=True)
class Line:
    """One rule, to be read.

    A verdict is None where the rule cannot hold in that phase. ``retries`` bounds the tries after the first for this
    reason; None: only the run's own attempts and deadline do. ``charged``: an attempt counts against the event's budget
    over all starts, too. ``cure`` is what helps where an operator is needed.
    """

    code: str
    name: str
    circumstance: str
    connecting: str | None
    before_commit: str | None
    at_commit: str | None
    retries: int | None
    burns_attempt: bool
    charged: bool
    cure: str | None
    fresh_connection: bool
    remedy: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with stable keys."""
        return asdict(self)

    @property
    def attempt(self) -> str:
        """Whether a try counts as an attempt, in words."""
        if self.charged:
            return "yes"
        return "of this start" if self.burns_attempt else "no"

    @property
    def tried_again(self) -> str:
        """How often it is tried again, in words."""
        begun = {self.before_commit, self.at_commit} - {None}
        if begun == {Verdict.AMBIGUOUS}:
            return "if it was not applied"
        if self.retries is not None:
            return {0: "no", 1: "once"}.get(self.retries, f"{self.retries} times")
        where = "at COMMIT: " if self.before_commit not in (None, Verdict.TRANSIENT) else ""
        return where + ("within the attempts" if self.burns_attempt else "until the deadline")


def is_code(text: str) -> bool:
    """Say whether a text is written as a SQLSTATE (five digits or capitals), or as a class of them (two)."""
    return _CODE.fullmatch(text) is not None


def line_of(rule: Rule) -> Line:
    """Write a rule as a line."""
    connecting, before, at_commit = (
        verdict_of(rule, phase) for phase in (Phase.CONNECTING, Phase.STATEMENT, Phase.COMMIT)
    )
    begun = {before, at_commit} - {None} or {connecting}
    return Line(
        code=ANY_OTHER if rule is UNKNOWN else rule.code or NO_SQLSTATE,
        name=rule.name,
        circumstance=rule.when,
        connecting=connecting,
        before_commit=before,
        at_commit=at_commit,
        retries=rule.retries if Verdict.TRANSIENT in begun else 0,
        burns_attempt=rule.burns,
        charged=rule.burns and rule.charged,
        cure=rule.cure if Verdict.OPERATOR in begun else None,
        fresh_connection=rule.fresh,
        remedy=rule.remedy,
    )


def all_lines() -> list[Line]:
    """Return the whole policy, its last line that of unknown errors."""
    return [line_of(rule) for rule in (*RULES, UNKNOWN)]


def lines_for(code: str) -> list[Line]:
    """Return the lines that can hold for a SQLSTATE, or for the SQLSTATEs of a class; none if no rule names them.

    What is rare, a warning beside a success, comes last.
    """
    rules = rules_of(code) if len(code) > 2 else tuple(rule for rule in RULES if rule.code[:2] == code)
    return [line_of(rule) for rule in sorted(rules, key=lambda rule: rule.when is When.WARNED)]


def may_be_unknown(code: str) -> bool:
    """Say whether an error of this SQLSTATE, or some error of this class, is one that no rule names."""
    probe = code if len(code) > 2 else f"{code}???"
    return rule_for(Failure(phase=Phase.STATEMENT, severity="ERROR", sqlstate=probe)) is UNKNOWN
