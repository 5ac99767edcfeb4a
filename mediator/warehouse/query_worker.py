"""The program of a query's process: takes one query from its input, and writes the answer to its output.

It is started as a file, by `query_process.py`, and imports nothing of ours: so it is there quickly, and holds
nothing that a query could be after. It knows neither the configuration nor any secret.

Input: parts, each with its length before it: the request as JSON, and one Arrow stream for each table that
the request names. Then the input stays open for as long as somebody wants the answer; its end is that of the
process, whatever it is doing, so it does not outlive a mediator that was killed.

Before the query runs, DuckDB's own parser tells what it names (`_check`). The mediator has looked already,
with another parser; but the files of views and the rows that come with the request hold hidden columns, and
DuckDB's catalog tells where, so no name may reach them on which two parsers do not agree.

Output: frames, each with its kind and length: the schema, rows, and in the end either END or ERROR. What
breaks off before is no answer.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

if __name__ == "__main__":
    # DuckDB and Arrow import them where they find them: two thirds of the time until a process is ready.
    sys.modules["numpy"] = sys.modules["pandas"] = None  # type: ignore[assignment]

import duckdb
import pyarrow as pa

LENGTH = struct.Struct("<Q")
HEADER = struct.Struct("<cQ")
SCHEMA, ROWS, END, ERROR = b"S", b"R", b".", b"!"

ALLOWANCE = 256 << 20
"""Bytes that a query may take beyond its memory, which is DuckDB's share: texts that functions make, and the
answer's rows on their way."""
ROWS_AT_ONCE = 4_096
"""Rows that DuckDB turns into Arrow at once; it does not count the memory of that."""
FRAME_BYTES = 4 << 20
"""What a frame holds at most, unless a single row is larger."""
ROW_BYTES = 64 << 20
"""What a row may take: the mediator has to hold it."""
_NAMED = """
SELECT
    json_extract_string(tree, '$.error_message'),
    json_extract_string(tree, '$..table_name'),
    json_extract_string(tree, '$..schema_name'),
    json_extract_string(tree, '$..show_type'),
    json_extract_string(tree, '$..function.function_name'),
    json_extract_string(tree, '$..function_name')
FROM (SELECT json_serialize_sql(?) AS tree)
"""
"""What a text names, as DuckDB's parser takes it."""
_UNITS = {"bytes": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


class RefusedQueryError(Exception):
    """The query names what it must not."""


class RowTooLargeError(Exception):
    """A row of the answer takes more than `ROW_BYTES`."""


def main() -> NoReturn:
    """Serve the one query."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    connection = duckdb.connect(config={"python_enable_replacements": False})
    connection.execute(_NAMED, ["SELECT 1"]).fetchall()  # the first time takes longest
    length = source.read(LENGTH.size)
    if len(length) < LENGTH.size:
        os._exit(0)  # nobody had a query
    request = json.loads(source.read(*LENGTH.unpack(length)))
    tables = {name: pa.ipc.open_stream(_part(source)).read_all() for name in request["tables"]}
    threading.Thread(target=_wait_for_the_end, args=[request["spill"]], daemon=True).start()
    stage = "settings"
    try:
        connection.execute("SET temp_directory = ?", [request["spill"]])
        for setting in request["settings"]:
            connection.execute(setting)
        _bound(connection)
        stage = "query"
        for name, table in tables.items():
            connection.register(name, table)
        for view in request["views"].values():
            connection.execute(view)
        _check(connection, request)
        _answer(sink, connection.sql(request["sql"]).to_arrow_reader(ROWS_AT_ONCE))
    except Exception as error:
        told = {"stage": stage, "kind": type(error).__name__, "text": str(error)[:10_000]}
        with suppress(BrokenPipeError):
            _send(sink, ERROR, json.dumps(told).encode())
    _end(request["spill"])


def _part(source: BinaryIO) -> bytes:
    return source.read(*LENGTH.unpack(source.read(LENGTH.size)))


def _wait_for_the_end(spill: str) -> None:
    os.read(0, 1)
    _end(spill)


def _end(spill: str) -> NoReturn:
    shutil.rmtree(spill, ignore_errors=True)  # whoever made it may have been killed
    os._exit(0)  # at once: what there is to free goes with the process


def _bound(connection: duckdb.DuckDBPyConnection) -> None:
    """Bounds all memory of the process, now that DuckDB's threads have their stacks."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # if the machine's memory ends nevertheless, this process is the one to go
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if sys.platform != "linux":
        return  # others do not count what is mapped
    ((shown,),) = connection.execute("SELECT current_setting('memory_limit')").fetchall()
    number, unit = str(shown).split()
    memory = int(float(number) * (1 << _UNITS[unit]))
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"^VmData:\s*(\d+) kB$", status, re.MULTILINE)
    held = int(found[1]) << 10 if found else 0
    # Not the address space: allocators and threads reserve much of that, and take little of it.
    resource.setrlimit(resource.RLIMIT_DATA, (held + memory + ALLOWANCE,) * 2)


