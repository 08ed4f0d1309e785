"""Read the Markdown pages of the project: their code blocks, their links, and what the blocks say will happen.

A block whose fence says ``runnable`` is executed. In a ``console`` block a line that begins with ``$ `` is a command
(``> `` goes on with it), and the lines after it are its output, standard output and error together; ``...`` stands
for any text, and blanks are compared as one. A command without output lines may print anything. A block with
``file=NAME`` is written to that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>.*)$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_QUOTED = re.compile(r"`[^`\n]+`")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, what else its fence says, its text, and the line it begins on."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int

    @property
    def runnable(self) -> bool:
        return "runnable" in self.words

    @property
    def file_name(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block and the output it is shown with; None if none is shown."""

    text: str
    expected: str | None
    line: int


def pages() -> list[Path]:
    """List every page for readers."""
    top = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Name a page by its path in the project."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    fence, begin, lines = None, 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        found = _FENCE.match(line)
        if fence is None:
            if found:
                fence, begin, lines = found, number, []
        elif found and found["ticks"] == fence["ticks"] and not found["info"].strip():
            language, *words = fence["info"].split() or [""]
            yield Block(language, tuple(words), "".join(f"{line}\n" for line in lines), begin)
            fence = None
        else:
            lines.append(line.removeprefix(fence["indent"]))


def commands(block: Block) -> list[Command]:
    """Take a runnable console or sh block apart into its commands."""
    if block.language == "sh":
        return [Command(block.text, None, block.line)]
    found: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            found.append(Command(line[2:], None, number))
        elif line.startswith("> ") and found and found[-1].expected is None:
            found[-1] = Command(f"{found[-1].text}\n{line[2:]}", None, found[-1].line)
        elif found:
            last = found[-1]
            found[-1] = Command(last.text, f"{last.expected or ''}{line}\n", last.line)
        elif line.strip():
            raise ValueError(f"line {number}: a console block begins with a command, behind '$ '")
    return found


def shown(expected: str, output: str) -> bool:
    """Say whether an output is what the page shows."""
    parts = [re.escape(" ".join(part.split())) for part in expected.split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), " ".join(output.split()), re.DOTALL) is not None


def links(text: str) -> Iterator[str]:
    """Yield the targets of a page's links; what stands in blocks or between back quotes is no link."""
    for block in blocks(text):
        text = text.replace(block.text, "", 1)
    yield from (found["target"] for found in _LINK.finditer(_QUOTED.sub("", text)))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as they are made from their words."""
    headings = (found["text"] for line in text.splitlines() if (found := _HEADING.match(line)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
