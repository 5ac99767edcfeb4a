"""A text file as blocks of whole records, each with the number of its first line.

Problem: a file is parsed by native code that wants large pieces, must be read with bounded memory, and a
row that cannot be parsed must be named by its line. A record is not a line: quoted values hold line ends.

Wrong ways: let the parser see the whole file (the first bad row ends it, and its row number is no line
number); split at line ends (cuts quoted values); count quotes alone (one stray quote in the middle of a
value turns inside and outside around for the rest of the file, and native parsers silently join `"a"b`).

Chosen way: find the quotes and line ends of a block with vector operations. A quote is only legal where it
opens a value, ends one, or is doubled inside one; the first that is not makes its line malformed, and the
next line starts afresh. Up to there, a line end with an even number of quotes before it ends a record.
What is left of a block becomes the head of the next. A lone carriage return outside of quotes is malformed
too: parsers take it for a line end.

An unfinished record at the end of the file is somebody's append that is under way: it is left for later.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

BLOCK_BYTES = 4 << 20
_BOM = codecs.BOM_UTF8
_UNDECODABLE = "\ufdd0"
"""Stands for what could not be decoded: a noncharacter, that no text is to hold."""

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dialect:
    """What ends values and records.

    `quote` is None where values are never quoted. `returns`: whether carriage returns may be anywhere.
    """

    delimiter: bytes = b","
    quote: bytes | None = b'"'
    returns: bool = False


LINES = Dialect(b"", None, returns=True)
"""A record is a line, as in JSON-lines."""


@dataclass(frozen=True)
class Block:
    """Whole records, from line `line` on. The last one of a file may lack its line end."""

    data: bytes
    line: int

    def records(self, dialect: Dialect) -> Offsets:
        """Where each record begins, and where the last one ends."""
        ends = _record_ends(self.data, dialect)
        size = len(self.data)
        tail = [] if len(ends) and ends[-1] == size else [size]
        return np.concatenate(([0], ends, tail)).astype(np.int64)

    def line_of(self, offset: int) -> int:
        """The line that an offset is in."""
        return self.line + self.data.count(b"\n", 0, offset)


@dataclass(frozen=True)
class BadRecord:
    """A stretch of the file that is no record, and why. `last`: the file ends inside of it."""

    data: bytes
    line: int
    reason: str
    last: bool = False


@dataclass(frozen=True)
class Unfinished:
    """The end of the file: a record without its end, which may still be written."""

    data: bytes
    line: int
    inside_quotes: bool


class Reads(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


def utf8(file: Reads, encoding: str) -> Callable[[int], bytes]:
    """A function that reads the next bytes of the file, as UTF-8 whatever its encoding is.

    UTF-8 itself is passed through unchecked: the parsers check it. In other encodings, what cannot be
    decoded becomes U+FDD0, which `undecodable` finds.
    """
    if encoding == "utf-8":
        start = [True]

        def plain(size: int) -> bytes:
            data = file.read(size)
            if start[0]:
                start[0] = False
                while data and len(data) < len(_BOM) and (more := file.read(len(_BOM))):
                    data += more
                return data.removeprefix(_BOM) or file.read(size)
            return data

        return plain
    decoder = codecs.getincrementaldecoder(encoding)(errors="lockstep-mark")
    started, done = [False], [False]

    def decoded(size: int) -> bytes:
        while not done[0]:
            data = file.read(size)
            done[0] = not data
            text = decoder.decode(data, final=done[0])
            if text and not started[0]:
                started[0] = True
                text = text.removeprefix("\ufeff")
            if text:
                return text.encode("utf-8", "surrogatepass")
        return b""

    return decoded


def undecodable(record: bytes) -> bool:
    """Whether a record of a file in another encoding holds what could not be decoded."""
    return _UNDECODABLE.encode() in record


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return _UNDECODABLE, error.end


codecs.register_error("lockstep-mark", _mark)


def blocks(
    read: Callable[[int], bytes], dialect: Dialect, *, size: int = BLOCK_BYTES, longest: int = 64 << 20
) -> Iterator[Block | BadRecord | Unfinished]:
    """The file's records in order, and what is none. A record longer than `longest` ends the file."""
    rest, line, wanted = b"", 1, size
    while True:
        chunk = read(wanted)
        data = rest + chunk
        end, bad = _scan(data, dialect, final=not chunk)
        if end:
            block = Block(data[:end], line)
            yield block
            line += block.data.count(b"\n")
        if bad is not None:
            stop, reason = bad
            yield BadRecord(data[end:stop], line, reason)
            line += data.count(b"\n", end, stop)
            end = stop
        rest = data[end:]
        if not chunk and (bad is None or not rest):
            break
        if len(rest) > longest:
            yield BadRecord(rest, line, f"the row is longer than {longest >> 20} MB (option `max_line_mb`)")
            return
        # A record longer than a block: take more at a time, so that it is not scanned again and again.
        wanted = max(size, len(rest)) if bad is None else size
    if rest:
        inside = dialect.quote is not None and rest.count(dialect.quote) % 2 == 1
        yield Unfinished(rest, line, inside)