def _check(connection: duckdb.DuckDBPyConnection, request: Mapping[str, Any]) -> None:
    """Raises RefusedQueryError for anything but one SELECT over the views of the request."""
    statements = connection.extract_statements(request["sql"])
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise RefusedQueryError("a query is one SELECT")
    ((problem, tables, schemas, shown, table_functions, functions),) = connection.execute(
        _NAMED, [request["sql"]]
    ).fetchall()
    if problem is not None:
        raise RefusedQueryError(f"what the query names cannot be told: {problem}")
    forbidden = re.compile(request["forbidden"], re.IGNORECASE)
    for function in {*table_functions} - {*request["table_functions"]}:
        raise RefusedQueryError(f"the function {function} must not be used in a query; name views instead")
    for function in filter(forbidden.fullmatch, functions):
        raise RefusedQueryError(f"the function {function} must not be used in a query")
    if shown:
        raise RefusedQueryError(f"{shown[0]} must not be used in a query")
    if any(schemas):
        raise RefusedQueryError("names with a schema must not be used in a query; name views instead")
    views = {name.encode().lower() for name in request["views"]}  # of bytes, the letters of ASCII alone
    for table in dict.fromkeys(tables):
        if table.encode().lower() not in views and _finds(connection, table):
            raise RefusedQueryError(f"{table!r} must not be used in a query; name views instead")


def _finds(connection: duckdb.DuckDBPyConnection, name: str) -> bool:
    """Whether the name stands for something where it is no common table expression."""
    try:
        connection.sql('FROM "' + name.replace('"', '""') + '"')
    except (duckdb.CatalogException, duckdb.PermissionException):
        return False
    except duckdb.Error:
        return True
    return True


def _answer(sink: BinaryIO, reader: pa.RecordBatchReader) -> None:
    _send(sink, SCHEMA, _stream(reader.schema))
    for batch in reader:
        for piece in _pieces(batch):
            _send(sink, ROWS, _stream(batch.schema, piece))
    _send(sink, END, b"")


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces that fit into frames; none if it has no rows."""
    if batch.num_rows > 1 and batch.nbytes > FRAME_BYTES:
        half = batch.num_rows // 2
        yield from _pieces(batch.slice(0, half))
        yield from _pieces(batch.slice(half))
    elif batch.nbytes > ROW_BYTES:
        raise RowTooLargeError
    elif batch.num_rows:
        yield batch


def _stream(schema: pa.Schema, *batches: pa.RecordBatch) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write(batch)
    return sink.getvalue()


def _send(sink: BinaryIO, kind: bytes, payload: Any) -> None:
    sink.write(HEADER.pack(kind, len(payload)))
    sink.write(payload)
    sink.flush()


if __name__ == "__main__":
    main()
