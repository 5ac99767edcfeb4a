"""Records of text files: what is one, what is none, and in which line it begins."""

from __future__ import annotations

import csv
import io
import itertools
import random

import pytest

from adapters.files.blocks import LINES, BadRecord, Block, Dialect, Unfinished, blocks, utf8


def parts(data: bytes, *, size: int, dialect: Dialect | None = None) -> list[Block | BadRecord | Unfinished]:
    return list(blocks(io.BytesIO(data).read, dialect or Dialect(), size=size))


def records(data: bytes, size: int, dialect: Dialect | None = None) -> list[tuple[int, bytes]]:
    """Every whole record with its line."""
    found = []
    for part in parts(data, size=size, dialect=dialect):
        assert isinstance(part, Block)
        starts = part.records(dialect or Dialect())
        for low, high in itertools.pairwise(starts):
            found.append((part.line_of(int(low)), part.data[low:high]))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_records_and_lines_are_those_of_a_csv_parser_whatever_the_block_size(seed: int) -> None:
    """Two implementations agree: the vector scan, and Python's csv module line by line."""
    chance = random.Random(seed)
    alphabet = ["a", "b", ",", '"', "\n", "\r\n", "é", "表", "", "x" * 50]
    table = [["".join(chance.choices(alphabet, k=chance.randrange(6))) for _ in range(3)] for _ in range(200)]
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=chance.choice(["\n", "\r\n"])).writerows(table)
    data = file.getvalue().encode()
    expected = []
    reader = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
    line = 1
    for row in reader:
        expected.append((line, row))
        line = reader.line_num + 1
    # Python counts a lone carriage return in a quoted value as a line; there is none here.
    for size in (1, 7, 64, 1000, 1 << 20):
        found = [
            (line, next(csv.reader(io.StringIO(record.decode(), newline=""))))
            for line, record in records(data, size)
        ]
        assert found == expected


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("text", "line", "bad", "reason"),
    [
        (b'1,a\n2,5" disk\n3,c\n', 2, b'2,5" disk\n', "a quote inside a value that is not quoted"),
        (b'1,a\n2,"b"c\n3,c\n', 2, b'2,"b"c\n', "text after the closing quote of a value"),
        (b'1,"a\nb"\n2,b\rc\n3,c\n', 3, b"2,b\rc\n", "a carriage return without a line feed"),
    ],
)
def test_a_malformed_line_is_named_and_the_next_starts_afresh(
    text: bytes, line: int, bad: bytes, reason: str, size: int
) -> None:
    found = parts(text, size=size)
    assert [part for part in found if isinstance(part, BadRecord)] == [BadRecord(bad, line, reason)]
    good = b"".join(part.data for part in found if isinstance(part, Block))
    assert good == text.replace(bad, b"")
    assert isinstance(found[-1], Block)
    assert found[-1].line_of(len(found[-1].data) - 1) == text.count(b"\n")


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(("tail", "inside"), [(b"2,b", False), (b'2,"b', True), (b'2,"b\nc', True)])
def test_an_unfinished_record_at_the_end_is_told_apart(tail: bytes, inside: bool, size: int) -> None:
    *_, last = parts(b"1,a\n" + tail, size=size)
    assert last == Unfinished(tail, 2, inside)


def test_without_quotes_a_quote_is_a_character() -> None:
    dialect = Dialect(quote=None)
    assert records(b'1,5" disk\n2,"x\n', 3, dialect) == [(1, b'1,5" disk\n'), (2, b'2,"x\n')]


def test_lines_are_records_whatever_they_hold() -> None:
    assert records(b'{"a": "\\""}\n"\r\n', 4, LINES) == [(1, b'{"a": "\\""}\n'), (2, b'"\r\n')]


def test_a_record_that_is_too_long_ends_the_file() -> None:
    [first, bad] = list(blocks(io.BytesIO(b"1,a\n" + b"x" * 5000).read, Dialect(), size=16, longest=1000))
    assert isinstance(first, Block)
    assert isinstance(bad, BadRecord)
    assert bad.line == 2


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("utf-8", "\ufeffa,ü\n".encode()),
        ("utf-8", "a,ü\n".encode()),
        ("utf-16", "a,ü\n".encode("utf-16")),
        ("utf-16-le", "\ufeffa,ü\n".encode("utf-16-le")),
        ("cp1252", "a,ü\n".encode("cp1252")),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_every_encoding_becomes_utf8_without_a_byte_order_mark(encoding: str, data: bytes, size: int) -> None:
    read = utf8(io.BytesIO(data), encoding)
    found = b""
    while chunk := read(size):
        found += chunk
    assert found == "a,ü\n".encode()
