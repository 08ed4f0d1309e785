"""The marker ``.wiki-lab``: only a folder that has it, and is ours, is ever stopped and removed as a lab."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from pgonce.errors import ConfigurationError
from pgonce.server import watch

NAME = ".wiki-lab"
USABLE = re.compile(r"/[\w./+-]+", re.ASCII)
"""A path that needs no quoting: not in a shell, not in PostgreSQL's list of socket folders, not in PATH."""
BYTES_MAX = 20_000
"""Two paths, each of at most 4096 bytes, written in JSON."""


def write(new: Path, folder: Path, env_file: Path) -> None:
    """Mark a new folder, which will be called ``folder``, as a lab, and note which file leads to it."""
    descriptor = os.open(new / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps({"folder": os.fspath(folder), "env_file": os.fspath(env_file)}) + "\n")


def noted(folder: Path) -> tuple[str, str]:
    """Return the folder that the marker in this one was written for, and the file that leads to it; empty if none."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, encoding="utf-8", errors="surrogateescape") as file:
            found = json.loads(file.read(BYTES_MAX))
        return str(found["folder"]), str(found["env_file"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


def check(folder: Path, home: Path) -> None:
    """Raise ConfigurationError unless this folder is a lab of ours and its server, which lies in ``home``, its own."""
    try:
        what = _what_is_wrong(folder, home)
    except PermissionError:
        what = "you may not look into it, so it is another user's"
    if what is not None:
        raise ConfigurationError(
            f"{str(folder)!r} is not taken for a lab of yours: {what}. Nothing was stopped or removed. "
            "If 'lab.env' names a wrong folder, remove that file; if the folder is yours, look at it first."
        )


def _what_is_wrong(folder: Path, home: Path) -> str | None:
    if USABLE.fullmatch(str(folder)) is None or os.path.realpath(folder) != str(folder):
        return "its path is not one that a lab gets"
    if not folder.is_dir():
        return "it is no folder"
    try:
        marker = (folder / NAME).lstat()
    except FileNotFoundError:
        return f"it has no marker {NAME}"
    if not stat.S_ISREG(marker.st_mode) or marker.st_uid != os.geteuid():
        return f"its marker {NAME} is another user's"
    if noted(folder)[0] != str(folder):
        return f"its marker {NAME} was written for another folder"
    return _wrong_server(folder, home)


def _wrong_server(folder: Path, home: Path) -> str | None:
    pgdata = home / watch.PGDATA
    if home.is_symlink() or pgdata.is_symlink():
        return f"its {watch.PGDATA} is a link to another place"
    try:
        lines = (pgdata / "postmaster.pid").read_text().split("\n")
    except OSError:
        return None
    named = [line for line in (lines[1:2] + lines[4:5]) if line]
    if any(os.path.realpath(line) not in (str(folder), str(pgdata)) for line in named):
        return "the server that it points to lies in another folder"
    return None
