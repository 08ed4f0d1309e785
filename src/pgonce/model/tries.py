"""How often a transaction was tried in vain, and whether it may be tried once more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pgonce.model.policy import Decision


@dataclass(slots=True)
class Tries:
    """The tries of one transaction: ``total``, ``attempts`` of this start, of which ``charged`` count on the event.

    Some reasons bound how often they may be tried again; those are counted by reason.
    """

    total: int = 0
    attempts: int = 0
    charged: int = 0
    _reasons: Counter[str | None] = field(default_factory=Counter)

    def failed(self, decision: Decision, sqlstate: str | None) -> None:
        """Count a try that ended with a failure."""
        self.attempts += decision.burns_attempt
        self.charged += decision.charged
        self._reasons[sqlstate] += 1

    def in_doubt(self) -> None:
        """Count a try whose COMMIT got no answer and had not taken place; no event is to blame."""
        self.attempts += 1

    def used_up(self, attempts_max: int, charged_max: int | None = None) -> bool:
        """Say whether there may be no other one."""
        return self.attempts >= attempts_max or (charged_max is not None and self.charged >= charged_max)

    def too_often(self, decision: Decision, sqlstate: str | None) -> bool:
        """Say whether a failure has come more often than its reason may be tried again."""
        return decision.retries is not None and self._reasons[sqlstate] > decision.retries
