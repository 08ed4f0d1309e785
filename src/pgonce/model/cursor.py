"""How far an input was read, and proof of what was read: an offset, a line count and a digest of the bytes before it.

A position says nothing about names or times. It can be checked against any copy of the input by hashing the bytes
before its offset; if the digest is the same, those bytes are the ones that were settled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Hasher(Protocol):
    """What a cursor needs of a hash object from ``hashlib``."""

    def copy(self) -> Hasher: ...
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the decompressed input, as it is stored with a run.

    ``offset`` is in bytes, ``lines`` is the number of line feeds before it, ``digest`` the SHA-256 (hex) of all bytes
    before it. Two positions are equal only if the same bytes lie before them.
    """

    offset: int
    lines: int
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Cursor:
    """A place in the decompressed input together with the running hash that leads on from it.

    A cursor never changes: `advance` answers with a new one. So the cursor of a chunk that was rolled back is simply
    dropped, and the one of the last commit is still there.
    """

    offset: int
    lines: int
    hasher: Hasher

    @classmethod
    def start(cls) -> Cursor:
        """Return the cursor at the beginning of an input."""
        return cls(0, 0, hashlib.sha256())

    def advance(self, raw: bytes | Iterable[bytes]) -> Cursor:
        """Return the cursor behind ``raw``: bytes, or several bytes that follow each other.

        Safe to re-run: this cursor stays as it is.
        """
        parts = (raw,) if isinstance(raw, bytes) else raw
        offset, lines, hasher = self.offset, self.lines, self.hasher.copy()
        for part in parts:
            offset += len(part)
            lines += part.count(b"\n")
            hasher.update(part)
        return Cursor(offset, lines, hasher)

    def advance_counted(self, raw: bytes, lines: int) -> Cursor:
        """Return the cursor behind ``raw``, which is known to hold this number of line feeds.

        Safe to re-run: this cursor stays as it is.
        """
        hasher = self.hasher.copy()
        hasher.update(raw)
        return Cursor(self.offset + len(raw), self.lines + lines, hasher)

    @property
    def digest(self) -> str:
        """The SHA-256 (hex) of all bytes before this cursor."""
        return self.hasher.hexdigest()

    @property
    def position(self) -> Position:
        """This place as a value that can be stored and compared."""
        return Position(self.offset, self.lines, self.digest)
