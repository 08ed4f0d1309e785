"""Take the user's SQL apart into statements, and refuse those that would leave the checkpoint's transaction.

The text is read with PostgreSQL's own lexical rules (manual, chapter "Lexical Structure") under
``standard_conforming_strings = on``. Each statement is later sent alone in the extended protocol, which takes exactly
one. So a mistake here is loud and harmless: two statements left together are refused by the server, one cut in two is
a syntax error, and neither can commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pgonce.errors import ConfigurationError

# An effect is written by hand; a text beyond this holds data, which belongs into the input or into a table.
SQL_CHARACTERS_MAX = 1_000_000

# Enough of a statement to find it again in an editor, short enough for one line of a terminal.
EXCERPT_CHARACTERS_MAX = 60

_NAME_START = r"A-Za-z_\x80-\U0010ffff"
_OPENER = re.compile(
    rf"""
      (?P<space>[ \t\n\r\f\v]+ | --[^\n\r]*)
    | (?P<comment>/\*)
    | (?P<escape>[eE]')
    | (?P<literal>')
    | (?P<quoted>")
    | (?P<dollar>\$(?:[{_NAME_START}][{_NAME_START}0-9]*)?\$)
    | (?P<word>[{_NAME_START}][{_NAME_START}0-9$]*)
    | (?P<refused>[\\\x00])
    | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSER = {
    "escape": re.compile(r"(?:[^'\\]++|''|\\.)*+'", re.DOTALL),
    "literal": re.compile(r"(?:[^']++|'')*+'"),
    "quoted": re.compile(r'(?:[^"]++|"")*+"'),
}
_COMMENT_EDGE = re.compile(r"/\*|\*/")
# A quote on a later line goes on with the string before it, under the rules of that string.
_CONTINUED = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*+[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*+'")
_WHAT_IS_OPEN = {
    "escape": "string",
    "literal": "string",
    "quoted": "quoted name",
    "dollar": "dollar-quoted string",
    "comment": "comment",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its text without the closing semicolon, the 1-based line it starts on, its first word folded.

    ``text`` starts at the first token and ends with the last one; comments in between are kept, so that a position
    reported by the server can be counted from ``line``. ``keyword`` is the first word in lower case, opening
    parentheses skipped; empty if something else than a word comes first.
    """

    text: str
    line: int
    keyword: str


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


def split_statements(text: str, *, inline_copy: bool = False) -> tuple[Statement, ...]:
    """Split PostgreSQL SQL at the semicolons that end a statement; empty statements are dropped.

    Semicolons in strings, quoted names, dollar quotes, comments, parentheses and ``begin atomic ... end`` bodies do not
    count. Raises `ConfigurationError` naming the line for what cannot be sent as SQL: a psql backslash command, NUL,
    COPY with inline data unless ``inline_copy``, something opened and never closed, more than `SQL_CHARACTERS_MAX`
    characters.

    Safe to re-run: yes; a pure function of its argument.
    """
    if len(text) > SQL_CHARACTERS_MAX:
        raise ConfigurationError(
            f"the SQL has {len(text):,} characters, more than the {SQL_CHARACTERS_MAX:,} allowed; "
            "keep data out of it, in the input or in a table"
        )
    text = text.removeprefix("\ufeff")
    found: list[Statement] = []
    pending = _Pending(inline_copy)
    for token in _tokens(text):
        if token.text == ";" and not pending.is_inside:
            found += pending.finish(text)
            pending = _Pending(inline_copy)
        else:
            pending.add(token)
    pending.refuse_unclosed(text)
    found += pending.finish(text)
    return tuple(found)


def refuse_transaction_control(statements: Sequence[Statement]) -> None:
    """Refuse the first statement that would end, nest or outlive the transaction it is sent in.

    Refused are transaction control, settings of the session (``set local`` is allowed, except for what the checkpoint
    depends on), what the server cannot run inside a transaction block, and what a pooled connection would carry on.
    DO, CALL, LOCK and NOTIFY are allowed: the server itself refuses a commit inside them. Raises `ConfigurationError`.

    Safe to re-run: yes; a pure function of its argument.
    """
    for statement in statements:
        reason = _refusal(_words(statement.text))
        if reason is not None:
            raise ConfigurationError(f"line {statement.line}: {_excerpt(statement.text)!r} {reason}")


@dataclass(slots=True)
class _Pending:
    """The statement being read: where it starts and ends, and what is still open in it."""

    inline_copy: bool = False
    tokens: list[_Token] = field(default_factory=list)
    parentheses: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    @property
    def is_inside(self) -> bool:
        return bool(self.parentheses or self.blocks)

    def add(self, token: _Token) -> None:
        if token.text == "(":
            self.parentheses.append(token.start)
        elif token.text == ")" and self.parentheses:
            self.parentheses.pop()
        elif token.kind == "word" and not self.parentheses:
            self._follow_block(token)
        self.tokens.append(token)

    def _follow_block(self, token: _Token) -> None:
        before = _fold(self.tokens[-1].text) if self.tokens else ""
        word = _fold(token.text)
        if word == "atomic" and before == "begin" and not self.blocks and self._creates_routine():
            self.blocks.append(token.start)
        elif before in {"as", "."}:
            return  # a column label or name, where reserved words are allowed
        elif self.blocks and word == "case":
            self.blocks.append(token.start)
        elif self.blocks and word == "end":
            self.blocks.pop()

    def _creates_routine(self) -> bool:
        head = [_fold(token.text) for token in self.tokens[:4]]
        kind = head[3:4] if head[1:3] == ["or", "replace"] else head[1:2]
        return head[:1] == ["create"] and kind in (["function"], ["procedure"])

    def finish(self, text: str) -> list[Statement]:
        if not self.tokens:
            return []
        first, last = self.tokens[0], self.tokens[-1]
        opening = next((token for token in self.tokens if token.text != "("), first)
        keyword = _fold(opening.text) if opening.kind == "word" else ""
        statement = Statement(text[first.start : last.end], _line(text, first.start), keyword)
        if keyword == "copy" and not self.inline_copy:
            _refuse_inline_copy(statement)
        return [statement]

    def refuse_unclosed(self, text: str) -> None:
        if self.parentheses:
            raise _unclosed("parenthesis", text, self.parentheses[-1])
        if self.blocks:
            raise _unclosed("block (begin atomic or case)", text, self.blocks[-1])


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while (opener := _OPENER.match(text, at)) is not None:
        kind = str(opener.lastgroup)
        if kind == "refused":
            raise _refused_character(text, at)
        end = _end_of(kind, text, opener)
        if kind not in {"space", "comment"}:
            yield _Token(kind, text[at:end], at, end)
        at = end


def _end_of(kind: str, text: str, opener: re.Match[str]) -> int:
    if kind == "comment":
        return _end_of_comment(text, opener.start())
    if kind == "dollar":
        at = text.find(opener.group(), opener.end())
        if at < 0:
            raise _unclosed(_WHAT_IS_OPEN[kind], text, opener.start())
        return at + len(opener.group())
    if kind not in _CLOSER:
        return opener.end()
    goes_on: re.Match[str] | None = opener
    end = opener.end()
    while goes_on is not None:
        closer = _CLOSER[kind].match(text, goes_on.end())
        if closer is None:
            raise _unclosed(_WHAT_IS_OPEN[kind], text, opener.start())
        end = closer.end()
        goes_on = _CONTINUED.match(text, end) if kind == "escape" else None
    return end


def _end_of_comment(text: str, start: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    raise _unclosed(_WHAT_IS_OPEN["comment"], text, start)


_CONTROL = "is transaction control; pgonce begins and commits the transaction itself. Remove the statement"
_SESSION = "changes the session and would outlive the transaction on a pooled connection. Remove it, or use 'set local'"
_SESSION_OBJECT = "leaves something behind in the session, which a pooled connection would carry on. Remove it"
_NO_BLOCK = "cannot run inside a transaction block. Run it once, by hand, outside of the job"
_SESSION_LOCK = (
    "takes a lock of the session, which outlives the transaction and stays with a pooled connection. Use the function "
    "of the same name with xact in it"
)
_GUARDED = "changes a setting that the checkpoint depends on. Remove the statement"

_REFUSED_WORDS = {
    **dict.fromkeys(("begin", "commit", "end", "rollback", "abort", "savepoint", "release"), _CONTROL),
    **dict.fromkeys(("reset", "discard"), _SESSION),
    **dict.fromkeys(("listen", "unlisten", "prepare", "deallocate", "load"), _SESSION_OBJECT),
    "vacuum": _NO_BLOCK,
}
_REFUSED_STARTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("start", "transaction"), _CONTROL),
    (("prepare", "transaction"), _CONTROL),
    (("create", "database"), _NO_BLOCK),
    (("drop", "database"), _NO_BLOCK),
    (("create", "tablespace"), _NO_BLOCK),
    (("drop", "tablespace"), _NO_BLOCK),
    (("alter", "system"), _NO_BLOCK),
    (("create", "index", "concurrently"), _NO_BLOCK),
    (("create", "unique", "index", "concurrently"), _NO_BLOCK),
    (("drop", "index", "concurrently"), _NO_BLOCK),
    (("reindex", "database"), _NO_BLOCK),
    (("reindex", "schema"), _NO_BLOCK),
    (("reindex", "system"), _NO_BLOCK),
)
_SESSION_LOCKS = frozenset(
    {
        "pg_advisory_lock",
        "pg_advisory_lock_shared",
        "pg_try_advisory_lock",
        "pg_try_advisory_lock_shared",
    }
)
# Lost acknowledged commits, skipped foreign keys, another isolation: each breaks a promise without an error.
_GUARDED_SETTINGS = frozenset(
    {
        "session_replication_role",
        "synchronous_commit",
        "transaction_deferrable",
        "transaction_isolation",
        "transaction_read_only",
    }
)


def _refusal(words: tuple[str, ...]) -> str | None:
    """Say why a statement with these leading words is refused; None if it is allowed."""
    if not words:
        return None
    for start, reason in _REFUSED_STARTS:
        if words[: len(start)] == start:
            return reason
    if words[0] == "set":
        return _refusal_of_set(words[1:])
    if not _SESSION_LOCKS.isdisjoint(words):
        return _SESSION_LOCK
    if words[0] == "declare" and ("with", "hold") in pairwise(words):
        return _SESSION_OBJECT
    is_concurrent = "concurrently" in words
    if words[0] == "reindex" and is_concurrent:
        return _NO_BLOCK
    if words[0] == "alter" and "detach" in words and is_concurrent:
        return _NO_BLOCK
    if words == ("cluster",):
        return _NO_BLOCK
    return _REFUSED_WORDS.get(words[0])


def _refusal_of_set(words: tuple[str, ...]) -> str | None:
    scope = words[0] if words[:1] in (("local",), ("session",)) else ""
    target = words[1:] if scope else words
    if target[:1] == ("transaction",) or "characteristics" in (*words[1:2], *words[2:3]):
        return _CONTROL
    if not scope and target[:1] == ("constraints",):
        return None
    if scope != "local":
        return _SESSION
    if target and _setting(target[0]) in _GUARDED_SETTINGS:
        return _GUARDED
    return None


def _setting(word: str) -> str:
    return word.strip('"').lower()


def _words(text: str) -> tuple[str, ...]:
    """Give the words of a statement in lower case, comments left out; quoted names keep their quotes."""
    return tuple(_fold(token.text) for token in _tokens(text) if token.kind in {"word", "quoted"})


def _fold(word: str) -> str:
    # Only ASCII is folded: str.lower would turn U+212A into "k" and find keywords that the server does not see.
    return word.lower() if word.isascii() else word


def _refuse_inline_copy(statement: Statement) -> None:
    words = _words(statement.text)
    for pair in pairwise(words):
        if pair in {("from", "stdin"), ("to", "stdout")}:
            raise ConfigurationError(
                f"line {statement.line}: {_excerpt(statement.text)!r} moves data through the client's connection, "
                "which only psql can do. Read the rows from the relation the job gives, or from a table"
            )


def _refused_character(text: str, at: int) -> ConfigurationError:
    line = _line(text, at)
    if text[at] == "\x00":
        return ConfigurationError(f"line {line}: the SQL contains a NUL character; save the file as plain UTF-8 text")
    command = text[at:].splitlines()[0]
    return ConfigurationError(
        f"line {line}: {_excerpt(command)!r} is a command of psql, not SQL. Remove it; only SQL is sent to the server"
    )


def _unclosed(what: str, text: str, at: int) -> ConfigurationError:
    return ConfigurationError(f"line {_line(text, at)}: the {what} opened here is never closed. Close it")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _excerpt(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= EXCERPT_CHARACTERS_MAX else flat[: EXCERPT_CHARACTERS_MAX - 3] + "..."
