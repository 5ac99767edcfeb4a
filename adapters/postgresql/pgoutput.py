"""Messages of logical decoding's `pgoutput` plugin, turned into columns without a loop over rows.

A transaction's messages arrive one per changed row. They are only sorted into buckets here, by relation and
kind; of a bucket, all messages lie in one buffer and are parsed column by column: where a column begins in
every row is where the last one ended, so one column of all rows takes a few numpy operations. Values come
in their text form and are converted by Arrow, each column at once.

Order within a transaction is of no use: what it did is a bag of rows that left and rows that came.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from algebra.errors import SchemaChangedError

MARK_PREFIX = "_lockstep:mark"
TRUNCATE_PREFIX = "_lockstep:truncate"

INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")
_NULL, _UNCHANGED, _TEXT = ord("n"), ord("u"), ord("t")
_OLD = ord("O")
_LONG = 256
"""Values longer than this on average are copied one by one; an index per byte would cost more."""
_CONTENT_BYTES, _TEXT_BYTES = 700, 48
"""About what Python takes for a content, and for each message or text in it."""

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RelationMessage:
    """A table as the log knew it when the changes after this message were written."""

    oid: int
    schema: str
    table: str
    columns: tuple[str, ...]


@dataclass(slots=True)
class Content:
    """What one transaction did: its messages in buckets.

    `truncated`: by number of the prepared relation, the rows that a TRUNCATE removed, as record literals.
    `unexplained`: tables whose TRUNCATE came without its rows.
    """

    changes: dict[tuple[RelationMessage, int], list[bytes]] = field(default_factory=dict)
    marks: list[tuple[str | None, str | None]] = field(default_factory=list)
    truncated: dict[int, list[str]] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether it is of no concern: nothing captured was changed, and it has no mark."""
        return not (self.changes or self.marks or self.truncated or self.unexplained)

    @property
    def rows(self) -> int:
        """How many rows of changes it has, about."""
        changed = sum((2 if kind == UPDATE else 1) * len(found) for (_, kind), found in self.changes.items())
        return changed + sum(map(len, self.truncated.values()))

    @property
    def size(self) -> int:
        """How many bytes of memory it takes, about."""
        messages = sum(_TEXT_BYTES + len(text) for found in self.changes.values() for text in found)
        return (
            _CONTENT_BYTES
            + messages
            + sum(_TEXT_BYTES + len(text) for found in self.truncated.values() for text in found)
        )


class Kept(Protocol):
    """A content that is kept somewhere else."""

    def read(self) -> Content: ...


@dataclass(slots=True)
class Entry:
    """One committed transaction of the log: where its commit ends, who it was, how much it did, and what."""

    end: int
    xid: int
    committed: int
    rows: int
    kept: Content | Kept

    @property
    def content(self) -> Content:
        return self.kept if isinstance(self.kept, Content) else self.kept.read()

    @property
    def mark(self) -> str:
        """What tells this entry from any other that could end at the same place."""
        return f"{self.xid}.{self.committed}"


class Decoder:
    """Collects messages into entries; one per stream, for the messages refer to each other."""

    def __init__(self) -> None:
        self._relations: dict[int, RelationMessage] = {}
        self._begun: tuple[int, int] = (0, 0)
        self._content: Content | None = None

    def feed(self, message: bytes) -> Entry | None:
        """Take the next message; the entry that it completes, if it does."""
        kind = message[0]
        content = self._content
        if kind in (INSERT, UPDATE, DELETE):
            assert content is not None
            relation = self._relations[int.from_bytes(message[1:5], "big")]
            bucket = content.changes.get((relation, kind))
            if bucket is None:
                bucket = content.changes[relation, kind] = []
            bucket.append(message)
            return None
        match chr(kind):
            case "B":
                committed, xid = struct.unpack_from("!QI", message, 9)
                self._begun, self._content = (xid, committed), Content()
            case "C":
                assert content is not None
                (end,) = struct.unpack_from("!Q", message, 10)
                self._content = None
                return Entry(end, *self._begun, content.rows, content)
            case "R":
                relation = _relation(message)
                self._relations[relation.oid] = relation
            case "T":
                assert content is not None
                self._truncate(content, message)
            case "M":
                # Transactional ones only: others come between transactions and are not ours.
                if message[1] & 1 and content is not None:
                    _logical_message(content, message)
        return None

    def _truncate(self, content: Content, message: bytes) -> None:
        (count,) = struct.unpack_from("!I", message, 1)
        for oid in struct.unpack_from(f"!{count}I", message, 6):
            relation = self._relations[oid]
            if not content.truncated:
                content.unexplained.append(f"{relation.schema}.{relation.table}")


