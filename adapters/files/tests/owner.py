"""The files' owner: keeps tables of its own, and publishes them as files, whole transactions at a time."""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from adapters.conformance import (
    Delete,
    Empty,
    Fill,
    Insert,
    Mark,
    Operation,
    Overwrite,
    Raise,
    RollbackTo,
    Row,
    Savepoint,
    Update,
    Writer,
)
from adapters.conformance.model import canonical
from adapters.files.tests.workbook import workbook
from algebra.schema import RelationSchema

MARKER = "_COMMITTED"
SUFFIXES = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet", "excel": ".xlsx"}
EXACT = 2**53


def dump(format_: str, table: RelationSchema, rows: Sequence[Row]) -> bytes:
    """The content of a table's file."""
    names = [column.name for column in table.columns]
    match format_:
        case "csv":
            lines = [",".join(map(_quoted, names)), *(",".join(map(_csv, row)) for row in rows)]
            return "".join(line + "\n" for line in lines).encode()
        case "jsonl":
            return "".join(_json(names, row) + "\n" for row in rows).encode()
        case "excel":
            return workbook(Sheet1=[names, *([_excel(value) for value in row] for row in rows)])
    columns = [[row[i] for row in rows] for i in range(len(names))]
    arrays = [pa.array(values, c.type) for values, c in zip(columns, table.columns, strict=True)]
    schema = pa.schema([(c.name, c.type) for c in table.columns])
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), file)
    return file.getvalue()


def replace_file(path: Path, content: bytes) -> None:
    """Write a file as owners should: under a hidden name first, then renamed over the old one."""
    hidden = path.with_name("." + path.name + ".new")
    hidden.write_bytes(content)
    os.replace(hidden, path)


class Owner:
    """The owner's tables, kept in a file of its own beside the folder, and published into it."""

    def __init__(self, directory: Path, format_: str) -> None:
        self.folder = directory / "inbox"
        self._format = format_
        self._memory = directory / "owner.pickle"
        self._lock = directory / "owner.lock"

    @contextmanager
    def transaction(self) -> Iterator[dict[str, tuple[RelationSchema, list[Row]]]]:
        """All tables, to be changed; published when the block is left, one owner at a time."""
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            number, tables = pickle.loads(self._memory.read_bytes()) if self._memory.exists() else (0, {})
            before = {name: (schema, list(rows)) for name, (schema, rows) in tables.items()}
            yield tables
            self._publish(number + 1, before, tables)
            self._memory.write_bytes(pickle.dumps((number + 1, tables)))

    def path(self, table: str) -> Path:
        return self.folder / (table + SUFFIXES[self._format])

    def _publish(self, number: int, before: dict[str, Any], after: dict[str, Any]) -> None:
        marker = self.folder / MARKER
        marker.unlink(missing_ok=True)
        for name in before.keys() - after.keys():
            self.path(name).unlink()
        for name, (schema, rows) in after.items():
            if before.get(name) != (schema, rows):
                replace_file(self.path(name), dump(self._format, schema, rows))
        replace_file(marker, str(number).encode())


class FilesWriter(Writer):
    """A program that works on the owner's tables; what it does shows when it commits."""

    def __init__(self, directory: Path, format_: str) -> None:
        self._owner = Owner(directory, format_)
        self._operations: list[Operation] = []

    def begin(self) -> None:
        self._operations = []

    def execute(self, operation: Operation) -> None:
        self._operations.append(operation)

    def rollback(self) -> None:
        self._operations = []

    def commit(self) -> None:
        done: list[Operation] = []
        for operation in self._operations:
            if isinstance(operation, RollbackTo):
                place = max(i for i, o in enumerate(done) if o == Savepoint(operation.name))
                del done[place + 1 :]
            else:
                done.append(operation)
        with self._owner.transaction() as tables:
            for operation in done:
                if not isinstance(operation, Savepoint | RollbackTo | Mark):
                    schema, rows = tables[operation.relation]
                    tables[operation.relation] = (schema, _applied(operation, schema, rows))

    def close(self) -> None:
        self._operations = []


def _applied(operation: Operation, schema: RelationSchema, rows: list[Row]) -> list[Row]:
    def place(row: Row) -> int:
        wanted = tuple(map(canonical, row))
        return next(i for i, other in enumerate(rows) if tuple(map(canonical, other)) == wanted)

    match operation:
        case Insert(_, added):
            return [*rows, *added]
        case Fill():
            return [*rows, *operation.insert.rows]
        case Raise(_, by):
            return [(number, value + by) for number, value in rows]
        case Empty():
            return []
        case Delete(_, row):
            at = place(row)
            return [*rows[:at], *rows[at + 1 :]]
        case Update(_, before, after):
            at = place(before)
            return [*rows[:at], after, *rows[at + 1 :]]
        case Overwrite(_, _, after):
            keys = [i for i, column in enumerate(schema.columns) if column.name in schema.key]
            kept = [row for row in rows if any(row[i] != after[i] for i in keys)]
            return [*kept, after]
    raise NotImplementedError(operation)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _text(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case bytes():
            return value.hex()
        case datetime():
            return value.isoformat(sep=" ")
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
    return value if isinstance(value, str) else repr(value)


def _csv(value: Any) -> str:
    if value is None:
        return ""
    return _quoted(_text(value)) if isinstance(value, str | bytes) else _text(value)


def _json(names: Sequence[str], row: Row) -> str:
    def encoded(value: Any) -> str:
        if isinstance(value, Decimal):
            return f"{value:f}"
        plain = value if value is None or isinstance(value, bool | int | float | str) else _text(value)
        return json.dumps(plain)

    return "{" + ", ".join(f"{json.dumps(n)}: {encoded(v)}" for n, v in zip(names, row, strict=True)) + "}"


def _excel(value: Any) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return value if abs(value) < EXACT else str(value)
        case float():
            odd = math.isnan(value) or math.isinf(value) or value == 0
            return repr(value) if odd else value
        case str():
            return value or None
    return _text(value)
