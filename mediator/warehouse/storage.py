"""How a view's columns are stored in Delta tables, which know fewer types and names than Arrow does.

Problem: Delta has no unsigned and no time types, forbids some characters in column names, and its readers
take names as equal that differ only in case. The stored tables shall be readable by any Delta reader, with
the real names and types wherever Delta has them, and our own readers shall get back exactly what was
declared.

Wrong ways: Delta's column mapping (physical names no reader wants to see, and not every reader supports it);
neutral names `c0..cn` for all (then every foreign reader sees them); refusing such views.

Chosen way: a legal name and a native type are stored as they are. Everything else is widened or escaped by
the rules below, which depend on the declared schema alone, so nothing else has to be recorded.

Types: `uint8/16/32` as the next wider signed integer, `uint64` as `decimal(20,0)`; times as `int64`
microseconds since midnight; timestamps of seconds and milliseconds as microseconds, of nanoseconds as
`int64` nanoseconds since 1970; time zones as UTC; large and view variants of strings and binaries as the
plain ones.

Names: a name with one of `` ,;{}()=%`` or a control character is percent-encoded (those characters only); a
name that, case ignored, was used before gets `%` and its column number as a suffix.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from algebra.errors import DataError
from algebra.schema import COUNT

_ILLEGAL = re.compile(r"[ ,;{}()=%\x00-\x1f\x7f]")
_RESERVED = ("_count", "_version")
_MICROSECONDS = pa.time64("us")


@dataclass(frozen=True)
class StorageType:
    """One stored type: in Arrow, in DuckDB, and the DuckDB expression that restores the declared type."""

    arrow: pa.DataType
    sql: str
    restore: str = "{}"


@dataclass(frozen=True)
class StorageColumn:
    """One view column and its stored form."""

    name: str
    type: pa.DataType
    stored_name: str
    stored: StorageType

    @property
    def quoted(self) -> str:
        return quote(self.stored_name)


@dataclass(frozen=True)
class Storage:
    """The stored form of a view's columns; build it with `storage_of`."""

    columns: tuple[StorageColumn, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The stored columns, without `_count` and `_version`; every column is nullable."""
        return pa.schema([pa.field(c.stored_name, c.stored.arrow) for c in self.columns])

    @cached_property
    def declared(self) -> pa.Schema:
        """The view's own columns, without `_count` and `_version`."""
        return pa.schema([pa.field(c.name, c.type) for c in self.columns])

    def with_columns(self, *extra: str) -> pa.Schema:
        """The stored columns, followed by `int64` columns of these names."""
        return pa.schema([*self.schema, *(pa.field(name, pa.int64()) for name in extra)])

    def to_stored(self, table: pa.Table, *extra: str) -> pa.Table:
        """The same rows in stored form; `table` holds the view's columns (declared or stored) and `extra`."""
        names = table.column_names
        target = self.with_columns(*extra)
        if table.schema.equals(target):
            return table
        missing = [c.name for c in self.columns if c.name not in names and c.stored_name not in names]
        missing += [name for name in extra if name not in names]
        if missing:
            raise DataError(f"rows for a view lack its columns {', '.join(missing)}")
        arrays = [
            _store(table[c.name if c.name in names else c.stored_name], c.stored.arrow, c.name)
            for c in self.columns
        ]
        arrays += [_integer(table[name], name) for name in extra]
        return pa.table(arrays, schema=target)

    def restore(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """A batch of DuckDB's result with the declared names and types, by position."""
        arrays = [
            array if array.type.equals(field.type) else pc.cast(array, field.type)
            for array, field in zip(batch.columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def restore_table(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """A table of DuckDB's result with the declared names and types, by position."""
        batches = [self.restore(batch, schema) for batch in table.to_batches()]
        return pa.Table.from_batches(batches, schema)


def no_rows(storage: Storage, *extra: str) -> str:
    """A SELECT with the stored columns and these integer columns, and without rows."""
    columns = [f"CAST(NULL AS {column.stored.sql}) AS {column.quoted}" for column in storage.columns]
    columns += [f"CAST(NULL AS BIGINT) AS {name}" for name in extra]
    return f"SELECT {', '.join(columns)} WHERE false"


def declared_schema(storage: Storage, counted: bool) -> pa.Schema:
    """The view's columns, and `_count` where it is wanted."""
    return storage.declared.append(pa.field(COUNT, pa.int64())) if counted else storage.declared


def storage_of(schema: pa.Schema) -> Storage:
    """The stored form of these columns.

    >>> storage_of(pa.schema([("unit price", pa.uint8())])).schema.names
    ['unit%20price']
    """
    used = set(_RESERVED)
    columns = []
    for number, declared in enumerate(schema):
        stored = _ILLEGAL.sub(lambda match: f"%{ord(match[0]):02X}", declared.name) or "%"
        if stored.casefold() in used:
            stored = f"{stored}%{number}"
        used.add(stored.casefold())
        columns.append(StorageColumn(declared.name, declared.type, stored, _stored_type(declared)))
    return Storage(tuple(columns))


def quote(name: str) -> str:
    """A DuckDB identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A DuckDB string literal."""
    return "'" + text.replace("'", "''") + "'"


_SIMPLE: dict[pa.DataType, StorageType] = {
    pa.int8(): StorageType(pa.int8(), "TINYINT"),
    pa.int16(): StorageType(pa.int16(), "SMALLINT"),
    pa.int32(): StorageType(pa.int32(), "INTEGER"),
    pa.int64(): StorageType(pa.int64(), "BIGINT"),
    pa.uint8(): StorageType(pa.int16(), "SMALLINT", "CAST({} AS UTINYINT)"),
    pa.uint16(): StorageType(pa.int32(), "INTEGER", "CAST({} AS USMALLINT)"),
    pa.uint32(): StorageType(pa.int64(), "BIGINT", "CAST({} AS UINTEGER)"),
    pa.uint64(): StorageType(pa.decimal128(20, 0), "DECIMAL(20,0)", "CAST({} AS UBIGINT)"),
    pa.float16(): StorageType(pa.float32(), "FLOAT"),
    pa.float32(): StorageType(pa.float32(), "FLOAT"),
    pa.float64(): StorageType(pa.float64(), "DOUBLE"),
    pa.bool_(): StorageType(pa.bool_(), "BOOLEAN"),
    pa.date32(): StorageType(pa.date32(), "DATE"),
    pa.date64(): StorageType(pa.date32(), "DATE"),
}

_STRINGS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
)
_BINARIES: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def _stored_type(column: pa.Field) -> StorageType:
    type_ = column.type
    if type_ in _SIMPLE:
        return _SIMPLE[type_]
    if any(test(type_) for test in _STRINGS):
        return StorageType(pa.string(), "VARCHAR")
    if any(test(type_) for test in _BINARIES):
        return StorageType(pa.binary(), "BLOB")
    if pa.types.is_decimal(type_) and type_.precision <= 38 and 0 <= type_.scale <= type_.precision:
        decimal = pa.decimal128(type_.precision, type_.scale)
        return StorageType(decimal, f"DECIMAL({type_.precision},{type_.scale})")
    if pa.types.is_time(type_) and type_.unit != "ns":
        return StorageType(pa.int64(), "BIGINT", "CAST(make_timestamp({}) AS TIME)")
    if pa.types.is_timestamp(type_):
        if type_.unit == "ns":
            return StorageType(pa.int64(), "BIGINT", "make_timestamp_ns({})")
        if type_.tz is None:
            return StorageType(pa.timestamp("us"), "TIMESTAMP")
        return StorageType(pa.timestamp("us", "UTC"), "TIMESTAMPTZ")
    raise DataError(f"column {column.name!r} has the type {type_}, which the warehouse cannot store exactly")


def _store(array: pa.ChunkedArray, target: pa.DataType, name: str) -> pa.ChunkedArray:
    """The values in their stored type; raises DataError where one does not fit."""
    try:
        if pa.types.is_time(array.type) and pa.types.is_integer(target):
            array = pc.cast(array, _MICROSECONDS)
        return array if array.type.equals(target) else pc.cast(array, target)
    except pa.ArrowInvalid as error:
        raise DataError(f"a value of column {name!r} does not fit its type {target}: {error}") from None
    except pa.ArrowNotImplementedError:
        raise DataError(f"column {name!r} has the type {array.type}, {target} was declared") from None


def _integer(array: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    if not pa.types.is_integer(array.type):
        raise DataError(f"column {name!r} has the type {array.type}, it must be an integer")
    if array.null_count:
        raise DataError(f"column {name!r} holds NULL")
    return pc.cast(array, pa.int64())
