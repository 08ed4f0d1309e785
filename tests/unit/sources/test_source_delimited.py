"""CSV and TSV: what the csv module reads from the whole is what comes out, with every byte accounted for."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgonce.errors import ConfigurationError
from pgonce.model.record import Filler, Malformed, Record
from unit.sources.source_reading import content, joined, limits, malformed, positions, read, records

FIELD = st.text(
    st.sampled_from('ab7,"\n\r\t;\u00e9\u65e5\U0001f600 ')
    | st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"),
    max_size=8,
)
ROWS = st.lists(st.tuples(FIELD, FIELD, FIELD), max_size=12)
BROKEN = st.lists(
    st.sampled_from(
        [
            b"id,amount\n",
            b"1,5\n",
            b'"',
            b",",
            b"\n",
            b"\r\n",
            b"\r",
            b"\0",
            b"\xff",
            b"a",
            b'"x"',
            b"\xef\xbb\xbf",
            b"z" * 90,
        ]
    ),
    max_size=40,
).map(b"".join)


def written(rows: list[tuple[str, ...]], *, lineterminator: str) -> bytes:
    """Write as the csv module does; with bare line feeds all is quoted, as its older versions forget to quote a CR."""
    out = io.StringIO(newline="")
    quoting = csv.QUOTE_MINIMAL if lineterminator == "\r\n" else csv.QUOTE_ALL
    csv.writer(out, lineterminator=lineterminator, quoting=quoting).writerows([("id", "amount", "note"), *rows])
    return out.getvalue().encode()


@given(ROWS, st.sampled_from(["\r\n", "\n"]), st.sampled_from([b"", b"\xef\xbb\xbf"]), st.integers(16, 300))
def test_records_are_those_the_csv_module_reads_from_the_whole(rows, end, mark, block) -> None:
    data = mark + written(rows, lineterminator=end)
    with limits(block=block, record=10_000):
        pieces = read(data)
    expected = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True))[1:]
    assert malformed(pieces) == []
    assert {tuple(fields) for fields in records(pieces)} <= {("id", "amount", "note")}
    assert [list(fields.values()) for fields in records(pieces)] == expected == [list(row) for row in rows]


@given(ROWS)
def test_line_is_where_the_record_begins(rows) -> None:
    data = written(rows, lineterminator="\n")
    before = 0
    for piece in read(data):
        if isinstance(piece, Record):
            assert piece.line == before + 1
        before += piece.raw.count(b"\n")


@given(ROWS, st.integers(16, 300))
def test_resume_from_any_boundary_gives_the_same_remaining_pieces(rows, block) -> None:
    data = written(rows, lineterminator="\n")
    with limits(block=block, record=10_000), content(data) as source:
        pieces = list(source.pieces())
        for number, position in enumerate(positions(pieces)):
            assert list(source.pieces(position)) == pieces[number:]


@settings(max_examples=300)
@given(BROKEN, st.integers(16, 200))
@example(b'"a"x,5" pipe,"multi\nline,7,8",9\n1,5\n', 64)
@example(b'1,"' + b"\n" * 500 + b'",7\n8,9\n', 64)
def test_no_bytes_are_lost_or_read_twice_whatever_the_input_and_wherever_it_resumes(data, block) -> None:
    """Also from inside of a skipped record, where nobody should have stored a position."""
    with limits(block=block, record=256, skip=64), content(data, header=False, columns=("id", "amount")) as source:
        pieces = list(source.pieces())
        assert b"".join(piece.raw for piece in pieces) == data
        assert all(piece.raw for piece in pieces)
        for number, position in enumerate(positions(pieces)):
            before = pieces[number - 1].raw if number else b""
            if len(before) == 64 and not before.strip(b"\n"):
                continue  # 64 line feeds in a row inside of a skipped record: the one cut that cannot be told
            assert joined(list(source.pieces(position))) == joined(pieces[number:])


@settings(max_examples=300)
@given(BROKEN, st.integers(16, 200), st.integers(16, 200))
def test_result_does_not_depend_on_how_the_input_arrives_in_blocks(data, one, other) -> None:
    results = []
    for block in (one, other):
        with limits(block=block, record=256, skip=64):
            results.append(read(data, header=False, columns=("id", "amount")))
    assert results[0] == results[1]


@given(
    st.lists(st.sampled_from(["1,2", '"a","b"', '"x', 'y"', '"a"b,2', "3,4", "\u00e9,5", '""', '5" pipe,6'])).map(
        "\n".join
    )
)
def test_every_record_is_one_that_the_csv_module_reads_from_the_same_bytes(text) -> None:
    for piece in read(text.encode(), header=False, columns=("id", "amount")):
        if isinstance(piece, Record):
            [row] = csv.reader(io.StringIO(piece.raw.decode(), newline=""), strict=True)
            assert list(piece.fields.values()) == row


def test_tsv_other_delimiter_and_no_quoting() -> None:
    assert records(read(b"id\tnote\n1\ta,b\n", "given.tsv")) == [{"id": "1", "note": "a,b"}]
    assert records(read(b"id;note\n1;'a;b'\n", delimiter=";", quotechar="'")) == [{"id": "1", "note": "a;b"}]
    assert records(read(b'id,note\n1,"a\n', quotechar=None)) == [{"id": "1", "note": '"a'}]


def test_other_encodings_are_read_as_said() -> None:
    assert records(read("id,name\n1,Zo\u00eb\n".encode("cp1252"), encoding="cp1252")) == [
        {"id": "1", "name": "Zo\u00eb"}
    ]
    assert records(read("id,name\n1,\u8868\n".encode("shift_jis"), encoding="shift_jis")) == [
        {"id": "1", "name": "\u8868"}
    ]


def test_without_a_header_the_names_are_given() -> None:
    assert records(read(b"1,5\n", header=False, columns=("id", "amount"))) == [{"id": "1", "amount": "5"}]


def test_blank_lines_and_header_are_fillers_and_a_last_line_needs_no_line_feed() -> None:
    pieces = read(b"\n\r\nid,amount\n\n1,5\n\n2,6")
    assert [type(piece).__name__ for piece in pieces] == ["Filler"] * 4 + ["Record", "Filler", "Record"]
    assert [piece.line for piece in pieces if isinstance(piece, Record)] == [5, 7]


def test_file_with_only_a_header_has_no_records() -> None:
    assert read(b"id,amount") == [Filler(b"id,amount")]


@pytest.mark.parametrize(
    ("row", "line", "reason"),
    [
        (b"1", 2, "has 1 column, but 2 are expected"),
        (b"1,2,3", 2, "has 3 columns, but 2 are expected"),
        (b"  ", 2, "has 1 column, but 2 are expected"),
        (b"1,\xff5", 2, "cannot be decoded as utf-8 at byte 3 of line 2"),
        (b'1,"a\nb\xc3"', 2, "cannot be decoded as utf-8 at byte 2 of line 3"),
        (b"1,\x00", 2, "NUL byte"),
        (b"1,2\r3,4", 2, "lone carriage return"),
        (b'1,"a"b', 2, "a closing quote is followed by other text"),
        (b"\xef\xbb\xbf1,5", 2, "byte order mark in the middle"),
    ],
)
def test_a_bad_record_says_why_and_its_neighbours_are_taken(row, line, reason) -> None:
    pieces = read(b"id,amount\n" + row + b"\n8,9\n")
    assert records(pieces) == [{"id": "8", "amount": "9"}]
    [(at, why)] = malformed(pieces)
    assert at == line
    assert reason in why


def test_text_inside_of_a_broken_quoted_field_is_never_taken_as_a_row() -> None:
    """The second line looks like a payment, but is text of a note that another program wrote badly."""
    pieces = read(b'id,note\n1,"he said "pay "now\n999,100\nplease"\n2,ok\n')
    assert records(pieces) == [{"id": "2", "note": "ok"}]
    [(line, reason)] = malformed(pieces)
    assert line == 2
    assert "lines 2 to 4 belong to it" in reason


def test_even_quotes_do_not_end_a_record_that_a_forgiving_reader_still_has_open() -> None:
    pieces = read(b'a,b,c\n"x"y,5" pipe,"text\n7,8,9\nmore"\n1,2,3\n')
    assert records(pieces) == []
    [(_, reason)] = malformed(pieces)
    assert "a quote in it is never closed" in reason


def test_a_quote_that_is_never_closed_swallows_the_rest_as_one_finding() -> None:
    pieces = read(b'id,note\n1,ok\n2,"open\n3,x\n4,y\n')
    assert records(pieces) == [{"id": "1", "note": "ok"}]
    [(line, reason)] = malformed(pieces)
    assert line == 3
    assert "never closed" in reason
    assert "lines 3 to 5 " in reason


def test_an_overlong_record_is_skipped_in_parts_and_the_next_one_is_taken() -> None:
    long_line = b"1," + b"x" * 5000 + b"\n"
    long_field = b'2,"' + b"y\n" * 2500 + b'"\n'
    with limits(record=1024, skip=64):
        pieces = read(b"id,note\n" + long_line + long_field + b"3,z\n")
    assert records(pieces) == [{"id": "3", "note": "z"}]
    assert [line for line, _ in malformed(pieces)] == [2, 3]
    assert all("longer than" in reason for _, reason in malformed(pieces))
    assert max(len(piece.raw) for piece in pieces) <= 64


def test_record_of_exactly_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    for extra, taken in ((0, 1), (1, 0)):
        with limits(record=1024):
            for row in (b"1," + b"x" * (1021 + extra) + b"\n", b'1,"\n' + b"x" * (1018 + extra) + b'"\n'):
                assert len(row) == 1024 + extra
                assert len(records(read(b"id,note\n" + row))) == taken


def test_a_field_larger_than_the_csv_modules_default_is_read() -> None:
    [fields] = records(read(b"id,note\n1," + b"x" * 500_000 + b"\n"))
    assert len(str(fields["note"])) == 500_000


def test_position_inside_of_a_skipped_record_never_leads_to_a_row() -> None:
    """A reader that began in the middle would take the text for rows."""
    data = b'id,note\n1,"open\n' + b"9,5\n" * 100
    with limits(record=128, skip=64), content(data) as source:
        pieces = list(source.pieces())
        assert sum(isinstance(piece, Filler) for piece in pieces) > 3
        for position in positions(pieces)[1:-1]:
            assert not [piece for piece in source.pieces(position) if isinstance(piece, Record)]
            assert [piece.line for piece in source.pieces(position) if isinstance(piece, Malformed)] == [2]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty, without even a header"),
        (b"\n\n", "is empty, without even a header"),
        (b"id,amount,id\n1,2,3\n", "more than one column is called 'id'"),
        (b"id,,amount, \n", "column 2, 4 has no name"),
        (b"id,\xff\n1,2\n", "the header (line 1) cannot be read: cannot be decoded as utf-8"),
        (b'id,"amount\n1,2\n', "never closed"),
        (b"id,amount\r1,2\r", "lone carriage return"),
        (b"x" * 2_000_000, "the header (line 1) cannot be read: the record is longer than"),
        ("id,amount\n1,2\n".encode("utf-16"), "is UTF-16"),
        ("id,amount\n1,2\n".encode("utf-16-le"), "UTF-16"),
    ],
)
def test_a_header_that_cannot_be_used_is_refused_with_the_reason(data, words) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(data)
    assert words in str(caught.value)
    assert str(caught.value).startswith("given.csv")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "xml"}, "unknown format"),
        ({"compression": "rar"}, "unknown compression"),
        ({"encoding": "klingon"}, "unknown encoding"),
        ({"encoding": "utf-16"}, "iconv"),
        ({"encoding": "cp037"}, "iconv"),
        ({"encoding": "utf-7"}, "iconv"),
        ({"encoding": "iso2022_jp"}, "iconv"),
        ({"encoding": "rot13"}, "iconv"),
        ({"delimiter": ",,"}, "--delimiter"),
        ({"delimiter": "\u00a7"}, "--delimiter"),
        ({"quotechar": "\n"}, "--quotechar"),
        ({"delimiter": '"'}, "must differ"),
        ({"columns": ("id",)}, "--no-header"),
        ({"header": False}, "--columns"),
        ({"header": False, "columns": ("id", "id")}, "more than one column"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(options, words) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(b"id,amount\n1,2\n", **options)
    assert words in str(caught.value)


def test_a_byte_order_mark_under_another_encoding_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="byte order mark of UTF-8"):
        read(b"\xef\xbb\xbfid\n1\n", encoding="cp1252")


def test_no_line_is_lost_where_a_character_has_a_byte_that_looks_like_the_delimiter() -> None:
    """The second byte of this character in Shift JIS is the vertical bar."""
    data = 'id|note\n1|\u30dd"a|"text\nmore"x\n2|b\n'.encode("shift_jis")
    assert b"\x83|" in data
    read(data, encoding="shift_jis", delimiter="|")
    assert records(read("id|note\n1|\u30dd\n".encode("shift_jis"), encoding="shift_jis", delimiter="|")) == [
        {"id": "1", "note": "\u30dd"}
    ]
