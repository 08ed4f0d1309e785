"""What the pages say is so: every runnable block does what is shown, every link leads somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pages import ROOT, anchors, blocks, links, name_of, pages
from docs.running import run_block
from server.processes import cleaned

RUN_PAGES = [page for page in pages() if any(block.runnable for block in blocks(page.read_text(encoding="utf-8")))]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder to run a page in, beside the data folder of its embedded server."""
    with cleaned(tmp_path / "home"):
        (tmp_path / "page").mkdir()
        yield tmp_path / "page"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", RUN_PAGES, ids=name_of)
def test_a_page_does_what_it_shows(page: Path, folder: Path) -> None:
    """Every runnable block of a page, in order and in a fresh folder, prints what the page shows."""
    for block in blocks(page.read_text(encoding="utf-8")):
        run_block(block, folder, name_of(page))


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    """A link inside the project names a file that is there, and a heading that is in it."""
    text = page.read_text(encoding="utf-8")
    for target in links(text):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)} links to {target}, which is not there"
        assert there.is_relative_to(ROOT), f"{name_of(page)} links to {target}, outside the project"
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), f"{name_of(page)}: no heading for {target}"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_command_that_is_shown_is_run(page: Path) -> None:
    """A console block that calls pgonce is runnable, or says ``elsewhere``: it needs what no test has."""
    for block in blocks(page.read_text(encoding="utf-8")):
        calls = block.language in ("console", "sh") and "pgonce" in block.text
        assert not calls or {"runnable", "elsewhere"} & set(block.words), f"{name_of(page)}, line {block.line}: not run"
