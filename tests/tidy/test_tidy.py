"""The house rules hold for every file of the project; what is not in order is named with its file and line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pgonce
from tidy import rules, sqlrules
from tidy.source import File, Rule, project_files, python_files

FILES = project_files()
PYTHON = python_files(FILES, "src/", "tests/", "examples/", "benchmarks/")
PRODUCT = python_files(FILES, "src/")
MODEL = python_files(FILES, "src/pgonce/model/")
STATEMENTS = [
    file for file in FILES if file.path.startswith("src/pgonce/sql/statements/") and file.path.endswith(".sql")
]
PINS = [file for file in FILES if file.path == "constraints.txt"]


def assert_tidy(findings: Iterator[str]) -> None:
    found = list(findings)
    assert not found, "\n" + "\n".join(found)


def test_the_files_were_found() -> None:
    """A rule over no files would always hold."""
    assert len(PYTHON) > 10
    assert MODEL
    assert PRODUCT
    assert PINS
    assert any(file.path == "src/pgonce/errors.py" for file in PYTHON)


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        pytest.param(rules.long_modules, PYTHON, id="modules are short"),
        pytest.param(rules.long_functions, PYTHON, id="functions are short"),
        pytest.param(rules.vague_names, PYTHON, id="names say what is inside"),
        pytest.param(rules.undocumented_modules, PYTHON, id="every module says its job"),
        pytest.param(rules.impure_model, MODEL, id="the model is pure"),
        pytest.param(rules.working_asserts, PRODUCT, id="no assert does work"),
        pytest.param(rules.unfinished_work, FILES, id="nothing is marked unfinished"),
        pytest.param(rules.foreign_words, FILES, id="the project speaks of itself only"),
        pytest.param(rules.loose_pins, PINS, id="constraints are pins"),
        pytest.param(sqlrules.headless_statements, STATEMENTS, id="every statement has its header"),
        pytest.param(sqlrules.several_statements, STATEMENTS, id="one statement a file"),
        pytest.param(sqlrules.shouted_keywords, STATEMENTS, id="SQL is in lower case"),
        pytest.param(sqlrules.unqualified_tables, STATEMENTS, id="every table is qualified"),
    ],
)
def test_house_rule(rule: Rule, files: list[File]) -> None:
    assert_tidy(rule(files))


def test_public_names_are_documented_and_say_whether_a_rerun_is_safe() -> None:
    names = {name: getattr(pgonce, name) for name in getattr(pgonce, "__all__", ())}
    assert_tidy(rules.undocumented_names(names))