def _logical_message(content: Content, message: bytes) -> None:
    end = message.index(b"\0", 10)
    prefix = message[10:end].decode()
    text = message[end + 5 :].decode()
    if prefix == MARK_PREFIX:
        id_, participants = json.loads(text)
        content.marks.append((id_, participants))
    elif prefix == TRUNCATE_PREFIX:
        number, _, told = text.partition(" ")
        rows = json.loads(told)
        if isinstance(rows, str):  # not rows, but the name of the table
            content.unexplained.append(rows)
        else:
            content.truncated.setdefault(int(number), []).extend(rows)


def _relation(message: bytes) -> RelationMessage:
    (oid,) = struct.unpack_from("!I", message, 1)
    schema, table, rest = message[5:].split(b"\0", 2)
    (count,) = struct.unpack_from("!H", rest, 1)
    columns, at = [], 3
    for _ in range(count):
        end = rest.index(b"\0", at + 1)
        columns.append(rest[at + 1 : end].decode())
        at = end + 9
    return RelationMessage(oid, schema.decode() or "pg_catalog", table.decode(), tuple(columns))


@dataclass(frozen=True)
class Rows:
    """Rows of one relation in text form: a string array per column, and of each row the count and the place
    of its message in the list that was parsed."""

    columns: list[pa.Array]
    counts: Ints
    messages: Ints


def parse(relation: RelationMessage, kind: int, messages: Sequence[bytes]) -> list[Rows]:
    """The rows that these messages of one kind say came (+1) or left (-1)."""
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    at = np.zeros(len(messages), np.int64)
    np.cumsum(lengths[:-1], out=at[1:])
    raw = b"".join(messages)
    # A little longer than needed, so that reading ahead at the end stays inside.
    buffer = np.frombuffer(raw + b"\0" * 8, np.uint8)
    at = at + 5
    order = np.arange(len(messages), dtype=np.int64)
    ones = np.ones(len(messages), np.int64)
    if kind == INSERT:
        new, _ = _tuples(relation, raw, buffer, at + 1, None)
        return [Rows(new, ones, order)]
    if not bool(np.all(buffer[at] == _OLD)):
        raise SchemaChangedError(
            f"table {relation.schema}.{relation.table} does not log whole old rows any more"
            " (REPLICA IDENTITY FULL); prepare again"
        )
    old, at = _tuples(relation, raw, buffer, at + 1, None)
    if kind == DELETE:
        return [Rows(old, -ones, order)]
    new, _ = _tuples(relation, raw, buffer, at + 1, old)
    return [Rows(old, -ones, order), Rows(new, ones, order)]


def _tuples(
    relation: RelationMessage, raw: bytes, buffer: Bytes, at: Ints, old: list[pa.Array] | None
) -> tuple[list[pa.Array], Ints]:
    """The columns of the tuples that begin at these places, and where each tuple ends.

    A large value that an update left alone is not in the log again; it is taken from `old`.
    """
    at = at + 2  # the number of columns, which the relation tells
    columns = []
    for number in range(len(relation.columns)):
        kind = buffer[at]
        is_text = kind == _TEXT
        length = np.where(is_text, _int32(buffer, at + 1), 0)
        column = _strings(raw, buffer, at + 5, length, is_text)
        unchanged = kind == _UNCHANGED
        if bool(unchanged.any()):
            if old is None:
                raise SchemaChangedError(
                    f"table {relation.schema}.{relation.table} does not log whole old rows any more"
                    " (REPLICA IDENTITY FULL); prepare again"
                )
            column = pa.compute.if_else(pa.array(unchanged), old[number], column)
        columns.append(column)
        at = np.where(is_text, at + 5 + length, at + 1)
    return columns, at


def _int32(buffer: Bytes, at: Ints) -> Ints:
    at = np.minimum(at, len(buffer) - 4)
    parts = [buffer[at + i].astype(np.int64) << (24 - 8 * i) for i in range(4)]
    return parts[0] | parts[1] | parts[2] | parts[3]


def _strings(raw: bytes, buffer: Bytes, start: Ints, length: Ints, valid: npt.NDArray[np.bool_]) -> pa.Array:
    ends = np.zeros(len(start) + 1, np.int64)
    np.cumsum(length, out=ends[1:])
    total = int(ends[-1])
    if total > _LONG * len(start):
        view = memoryview(raw)
        pieces = zip(start.tolist(), (start + length).tolist(), strict=True)
        data: object = b"".join([view[first:last] for first, last in pieces if last > first])
    else:
        data = buffer[np.repeat(start - ends[:-1], length) + np.arange(total)]
    validity = None if bool(valid.all()) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    array = pa.Array.from_buffers(
        pa.large_string(), len(start), [validity, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    return array.cast(pa.string()) if total < 2**31 else array