def _scan(data: bytes, dialect: Dialect, *, final: bool) -> tuple[int, tuple[int, str] | None]:
    """Where the whole records at the start of `data` end; and, if what follows is malformed for sure, where
    that ends, and why."""
    problem = _first_problem(data, dialect)
    if problem is None:
        ends = _record_ends(data, dialect) if dialect.quote and dialect.quote in data else None
        return (data.rfind(b"\n") + 1 if ends is None else int(ends[-1]) if len(ends) else 0), None
    place, reason = problem
    ends = _record_ends(data[:place], dialect)
    start = int(ends[-1]) if len(ends) else 0
    stop = data.find(b"\n", place) + 1
    if stop == 0 and not final:
        return start, None
    return start, (stop or len(data), reason)


def _record_ends(data: bytes, dialect: Dialect) -> Offsets:
    """The offsets after each line end that is outside of quotes."""
    view = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(view == 10)
    if dialect.quote is not None and dialect.quote in data:
        quotes = np.flatnonzero(view == dialect.quote[0])
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return ends + 1


def _first_problem(data: bytes, dialect: Dialect) -> tuple[int, str] | None:
    """The first quote or carriage return that may not be where it is."""
    view = np.frombuffer(data, np.uint8)
    problems: list[tuple[int, str]] = []
    quotes = np.empty(0, np.int64)
    if dialect.quote is not None and dialect.quote in data:
        quotes = np.flatnonzero(view == dialect.quote[0])
        delimiter = dialect.delimiter[0]
        opening, closing = quotes[0::2], quotes[1::2]
        before = view[opening - 1]
        legal = (opening == 0) | (before == delimiter) | (before == 10)
        legal[1:] |= opening[1:] == closing[: len(opening) - 1] + 1  # the second half of a doubled quote
        wrong = np.flatnonzero(~legal)
        if len(wrong):
            problems.append((int(opening[wrong[0]]), "a quote inside a value that is not quoted"))
        inner = closing[closing < len(data) - 1]
        after = view[inner + 1]
        legal = (after == delimiter) | (after == 10) | (after == 13) | (after == dialect.quote[0])
        wrong = np.flatnonzero(~legal)
        if len(wrong):
            problems.append((int(inner[wrong[0]]), "text after the closing quote of a value"))
    if not dialect.returns and data.count(b"\r") != data.count(b"\r\n"):
        returns = np.flatnonzero(view == 13)
        inner = returns[returns < len(data) - 1]  # what follows the last byte is still to be written
        lone = inner[(view[inner + 1] != 10) & (np.searchsorted(quotes, inner) % 2 == 0)]
        if len(lone):
            problems.append((int(lone[0]), "a carriage return without a line feed"))
    return min(problems) if problems else None
