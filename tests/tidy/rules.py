"""The house rules for Python and for text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tidy.source import File

# One sitting to read, one screen to grasp: the sizes that easily read programs have in practice.
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70

VAGUE_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "misc"})

# Spelled with a class around one letter, so that this file does not contain what it looks for.
UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b")
FOREIGN = {
    "the host name of a package registry": re.compile(r"pyp[i]\.(?:org|io)|pythonhoste[d]|npmj[s]\.", re.IGNORECASE),
    "the address of a package index": re.compile(r"--(?:extra-)?inde[x]-url|PIP_INDE[X]_URL|UV_INDE[X]"),
    "a path of somebody's machine": re.compile(r"(?<![\w.}*])/(?:wor[k]|roo[t]|hom[e]/\w+)/"),
    "a word about who wrote it": re.compile(
        r"\bsub-?agen[t]s?\b|\bA[I] (?:agent|assistant)|\blanguage mode[l]", re.IGNORECASE
    ),
}
PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+(?: ; .+)?")

IMPURE_CALLS = frozenset({"open", "print", "input"})
IMPURE_METHODS = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "read_text", "read_bytes", "write_text"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def long_modules(files: list[File]) -> Iterator[str]:
    for file in files:
        if len(file.lines) > MODULE_LINES_MAX:
            yield (
                f"{file.path}:{MODULE_LINES_MAX + 1}: the module has {len(file.lines)} lines, "
                f"more than {MODULE_LINES_MAX}; split it by noun"
            )


def long_functions(files: list[File]) -> Iterator[str]:
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, Function) and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX:
                yield (
                    f"{file.path}:{node.lineno}: {node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}; "
                    "keep the control flow and move the rest into functions below it"
                )


def vague_names(files: list[File]) -> Iterator[str]:
    for file in files:
        names = [part.removesuffix(".py").strip("_") for part in file.parts]
        for name in names:
            if name in VAGUE_NAMES:
                yield f"{file.path}:1: {name!r} says nothing about what is inside; name the module after its one job"


def undocumented_modules(files: list[File]) -> Iterator[str]:
    for file in files:
        if ast.get_docstring(file.tree) is None:
            yield f"{file.path}:1: the module has no docstring; say in a sentence what its one job is"


def impure_model(files: list[File]) -> Iterator[str]:
    for file in files:
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            is_impure = (isinstance(function, ast.Name) and function.id in IMPURE_CALLS) or (
                isinstance(function, ast.Attribute) and function.attr in IMPURE_METHODS
            )
            if is_impure:
                yield f"{file.path}:{node.lineno}: {ast.unparse(function)} reads or writes the world; hand the value in"


def working_asserts(files: list[File]) -> Iterator[str]:
    """An assert that calls something does work that is gone where asserts are stripped; looking at a type is none."""
    for file in files:
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.Assert):
                continue
            for call in ast.walk(node.test):
                if isinstance(call, ast.Call) and ast.unparse(call.func) not in {"isinstance", "len"}:
                    yield f"{file.path}:{node.lineno}: the assert calls {ast.unparse(call.func)}; call it before"


def unfinished_work(files: list[File]) -> Iterator[str]:
    for file in files:
        for number, line in enumerate(file.lines, start=1):
            if found := UNFINISHED.search(line):
                yield f"{file.path}:{number}: {found.group()} marks unfinished work; do it, or open an issue"


def foreign_words(files: list[File]) -> Iterator[str]:
    for file in files:
        for number, line in enumerate(file.lines, start=1):
            for what, pattern in FOREIGN.items():
                if found := pattern.search(line):
                    yield f"{file.path}:{number}: {found.group()!r} is {what}; the project speaks of itself only"


def loose_pins(files: list[File]) -> Iterator[str]:
    for file in files:
        for number, line in enumerate(file.lines, start=1):
            if line.strip() and not line.startswith("#") and not PINNED.fullmatch(line):
                yield f"{file.path}:{number}: {line!r} is not of the form name==version"


def undocumented_names(names: dict[str, object]) -> Iterator[str]:
    for name, value in names.items():
        if not callable(value):
            continue
        text = value.__doc__ or ""
        if not text.strip() or text.startswith(f"{name}("):
            yield f"pgonce.{name}: the public name has no docstring"
        elif not isinstance(value, type) and "Safe to re-run:" not in text:
            yield f"pgonce.{name}: the docstring has no 'Safe to re-run:' line"
