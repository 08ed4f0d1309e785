"""How an input is to be read: format, encoding, delimiter, header. Checked before the first byte is read."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace
from pathlib import PurePath

from pgonce.errors import ConfigurationError

FORMATS = ("csv", "tsv", "ndjson", "cloudevents", "parquet")
JSON_FORMATS = ("ndjson", "cloudevents")
# Formats in which a row says itself what its fields are called and of which type they are.
SELF_NAMING = (*JSON_FORMATS, "parquet")
COMPRESSIONS = ("none", "gzip", "zstd")
_FORMAT_BY_SUFFIX = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".cloudevents": "cloudevents",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED_SUFFIXES = {".gz", ".gzip", ".zst", ".zstd"}
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_ASCII = bytes(range(128))
_STATEFUL_CODECS = {"utf-7", "hz", "punycode", "idna", "unicode_escape", "raw_unicode_escape"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How to read an input.

    ``format`` is one of FORMATS; None takes it from the file name (below ``.gz`` or ``.zst``), then from the content
    where that says it (Parquet, CloudEvents), and ``csv`` for standard input. ``compression`` is ``none``, ``gzip`` or
    ``zstd``; None looks at the first bytes. ``delimiter`` and ``quotechar`` are one ASCII character each;
    ``quotechar=None`` turns quoting off. ``columns``
    names the columns of a file without a header (``header=False``).
    """

    format: str | None = None
    compression: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    quotechar: str | None = '"'
    header: bool = True
    columns: tuple[str, ...] | None = None

    def as_dict(self) -> dict[str, object]:
        """Return what decides how bytes become records, fit for JSON, for the record of a run.

        The compression is left out: positions and digests are on the decompressed bytes, so the same content packed
        in another way is the same input.
        """
        return {
            "format": self.format,
            "encoding": self.encoding,
            "delimiter": self.delimiter,
            "quotechar": self.quotechar,
            "header": self.header,
            "columns": None if self.columns is None else list(self.columns),
        }


def check(name: str, options: ReadingOptions) -> None:
    """Check the options as far as that can be done before the input is opened. Raises ConfigurationError."""
    if options.compression is not None and options.compression not in COMPRESSIONS:
        raise ConfigurationError(f"unknown compression {options.compression!r}; known are {', '.join(COMPRESSIONS)}")
    format_ = options.format or _format_of_name(name)
    if format_ is not None:
        resolve(name, replace(options, format=format_), None)
    _encoding(options.encoding)


def resolve(name: str, options: ReadingOptions, said: str | None) -> ReadingOptions:
    """Fill in what file name and content decide and check that the options fit together.

    ``said`` is the format that the content says it has, None where it says nothing. The result has a format and the
    codec's own name as its encoding; for formats that name their fields everything about columns is cleared, so that
    equal ways of reading compare equal. Raises ConfigurationError naming the option.
    """
    format_ = options.format or _format_of(name, said)
    if format_ not in FORMATS:
        raise ConfigurationError(f"unknown format {format_!r}; known are {', '.join(FORMATS)}")
    encoding = _encoding(options.encoding)
    if format_ in SELF_NAMING:
        return _resolve_self_naming(format_, options, encoding)
    delimiter = options.delimiter or ("\t" if format_ == "tsv" else ",")
    quotechar = options.quotechar or None
    _check_marks(delimiter, quotechar)
    _check_columns(options)
    return replace(options, format=format_, encoding=encoding, delimiter=delimiter, quotechar=quotechar)


def check_marks(head: bytes, encoding: str, name: str) -> None:
    """Refuse a file whose first bytes say that it has another encoding than the one it is to be read with."""
    if head.startswith(_UTF16_MARKS):
        raise ConfigurationError(
            f"{name}: is UTF-16 or UTF-32 text, which cannot be read line by line; convert it first: "
            "iconv -f utf-16 -t utf-8 FILE > FILE.utf8"
        )
    if head.startswith(codecs.BOM_UTF8) and encoding != "utf-8":
        raise ConfigurationError(
            f"{name}: begins with the byte order mark of UTF-8, so it is not {encoding}; leave --encoding out"
        )


def check_names(names: tuple[str, ...], where: str) -> None:
    """Refuse empty and duplicate column names, naming them. ``where`` begins the message."""
    empty = [str(number) for number, name in enumerate(names, 1) if not name.strip()]
    if empty:
        raise ConfigurationError(
            f"{where}: column {', '.join(empty)} has no name; name it, or read without a header and give --columns"
        )
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        listed = ", ".join(repr(name) for name in duplicates)
        raise ConfigurationError(f"{where}: more than one column is called {listed}; rename all but one")


def _format_of(name: str, said: str | None) -> str:
    format_ = _format_of_name(name) or said or ("csv" if name == "-" else None)
    if format_ is None:
        raise ConfigurationError(
            f"{name}: the file name does not tell the format; say --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        )
    return format_


def _format_of_name(name: str) -> str | None:
    path = PurePath(name)
    if path.suffix.lower() in _COMPRESSED_SUFFIXES:
        path = path.with_suffix("")
    return _FORMAT_BY_SUFFIX.get(path.suffix.lower())


def _encoding(name: str) -> str:
    try:
        codec = codecs.lookup(name)
    except LookupError:
        raise ConfigurationError(f"unknown encoding {name!r}; 'utf-8' or 'cp1252' are common ones") from None
    if codec.name == "utf-8-sig":
        return "utf-8"
    try:
        plain = _ASCII.decode(codec.name)
    except (UnicodeError, LookupError):
        plain = ""
    if codec.name in _STATEFUL_CODECS or codec.name.startswith("iso2022") or plain != _ASCII.decode("ascii"):
        raise ConfigurationError(
            f"encoding {name!r} cannot be read line by line; convert the file first: "
            f"iconv -f {name} -t utf-8 FILE > FILE.utf8"
        )
    return codec.name


def _resolve_self_naming(format_: str, options: ReadingOptions, encoding: str) -> ReadingOptions:
    shown = {"ndjson": "NDJSON", "cloudevents": "CloudEvents", "parquet": "Parquet"}[format_]
    if encoding != "utf-8":
        raise ConfigurationError(f"{shown} is always UTF-8, not {options.encoding!r}; leave --encoding out, or convert")
    if options.delimiter is not None or options.columns is not None:
        raise ConfigurationError(f"--delimiter and --columns do not apply to {shown}; leave them out")
    if format_ == "parquet" and options.compression not in (None, "none"):
        raise ConfigurationError("Parquet is compressed inside of the file; leave --compression out")
    return replace(options, format=format_, encoding="utf-8", quotechar=None, header=False)


def _check_marks(delimiter: str, quotechar: str | None) -> None:
    for option, mark, refused in (("--delimiter", delimiter, "\r\n\0"), ("--quotechar", quotechar, "\r\n\0 ")):
        if mark is not None and (len(mark) != 1 or not mark.isascii() or mark in refused):
            raise ConfigurationError(f"{option} {mark!r} must be one printable ASCII character")
    if delimiter == quotechar:
        raise ConfigurationError(f"--delimiter and --quotechar are both {delimiter!r}; they must differ")


def _check_columns(options: ReadingOptions) -> None:
    if options.header and options.columns is not None:
        raise ConfigurationError("--columns is for a file without a header; add --no-header, or leave --columns out")
    if not options.header:
        if not options.columns:
            raise ConfigurationError("without a header the columns need names; give them in order with --columns")
        check_names(options.columns, "--columns")
