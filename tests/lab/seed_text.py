"""Take the program, the shell blocks and the expected output out of the text that the project grew from, unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "seed"


@dataclass(frozen=True, slots=True)
class SeedText:
    """What the text has to be run: its program, its three shell blocks in order, and the lines it promises."""

    program: str
    blocks: tuple[str, str, str]
    expected: tuple[str, ...]


def read() -> SeedText | None:
    """Read the text; None where its folder is absent. ValueError if it is not of the form that is known here."""
    files = sorted(FOLDER.glob("*.txt")) if FOLDER.is_dir() else []
    if not files:
        return None
    text = files[0].read_text("utf-8")
    begin = text.index("from __future__ import annotations\n")
    last = 'if __name__ == "__main__":\n    main()\n'
    end = text.index(last, begin) + len(last)
    rest = text[end:]
    paragraphs = [paragraph.strip("\n") + "\n" for paragraph in rest.split("\n\n")]
    blocks = [paragraph for paragraph in paragraphs if paragraph.startswith("set -euo pipefail\n")]
    up, run, clean = blocks
    expected = next(paragraph for paragraph in paragraphs if paragraph.startswith("before_write: "))
    return SeedText(text[begin:end], (up, run, clean), tuple(expected.splitlines()))
