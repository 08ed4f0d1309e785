"""The standard streams of a command: what is said there is for whoever listens, and changes nothing if nobody does."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

import click


def say(text: str) -> None:
    """Say something on stderr, if anybody is there to hear it."""
    try:
        click.echo(f"pgonce: {text}", err=True)
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Let a standard stream lead nowhere from here on: what it still holds would fail again as the process ends."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
