"""Arrow tables as bytes: one IPC stream per value."""

from __future__ import annotations

import pyarrow as pa

from algebra.errors import DataError


def to_ipc(data: pa.Table | pa.RecordBatch) -> bytes:
    """The data as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    return bytes(sink.getvalue())


def from_ipc(payload: bytes) -> pa.Table:
    """The table an IPC stream holds; DataError if the bytes are not one."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            return reader.read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"not an Arrow IPC stream: {error}") from error


def schema_to_ipc(schema: pa.Schema) -> bytes:
    """A schema as an IPC stream without rows."""
    return to_ipc(schema.empty_table())
