"""What the readers of all formats share: the shape of a relation, and batches of it from one open file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from adapters.files.blocks import BLOCK_BYTES, BadRecord, Block, Dialect, Unfinished, blocks, utf8
from adapters.files.malformed import Malformed
from adapters.files.options import TAKE, RelationOptions
from adapters.files.types import from_text

Parse = Callable[[bytes], pa.Table]
"""Records as a table; raises one of `BROKEN` if any of them is malformed."""


class IncompleteError(Exception):
    """The file is not a whole one (yet): it is waited for."""


class ShapeError(Exception):
    """The file has no columns that could be told, or other ones than expected; the text says which."""


class DriftError(Exception):
    """The file holds a column that the relation has not; the text says which, as in "got column 'x'"."""


class RowError(Exception):
    """A record is malformed; the text says why."""


BROKEN = (pa.ArrowInvalid, UnicodeDecodeError, RowError)


@dataclass(frozen=True)
class FileShape:
    """The columns of one file: names in order, each with a type if the file itself tells one."""

    names: tuple[str, ...]
    types: Mapping[str, pa.DataType]

    def without(self, excluded: frozenset[str]) -> FileShape:
        """The columns that are not excluded."""
        return FileShape(
            tuple(name for name in self.names if name not in excluded),
            {name: type_ for name, type_ in self.types.items() if name not in excluded},
        )


@dataclass(frozen=True)
class Task:
    """One file to be read: its name for messages, how, as which schema, with which key, and where malformed
    rows go."""

    file: str
    options: RelationOptions
    schema: pa.Schema
    key: tuple[str, ...]
    malformed: Malformed
    longest: int


class Reader(ABC):
    """One format."""

    @abstractmethod
    def shape(self, file: BinaryIO, options: RelationOptions, longest: int) -> FileShape | None:
        """The columns that the file has now; None if it holds nothing that tells. Cheap."""

    @abstractmethod
    def infer(self, file: BinaryIO, names: Sequence[str], options: RelationOptions, longest: int) -> Guess:
        """What the types of these columns could be, from all values of the file."""

    @abstractmethod
    def batches(self, file: BinaryIO, task: Task) -> Iterator[pa.RecordBatch]:
        """The rows, with exactly `task.schema`, a bounded number at a time; malformed ones are reported."""


@dataclass(frozen=True)
class Guess:
    """For each column the types that all its values seen so far have, the best first; empty: none seen."""

    candidates: Mapping[str, tuple[pa.DataType, ...] | None]

    def merged(self, other: Guess) -> Guess:
        """What both allow."""
        both = dict(self.candidates)
        for name, types in other.candidates.items():
            known = both.get(name)
            if known is None or types is None:
                both[name] = types if known is None else known
            else:
                both[name] = tuple(t for t in known if t in types)
        return Guess(both)

    def type_of(self, name: str) -> pa.DataType | None:
        """The best type; text for a column without values; None if the values have nothing in common."""
        types = self.candidates.get(name)
        return pa.string() if types is None else types[0] if types else None


def typed(field: pa.Field, texts: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """A column of texts as its type; RowError if one of them is no such value."""
    try:
        return from_text(texts, field.type)
    except pa.ArrowInvalid as error:
        raise RowError(f"column {field.name!r}: {str(error).splitlines()[0]}") from error


def check_key(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The table; RowError if a key column of it holds NULL."""
    for name in key:
        if table[name].null_count:
            raise RowError(f"column {name!r} is of the key and has no value")
    return table


def text_blocks(
    file: BinaryIO, options: RelationOptions, dialect: Dialect, longest: int
) -> Iterator[Block | BadRecord]:
    """The records of a text file. A last line that may still be written is left out, unless it is to be
    taken; one that ends inside a quoted value is malformed."""
    size = min(BLOCK_BYTES, longest)
    for part in blocks(utf8(file, options.encoding), dialect, size=size, longest=longest):
        if not isinstance(part, Unfinished):
            yield part
        elif part.inside_quotes and (b"\n" in part.data or options.last_line == TAKE):
            yield BadRecord(part.data, part.line, "a quoted value that is never closed", last=True)
        elif options.last_line == TAKE:
            yield Block(part.data, part.line)


def parsed(
    part: Block | BadRecord,
    task: Task,
    dialect: Dialect,
    parse: Parse,
    explain: Callable[[Exception, bytes], str],
) -> Iterator[pa.Table]:
    """The tables of a block's good records; the malformed ones are found by halving, and reported.

    A block of good records is one call of `parse`; each malformed one costs the logarithm of the block more.
    """
    if isinstance(part, BadRecord):
        task.malformed.report(task.file, part.line, part.reason, part.data, last=part.last)
        return
    try:
        yield parse(part.data)
        return
    except BROKEN:
        starts = part.records(dialect)
    pending = [(0, len(starts) - 1)]
    while pending:
        low, high = pending.pop()
        data = part.data[starts[low] : starts[high]]
        try:
            yield parse(data)
        except BROKEN as error:
            if high - low == 1:
                line = part.line_of(int(starts[low]))
                task.malformed.report(task.file, line, explain(error, data), data)
            else:
                middle = (low + high) // 2
                pending += [(middle, high), (low, middle)]
