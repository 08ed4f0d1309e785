"""Opening an input: from where, through which compression, and what is said when it is not what it was."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pgonce.errors import ConfigurationError, InputChanged, InputUnreadable, InvariantBroken
from pgonce.model.cursor import Position
from pgonce.model.record import Record
from pgonce.sources import ReadingOptions, open_input
from unit.sources.source_reading import content, positions

DATA = b"id,amount\n" + b"".join(b"%d,%d\n" % (number, number * 7) for number in range(20_000))


def zstd_compress(data: bytes, *, checksum: bool = False) -> bytes:
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: int(checksum)})


def rows(path: Path, **options: object) -> int:
    with open_input(path, ReadingOptions(**options)) as source:
        return sum(isinstance(piece, Record) for piece in source.pieces())


def test_digest_and_size_are_of_the_content_whatever_the_compression(tmp_path: Path) -> None:
    packed = {
        "a.csv": DATA,
        "b.csv.gz": gzip.compress(DATA),
        "members.csv.gz": gzip.compress(DATA[:50_000]) + gzip.compress(DATA[50_000:]),
        "c.csv.zst": zstd_compress(DATA),
        "frames.csv.zst": zstd_compress(DATA[:50_000]) + zstd_compress(DATA[50_000:]),
        "unlabelled.csv": gzip.compress(DATA),
    }
    for name, data in packed.items():
        (tmp_path / name).write_bytes(data)
        with open_input(tmp_path / name) as source:
            assert (source.digest, source.size) == (hashlib.sha256(DATA).hexdigest(), len(DATA))
            assert (source.name, source.format, source.columns) == (str(tmp_path / name), "csv", ("id", "amount"))
            assert b"".join(piece.raw for piece in source.pieces()) == DATA


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("x.CSV", "csv"),
        ("x.tsv", "tsv"),
        ("x.tab.gz", "tsv"),
        ("x.ndjson", "ndjson"),
        ("x.jsonl.zst", "ndjson"),
        ("-", "csv"),
    ],
)
def test_the_name_tells_the_format_through_the_compression(name: str, format_: str) -> None:
    with content(b'{"id":1}\n', name) as source:
        assert source.format == format_


def test_options_of_a_run_are_complete_and_fit_for_json() -> None:
    with content(DATA, "x.csv") as plain, content(DATA, "y.tsv", format="csv", delimiter=",", encoding="UTF8") as said:
        assert plain.options.as_dict() == said.options.as_dict()
        assert json.loads(json.dumps(plain.options.as_dict()))["delimiter"] == ","


@pytest.mark.parametrize("cut", [5, 30, -1, -9])
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_cut_off_compressed_data_is_refused_before_any_record(tmp_path: Path, kind: str, cut: int) -> None:
    whole = gzip.compress(DATA) if kind == "gzip" else zstd_compress(DATA)
    path = tmp_path / "cut.csv"
    path.write_bytes(whole[:cut])
    with pytest.raises(
        InputUnreadable, match=r"cut\.csv: the (gzip|zstd) data ends in the middle after byte \d+ .*line \d+"
    ):
        rows(path)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_damaged_compressed_data_is_refused_before_any_record(tmp_path: Path, kind: str) -> None:
    """For zstd only if the file has checksums; the zstd command writes them unless told not to."""
    whole = bytearray(gzip.compress(DATA) if kind == "gzip" else zstd_compress(DATA, checksum=True))
    whole[len(whole) // 2] ^= 0xFF
    path = tmp_path / "bad.csv"
    path.write_bytes(whole)
    with pytest.raises(InputUnreadable, match=r"data (is damaged|ends)"):
        rows(path)
    path.write_bytes(gzip.compress(DATA) + b"trailing rubbish")
    with pytest.raises(InputUnreadable, match="is damaged"):
        rows(path)


def test_without_the_zstd_module_the_message_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "x.csv.zst"
    path.write_bytes(zstd_compress(DATA))
    for name in ("backports.zstd", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"pip install 'pgonce\[zstd\]'"):
        rows(path)


def test_nothing_to_read_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"{}")
    for path, words in [
        (tmp_path / "none.csv", "no such file"),
        (tmp_path / "x.json", "--format"),
        (tmp_path / "a\0b.csv", "cannot be opened"),
    ]:
        with pytest.raises(ConfigurationError, match=words):
            rows(path)
    with pytest.raises(ConfigurationError, match="is a directory"):
        rows(tmp_path, format="csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(DATA)
    path.chmod(0)
    with pytest.raises(ConfigurationError, match="may not be read"):
        rows(path)


def test_several_readings_of_one_input_do_not_disturb_each_other() -> None:
    with content(gzip.compress(DATA)) as source:
        one, other = source.pieces(), source.pieces()
        assert [next(one) for _ in range(9000)] == [next(other) for _ in range(9000)]
        assert list(one) == list(other) == list(source.pieces())[9000:]


def test_a_file_renamed_or_replaced_under_us_is_still_the_one_that_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(DATA)
    with open_input(path) as source:
        path.rename(tmp_path / "y.csv")
        path.write_bytes(b"id,amount\n1,1\n")
        assert b"".join(piece.raw for piece in source.pieces()) == DATA


@pytest.mark.parametrize("change", ["append", "edit", "cut"])
def test_a_file_that_changes_while_open_is_noticed_at_the_end_at_the_latest(tmp_path: Path, change: str) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(DATA)
    with open_input(path) as source:
        with path.open("r+b") as file:
            if change == "append":
                file.seek(0, os.SEEK_END)
                file.write(b"9,9\n")
            elif change == "edit":
                file.seek(len(DATA) - 3)
                file.write(b"8")
            else:
                file.truncate(len(DATA) - 12)
        seen = []
        with pytest.raises(InputChanged, match="changed while it was read"):
            seen += source.pieces()
        assert b"9,9\n" not in [piece.raw for piece in seen]


def test_resume_refuses_to_skip_bytes_that_changed() -> None:
    with content(DATA) as source:
        pieces = list(source.pieces())
    at = positions(pieces)[10_000]
    with content(DATA.replace(b"\n5,35\n", b"\n5,36\n")) as changed, pytest.raises(InputChanged, match="first 1"):
        changed.pieces(at)
    with (
        content(DATA[: at.offset - 1]) as shorter,
        pytest.raises(InputChanged, match="not those that were already taken"),
    ):
        shorter.pieces(at)
    with content(DATA + b"9,9\n") as longer:
        assert list(longer.pieces(at))[:-1] == pieces[10_000:]


def test_a_last_line_that_grew_since_it_was_taken_is_not_read_on_from_its_middle() -> None:
    with content(b"id,amount\n1,2") as source:
        at = positions(list(source.pieces()))[-1]
    with content(b"id,amount\n1,23\n2,3\n") as longer, pytest.raises(InputChanged, match="line 2 was shorter"):
        list(longer.pieces(at))


def test_a_position_with_a_wrong_line_count_is_refused() -> None:
    with content(DATA) as source, pytest.raises(InvariantBroken, match="7 lines"):
        source.pieces(Position(10, 7, hashlib.sha256(DATA[:10]).hexdigest()))


def test_a_position_at_the_very_end_leaves_nothing() -> None:
    with content(DATA[:-1]) as source:
        assert list(source.pieces(positions(list(source.pieces()))[-1])) == []


def test_the_cursor_at_a_stored_position_leads_on_like_the_one_that_was_there() -> None:
    with content(DATA) as source:
        pieces = list(source.pieces())
        places = positions(pieces)
        cursor = source.cursor(places[500])
        assert cursor.position == places[500]
        assert cursor.advance(pieces[500].raw).position == places[501]
        with pytest.raises(InputChanged):
            source.cursor(Position(places[500].offset, places[500].lines, places[499].digest))


def test_a_position_of_zero_is_the_beginning() -> None:
    with content(DATA) as source:
        assert next(source.pieces(Position(0, 0, hashlib.sha256().hexdigest()))).raw == b"id,amount\n"


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(DATA,))
    writer.start()
    try:
        with open_input(pipe) as source:
            assert list(source.pieces()) == list(source.pieces())
            assert source.size == len(DATA)
    finally:
        writer.join()


SPOOL = """
import os, signal, sys
from pgonce.sources import open_input
with open_input("-") as source:
    print(source.name, source.format, source.digest, sum(len(piece.raw) for piece in source.pieces()), flush=True)
    if "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["live", "die"])
