"""Text of somebody else's on a terminal: nothing in it may break a line or be obeyed."""

from __future__ import annotations


def printable(text: str | None) -> str:
    """Escape what would break a line or what a terminal would obey; None is empty."""
    if text is None or text.isprintable():
        return text or ""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
