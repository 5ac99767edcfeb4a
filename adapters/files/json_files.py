"""JSON-lines: one object per line, whose keys are the columns; an absent key is NULL.

Numbers are converted from their text, so that decimals and large integers stay exact. pyarrow does that, but
breaks down on some lines that are no objects; so DuckDB looks at each line first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import json as pa_json

from adapters.files.blocks import LINES, Block, undecodable
from adapters.files.options import RelationOptions
from adapters.files.readers import (
    DriftError,
    FileShape,
    Guess,
    Reader,
    RowError,
    ShapeError,
    Task,
    check_key,
    parsed,
    text_blocks,
    typed,
)
from adapters.files.types import as_text_first, scratch

_INFERRED: dict[str, tuple[pa.DataType, ...] | None] = {
    "NULL": None,
    "BOOLEAN": (pa.bool_(),),
    "BIGINT": (pa.int64(), pa.float64()),
    "UBIGINT": (pa.int64(), pa.float64()),
    "HUGEINT": (pa.int64(), pa.float64()),
    "DOUBLE": (pa.float64(),),
    "VARCHAR": (pa.string(),),
}
"""What DuckDB finds the values of a key to be, and the types that they can be shown as."""

_CHANGED = re.compile(r"JSON parse error: Column\(/(.*)\) changed from (\w+) to (\w+)", re.DOTALL)
_CONVERTED = re.compile(r"Failed to convert JSON to (.+?)(?:, couldn't parse)?: ?(.*)", re.DOTALL)


class JsonReader(Reader):
    """JSON-lines files."""

    def shape(self, file: BinaryIO, options: RelationOptions, longest: int) -> FileShape | None:
        """None: which columns there are is only known when every line was read."""
        return None

    def infer(self, file: BinaryIO, names: Sequence[str], options: RelationOptions, longest: int) -> Guess:
        guess = Guess({})
        for part in text_blocks(file, options, LINES, longest):
            if not isinstance(part, Block):
                continue
            # A malformed line tells nothing, and is named when the file is read.
            lines = _lines(part.data.decode(errors="replace").encode(), replace(options, encoding="utf-8"))
            with scratch() as connection:
                connection.register("lines", lines)
                [(found,)] = connection.execute(
                    "SELECT json_group_structure(j) FROM (SELECT TRY_CAST(line AS JSON) AS j FROM lines) "
                    "WHERE json_type(j) = 'OBJECT'"
                ).fetchall()
            structure = json.loads(found) if found else {}
            guess = guess.merged(Guess({name: _candidates(name, type_) for name, type_ in structure.items()}))
        return guess

    def batches(self, file: BinaryIO, task: Task) -> Iterator[pa.RecordBatch]:
        def parse(data: bytes) -> pa.Table:
            return check_key(_parse(data, task), task.key)

        for part in text_blocks(file, task.options, LINES, task.longest):
            for table in parsed(part, task, LINES, parse, lambda error, data: _reason(error)):
                yield from table.to_batches()


def _candidates(name: str, found: object) -> tuple[pa.DataType, ...] | None:
    if isinstance(found, str):
        return _INFERRED.get(found, ())
    raise ShapeError(f"has lists or objects in {name!r}; name it in option `exclude`, or declare it as text")


def _lines(data: bytes, options: RelationOptions) -> pa.Table:
    """Each line, line ends included, as a table with the column `line`; no bytes are copied."""
    data.decode()
    if options.encoding != "utf-8" and undecodable(data):
        raise RowError(f"bytes that are not {options.encoding}")
    starts = Block(data, 1).records(LINES)
    buffers = [None, pa.py_buffer(starts.astype(np.int64)), pa.py_buffer(data)]
    return pa.table({"line": pa.Array.from_buffers(pa.large_string(), len(starts) - 1, buffers)})


def _parse(data: bytes, task: Task) -> pa.Table:
    schema, options = task.schema, task.options
    with scratch() as connection:
        connection.register("lines", _lines(data, options))
        rows = connection.execute(
            "SELECT valid, kind FROM (SELECT line, json_valid(line) AS valid, "
            "json_type(CASE WHEN json_valid(line) THEN line END) AS kind FROM lines) "
            "WHERE trim(line, E' \\t\\r\\n') <> '' AND (NOT valid OR kind <> 'OBJECT') LIMIT 1"
        ).fetchall()
    if rows:
        valid, kind = rows[0]
        raise RowError(f"a JSON {kind.lower()}, not an object" if valid else "not valid JSON")
    if not data.strip():
        return schema.empty_table()
    late = {f.name for f in schema if as_text_first(f.type, dates=True)}
    wanted = pa.schema([(f.name, pa.string() if f.name in late else f.type) for f in schema])
    hidden = [(name, pa.null()) for name in sorted(options.exclude)]
    try:
        table = pa_json.read_json(
            pa.BufferReader(data),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1024),
            parse_options=pa_json.ParseOptions(
                explicit_schema=wanted,
                newlines_in_values=False,
                # What is excluded may be anything; otherwise a key that is no column is an error.
                unexpected_field_behavior="ignore" if hidden else "error",
            ),
        )
    except pa.ArrowInvalid as error:
        if "unexpected field" in str(error):
            raise _unexpected(data, task) from error
        raise
    if hidden:
        _check_keys(data, task)
    return pa.Table.from_arrays(
        [typed(f, table[f.name]) if f.name in late else table[f.name] for f in schema], schema=schema
    )


def _check_keys(data: bytes, task: Task) -> None:
    names = [*task.schema.names, *task.options.exclude]
    with scratch() as connection:
        connection.register("lines", _lines(data, task.options))
        unknown = connection.execute(
            "SELECT 1 FROM (SELECT unnest(json_keys(line)) AS k FROM lines "
            "WHERE trim(line, E' \\t\\r\\n') <> '') WHERE NOT list_contains($1, k) LIMIT 1",
            [names],
        ).fetchall()
    if unknown:
        raise _unexpected(data, task)


def _unexpected(data: bytes, task: Task) -> Exception:
    """The error for keys that are no columns: one malformed row if such are left out, else a new column."""
    known = {*task.schema.names, *task.options.exclude}
    keys = (key for line in data.splitlines() if line.strip() for key in json.loads(line))
    name = next((key for key in keys if key not in known), None)
    if task.malformed.leaves_out:
        return RowError(f"key {name!r} is no column of the relation")
    return DriftError(f"got column {name!r}")


def _reason(error: Exception) -> str:
    text = str(error)
    changed = _CHANGED.match(text)
    if changed:
        return f"column {changed[1]!r}: a JSON {changed[3]}, not a {changed[2]}"
    converted = _CONVERTED.match(text)
    if converted:
        return f"{converted[2]} is not {converted[1]}"[:500]
    if isinstance(error, UnicodeDecodeError):
        return "bytes that are not utf-8"
    return text.splitlines()[0][:500] if text else "malformed"
