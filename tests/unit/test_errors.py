"""Every exception says whether the same call may succeed later, and whether its transaction may have been committed."""

from __future__ import annotations

import inspect

import pytest

from pgonce import errors
from pgonce.cli.exits import exit_code_of
from pgonce.errors import PgonceError

# Class, retryable, maybe_committed.
EXPECTED = {
    "PgonceError": (False, False),
    "Retryable": (True, False),
    "Unreachable": (True, False),
    "InputChanged": (True, False),
    "Interrupted": (True, False),
    "Permanent": (False, False),
    "IdentityConflict": (False, False),
    "EventNotFound": (False, False),
    "RowRefused": (False, False),
    "InputUnreadable": (False, False),
    "EffectFailed": (False, False),
    "StopRequested": (False, False),
    "LeaseLost": (True, False),
    "RunOwned": (True, False),
    "OutcomeUnknown": (True, True),
    "ConfigurationError": (False, False),
    "DefinitionChanged": (False, False),
    "ContentTaken": (False, False),
    "SchemaMismatch": (False, False),
    "Inconclusive": (True, False),
    "InvariantBroken": (False, False),
}
CLASSES = {name: thing for name, thing in vars(errors).items() if inspect.isclass(thing)}

# What a scheduler that runs the same command again is right to do so for; 70 is first looked at.
SAFE_TO_RUN_AGAIN = {69, 75, 76, 77, 130, 70}


def test_every_class_is_an_error_of_pgonce_and_listed_here() -> None:
    assert {name for name, thing in CLASSES.items() if issubclass(thing, PgonceError)} == set(EXPECTED) == set(CLASSES)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_class_says_whether_to_try_again_and_whether_it_may_be_committed(name: str) -> None:
    error = CLASSES[name]("text", job="pay", event_id="a", sqlstate="40001", attempt=2)
    assert (error.retryable, error.maybe_committed) == EXPECTED[name]
    assert (error.job, error.event_id, error.sqlstate, error.attempt, str(error)) == ("pay", "a", "40001", 2, "text")
    if error.retryable:
        assert exit_code_of(error) in SAFE_TO_RUN_AGAIN
    else:
        assert exit_code_of(error) not in SAFE_TO_RUN_AGAIN - {70}


def test_the_tree_in_the_docstring_names_every_class() -> None:
    tree = inspect.getdoc(errors) or ""
    assert [name for name in EXPECTED if f"+-- {name} " not in tree and name != "PgonceError"] == []
