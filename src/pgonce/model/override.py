"""Errors that a job asked to have tried again although the policy makes them final.

A job may know better than the table: that the row which a foreign key refers to comes a moment later, or that its own
``raise exception using errcode = 'BUSY1'`` means "not now". Such an error is then tried again so many times; after
that it means what it means to everybody. What is in doubt is resolved and never overridden, and neither is what stands
on a key of pgonce.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pgonce.errors import ConfigurationError
from pgonce.model.policy import RULES, Decision, Rule, Verdict

# A chunk holds its deadline anyway; this only catches a number that was meant for something else.
ASKED_RETRIES_MAX = 1_000

FINAL = frozenset({Verdict.PERMANENT, Verdict.BUG, Verdict.OPERATOR})

# Integrity constraints, and what a function of the user raises without a code of its own.
_OF_THE_USER = ("23", "P0001")

_SQLSTATE = re.compile(r"[0-9A-Z]{5}")


def read_overrides(texts: Iterable[str]) -> dict[str, int]:
    """Read texts of the form ``CODE`` or ``CODE=N``: how often more each code is to be tried; without N once.

    Raises ConfigurationError for an N that is no number, and for a code that comes twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        code, sign, times = text.partition("=")
        if sign and not (times.isascii() and times.isdigit()):
            raise ConfigurationError(f"--retry-on {text}: write CODE, or CODE=N with N a number of tries")
        if code in found:
            raise ConfigurationError(f"--retry-on names {code} twice")
        found[code] = int(times) if sign else 1
    return found


def check_overrides(retry_on: Mapping[str, int]) -> None:
    """Raise ConfigurationError, saying what can be overridden, for a code or a number that cannot be used."""
    for code, times in retry_on.items():
        if not 1 <= times <= ASKED_RETRIES_MAX:
            raise ConfigurationError(f"--retry-on {code}={times}: the number of tries is from 1 to {ASKED_RETRIES_MAX}")
        schema, dot, name = code.partition(".")
        if dot and schema and name:
            continue
        if not _SQLSTATE.fullmatch(code) or code.startswith("00"):
            raise ConfigurationError(
                f"--retry-on {code}: write the SQLSTATE of an error (five digits or capital letters, like 23503), or a "
                "constraint with its schema, like public.payment_account_fkey"
            )
        if refusal := _refusal(code):
            raise ConfigurationError(f"--retry-on {code}: {refusal}")


@dataclass(slots=True)
class Overrides:
    """What is left of the retries that were asked for, for one chunk: by SQLSTATE or schema-qualified constraint."""

    left: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, retry_on: Mapping[str, int]) -> Overrides:
        """Begin with all that was asked for."""
        return cls(dict(retry_on))

    def take(self, decision: Decision, *, sqlstate: str | None, constraint: str | None) -> bool:
        """Say whether a failure is to be tried again for having been asked for, and count that try.

        Not for a decision that is not final: what is in doubt is resolved, a key of pgonce is compared.
        """
        if decision.verdict not in FINAL or sqlstate is None or _refusal(sqlstate):
            return False
        for code in (constraint, sqlstate):
            if code is not None and self.left.get(code, 0):
                self.left[code] -= 1
                return True
        return False


def _refusal(sqlstate: str) -> str | None:
    """Say why an error of this SQLSTATE is never overridden; None if it may be. A code that no rule names may."""
    rules = _rules_of(sqlstate)
    if not rules or sqlstate.startswith(_OF_THE_USER) or any(rule.asked_retries for rule in rules):
        return None
    what = f"{rules[0].name} is"
    if any(rule.before is Verdict.AMBIGUOUS for rule in rules):
        return f"{what} in doubt; its outcome is established, and never guessed by trying again"
    if all(rule.before is Verdict.TRANSIENT for rule in rules):
        return f"{what} tried again without being asked; --attempts says how often"
    return f"{what} not cured by trying again. {rules[0].remedy}"


def _rules_of(sqlstate: str) -> list[Rule]:
    exact = [rule for rule in RULES if rule.code == sqlstate]
    return exact or [rule for rule in RULES if rule.code == sqlstate[:2]]
