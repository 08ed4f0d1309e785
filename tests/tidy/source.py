"""Find the project's own files and read them once."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What the work leaves behind and git ignores; used where the tree is an export without git.
LEFT_BEHIND = frozenset({".git", ".venv", ".make", ".pgonce", "__pycache__", "build", "data", "dist"})


# A rule takes files and gives its findings, each as ``file:line: what is wrong and what to do``.
Rule = Callable[[list["File"]], Iterator[str]]


@dataclass(frozen=True)
class File:
    """A text file of the project: its path from the root, and its text."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def parts(self) -> tuple[str, ...]:
        return Path(self.path).parts


def project_files(root: Path = ROOT) -> list[File]:
    """Read every text file that is tracked or would be; binary files are left out."""
    found = []
    for path in _paths(root):
        try:
            found.append(File(path.as_posix(), (root / path).read_text(encoding="utf-8")))
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    return found


def python_files(files: list[File], *folders: str) -> list[File]:
    """Pick the Python files that lie in one of the folders, all of them if none is named."""
    return [file for file in files if file.path.endswith(".py") and (not folders or file.path.startswith(folders))]


def _paths(root: Path) -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True).stdout
        return sorted({Path(name) for name in listed.split("\0") if name})
    except (OSError, subprocess.CalledProcessError):
        walked = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return sorted(path for path in walked if not _is_left_behind(path))


def _is_left_behind(path: Path) -> bool:
    return any(part in LEFT_BEHIND or part.endswith(("_cache", ".egg-info")) for part in path.parts) or (
        path.parts[0] == ".hypothesis"
    )
