"""The lab's page: every scenario with both workers, in one file that needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pgonce import lab
from pgonce.errors import ConfigurationError
from pgonce.lab import report
from pgonce.lab.home import Lab
from pgonce.lab.play import Played
from pgonce.lab.scenario import Scenario, line
from pgonce.lab.stage import Step

pytestmark = pytest.mark.xdist_group("lab")

VOID = {"meta", "link", "br"}


class Balanced(HTMLParser):
    """Checks that every element is closed by its own end tag, and keeps what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("href", "src") and value:
                self.links.append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_shows_both_workers_of_every_scenario(thrown_away: Lab) -> None:
    """Played for real; one file, no script, nothing loaded from anywhere."""
    pairs = [
        (lab.play(thrown_away, scenario), lab.play(thrown_away, scenario, wrong=True) if scenario.wrong else None)
        for scenario in lab.SCENARIOS[1:4]
    ]
    page = report.page(pairs, lab.versions(thrown_away))
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.ids == [scenario.name for scenario in lab.SCENARIOS[1:4]]
    assert set(parser.links) == {"data:,"} | {f"#{name}" for name in parser.ids}
    assert "<script" not in page
    assert re.search(r"url\(|@import|https?:", page) is None
    assert page.count('<article class="right">') == page.count('<article class="wrong">') == 3
    assert "100 cents too many" in page
    assert "blocked_B_by_A=observed" in page


def test_what_a_scenario_says_is_text_and_not_markup() -> None:
    """SQL is full of angle brackets."""
    scenario = Scenario("x", "<b>", "a < b?", "a & b.", lambda _: [], "c.", lambda _: [])
    played = Played(scenario, False, (line(1, 1, way="<i>"),), (Step(0.1, "A", "select 1 <> 2 <script>"),), 0.1)
    page = report.page([(played, None)], {"postgresql": "<18>"})
    assert "<script" not in page
    assert "select 1 &lt;&gt; 2" in page
    assert "&lt;18&gt;" in page


def test_a_page_is_replaced_whole(tmp_path: Path) -> None:
    """And a folder that cannot be written is said, with the older page kept."""
    target = tmp_path / "page.html"
    for text in ("one", "two"):
        with report.written(target) as parts:
            parts.append(text)
    assert target.read_text() == "two"

    def fails_half_way() -> None:
        with report.written(target) as parts:
            parts.append("three")
            raise InterruptedError

    with pytest.raises(InterruptedError):  # the block's own error, not one of the page
        fails_half_way()
    assert target.read_text() == "two"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["nowhere/page.html", "folder", "/dev/null"])
def test_what_cannot_be_written_is_said_before_anything_is_played(tmp_path: Path, name: str) -> None:
    """A device is not replaced by a file."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigurationError, match="--output"), report.written(tmp_path / name):
        pytest.fail("the block was begun")
    assert not Path("/dev/null").is_file()
