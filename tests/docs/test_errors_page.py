"""The page of errors is what the policy in the code gives."""

from __future__ import annotations

from docs import errors_page
from pgonce.model.policy import RULES, Verdict


def test_the_page_is_written_from_the_code() -> None:
    """Whoever changes a rule writes the page anew: make errors-page."""
    assert errors_page.PAGE.read_text(encoding="utf-8") == errors_page.text(), "run make errors-page"


def test_the_page_has_every_rule_and_every_verdict() -> None:
    """A line a rule, with its code and its remedy, and each verdict explained."""
    lines = errors_page.text().splitlines()
    for rule in RULES:
        assert any(
            line.startswith(f"| `{rule.code}` |" if rule.code else "| none |") and line.endswith(f"| {rule.remedy} |")
            for line in lines
        ), rule
    assert all(any(line.startswith(f"| {verdict} | ") for line in lines) for verdict in Verdict)
    assert max(len(line) for line in lines if not line.startswith("|")) <= 120
