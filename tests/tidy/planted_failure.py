"""A test that must fail: the optimized lane asks for it by name to prove that the asserts of tests still count."""

from __future__ import annotations


def test_that_fails() -> None:
    """Fail, always; its file name keeps it out of every ordinary run."""
    assert sum([1, 1]) == 3