def test_standard_input_is_spooled_and_nothing_remains_also_after_a_kill(tmp_path: Path, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPOOL, end],
        input=gzip.compress(DATA),
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=60,
    )
    assert done.stdout.decode().split() == ["-", "csv", hashlib.sha256(DATA).hexdigest(), str(len(DATA))]
    assert done.returncode == (0 if end == "live" else -9)
    assert list(tmp_path.iterdir()) == []


def test_closed_standard_input_says_so(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigurationError, match="standard input is closed"), open_input("-"):
        pass


GREEDY = """
import resource, sys
from pgonce.sources import open_input
def read(path):
    with open_input(path) as source:
        assert sum(len(piece.raw) for piece in source.pieces()) == source.size
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(-read(sys.argv[1]) + read(sys.argv[2]))
"""


@pytest.mark.parametrize("shape", ["rows", "open quote", "one line", "blank"])
def test_memory_stays_constant_whatever_the_input(tmp_path: Path, shape: str) -> None:
    """64 MiB of content, packed to a small file, within 16 MiB more than a file of one row needs."""
    line = b"1," + b"5" * 61 + b"\n"
    unit = {"rows": line, "open quote": line, "one line": b"x" * 64, "blank": line[:60] + b"\n" * 4}[shape]
    small, large = tmp_path / "small.csv.gz", tmp_path / "large.csv.gz"
    small.write_bytes(gzip.compress(b"id,amount\n1,5\n"))
    with gzip.open(large, "wb", compresslevel=1) as packed:
        packed.write(b"id,amount\n" + (b'1,"' if shape == "open quote" else b""))
        for _ in range(64):
            packed.write(unit * (16 * 1024))
    done = subprocess.run(
        [sys.executable, "-c", GREEDY, small, large], stdout=subprocess.PIPE, check=True, text=True, timeout=120
    )
    assert int(done.stdout) < 16 * 1024
