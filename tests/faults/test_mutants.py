"""The planted bugs keep up with the source: each can still be planted, and the copy still compiles."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from faults.mutants import ROOT, Edit, Mutant, NotPlanted, plant, read_mutants


@pytest.mark.parametrize("mutant", read_mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_finds_its_place_and_its_tests(mutant: Mutant, tmp_path: Path) -> None:
    """`make mutants` would say so too, but much later."""
    for edit in mutant.edits:
        (tmp_path / edit.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "src" / "pgonce" / edit.file, tmp_path / edit.file)
    plant(mutant, tmp_path)
    for path in tmp_path.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test


def test_a_mutant_whose_place_is_gone_is_an_error(tmp_path: Path) -> None:
    """A bug that is never planted must not count as caught."""
    (tmp_path / "a.py").write_text("one\n")
    with pytest.raises(NotPlanted, match="0 times"):
        plant(Mutant("moved away", (Edit("a.py", "two\n", ""),), ()), tmp_path)
