"""Arrow tables as bytes: one IPC stream per value.

Bytes come from peers, so nothing in them is believed. Two things could make few bytes stand for very much:
compressed buffers, which Lockstep never writes and so refuses, and columns without buffers (nulls, runs) of
any length, which are caught by the rule that a row takes at least a bit. What is left is validated in full
before anyone computes with it.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from algebra.errors import DataError

MOST_COLUMNS = 10_000
DEEPEST_TYPE = 16


def to_ipc(data: pa.Table | pa.RecordBatch) -> bytes:
    """The data as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    return bytes(sink.getvalue())


def from_ipc(payload: bytes) -> pa.Table:
    """The table an IPC stream holds, validated; DataError if the bytes are not one."""
    try:
        _refuse_compression(payload)
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            _check_schema(reader.schema)
            table = reader.read_all()
        if table.num_rows > 8 * len(payload):
            raise DataError(f"{len(payload)} bytes of Arrow cannot hold {table.num_rows} rows")
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError) as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"not an Arrow IPC stream: {text}") from error
    except (struct.error, MemoryError, RecursionError, UnicodeError) as error:
        raise DataError("not an Arrow IPC stream") from error


def schema_to_ipc(schema: pa.Schema) -> bytes:
    """A schema as an IPC stream without rows."""
    return to_ipc(schema.empty_table())


def _check_schema(schema: pa.Schema) -> None:
    if len(schema) > MOST_COLUMNS:
        raise DataError(f"an Arrow schema has {len(schema)} columns; at most {MOST_COLUMNS} are taken")
    for field in schema:
        _check_type(field.type, 0)


def _check_type(kind: pa.DataType, depth: int) -> None:
    if depth > DEEPEST_TYPE:
        raise DataError(f"an Arrow type is nested deeper than {DEEPEST_TYPE} levels")
    for at in range(kind.num_fields):
        _check_type(kind.field(at).type, depth + 1)


# The metadata of a message is a flatbuffer; only as much of it is read here as tells whether buffers are
# compressed.
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_DATA, _COMPRESSION = 1, 3


def _refuse_compression(payload: bytes) -> None:
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(payload)):
        data = memoryview(message.metadata)
        root = _offset(data, 0)
        kind_at, header_at = _field(data, root, _HEADER_TYPE), _field(data, root, _HEADER)
        if kind_at is None or header_at is None:
            continue
        batch: int | None = _offset(data, header_at)
        if data[kind_at] == _DICTIONARY_BATCH:
            inner = _field(data, batch or 0, _DICTIONARY_DATA)
            batch = None if inner is None else _offset(data, inner)
        elif data[kind_at] != _RECORD_BATCH:
            continue
        if batch is not None and _field(data, batch, _COMPRESSION) is not None:
            raise DataError("an Arrow stream is compressed; send it as it is")


def _offset(data: memoryview, at: int) -> int:
    """The position that an offset at `at` points to."""
    found: int = at + struct.unpack_from("<I", data, at)[0]
    return found


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table is; None if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise DataError("not an Arrow IPC stream")
    entry = 4 + 2 * number
    if entry >= struct.unpack_from("<H", data, vtable)[0]:
        return None
    found: int = struct.unpack_from("<H", data, vtable + entry)[0]
    return table + found if found else None
