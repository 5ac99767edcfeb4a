"""CSV: blocks of whole records, parsed and converted by pyarrow; see `blocks.py` for what is malformed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

from adapters.files.blocks import BadRecord, Block, Dialect, undecodable
from adapters.files.malformed import Malformed
from adapters.files.options import RelationOptions
from adapters.files.readers import (
    FileShape,
    Guess,
    IncompleteError,
    Reader,
    RowError,
    ShapeError,
    Task,
    check_key,
    parsed,
    text_blocks,
    typed,
)
from adapters.files.types import as_text_first

_CANDIDATES = {
    pa.bool_(): r"^(?i:true|false)$",
    # A number with a leading zero is a code, not a number.
    pa.int64(): r"^(-?[1-9][0-9]{0,17}|-?0)$",
    pa.float64(): r"^(-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?|(?i:-?inf|nan))$",
    pa.date32(): r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    pa.timestamp("us"): r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?$",
    pa.timestamp("us", "UTC"): (
        r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
        r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
    ),
}
"""What the texts of a type look like, where types are inferred; the best first, text last."""

_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?(.*)", re.DOTALL)
_WIDTH = re.compile(r"CSV parse error: (?:Row #\d+: )?Expected (\d+) columns?, got (\d+)")
_VALUE = re.compile(r"CSV conversion error to (.+?): (?:invalid value )?(.*)", re.DOTALL)


class CsvReader(Reader):
    """CSV files, also with tabs, semicolons or what else is configured between values."""

    def shape(self, file: BinaryIO, options: RelationOptions, longest: int) -> FileShape | None:
        if not options.header:
            if not options.columns:
                raise ShapeError("has no header line; declare its columns in option `columns`")
            return FileShape(tuple(options.columns), {})
        header, _ = _header(file, options, longest)
        return FileShape(header, {})

    def infer(self, file: BinaryIO, names: Sequence[str], options: RelationOptions, longest: int) -> Guess:
        guess = Guess(dict.fromkeys(names))
        schema = pa.schema([(name, pa.string()) for name in names])
        task = Task("", options, schema, (), Malformed.ignored(), longest)

        def parse(data: bytes) -> pa.Table:
            return _parse(data, tuple(names), schema, options)

        for part in _body(file, options, longest):
            for table in parsed(part, task, _dialect(options), parse, lambda error, data: ""):
                guess = guess.merged(Guess({name: _types(table[name]) for name in names}))
        return guess

    def batches(self, file: BinaryIO, task: Task) -> Iterator[pa.RecordBatch]:
        options, schema = task.options, task.schema
        names: tuple[str, ...] = tuple(options.columns)
        if options.header:
            names, _ = _header(file, options, task.longest)
            file.seek(0)
        dialect = _dialect(options)

        def parse(data: bytes) -> pa.Table:
            return check_key(_parse(data, names, schema, options), task.key)

        def explain(error: Exception, data: bytes) -> str:
            return _reason(error, names)

        for part in _body(file, options, task.longest):
            for table in parsed(part, task, dialect, parse, explain):
                yield from table.to_batches()


def _dialect(options: RelationOptions) -> Dialect:
    return Dialect(_delimiter(options).encode(), options.quote.encode() or None)


def _delimiter(options: RelationOptions) -> str:
    return options.delimiter or ","


def _header(file: BinaryIO, options: RelationOptions, longest: int) -> tuple[tuple[str, ...], Block]:
    """The column names, and the block they are in."""
    dialect = _dialect(options)
    for part in text_blocks(file, options, dialect, longest):
        if isinstance(part, BadRecord):
            raise ShapeError(f"has a malformed header line: {part.reason}")
        record = part.data[: int(part.records(dialect)[1])]
        return _names(record, options), part
    raise IncompleteError("is empty, or its header line has no end yet")


def _names(record: bytes, options: RelationOptions) -> tuple[str, ...]:
    try:
        text = record.decode()
    except UnicodeDecodeError as error:
        raise ShapeError(f"has a header line that is not {options.encoding}") from error
    if undecodable(record):
        raise ShapeError(f"has a header line that is not {options.encoding}")
    reader = csv.reader(
        io.StringIO(text.rstrip("\r\n"), newline=""),
        delimiter=_delimiter(options),
        quotechar=options.quote or None,
        quoting=csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE,
        strict=True,
    )
    names = tuple(next(reader, []))
    if not names or not all(names):
        raise ShapeError("has a header line with a column without a name")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ShapeError(f"has two columns that are called {twice!r}")
    return names


def _body(file: BinaryIO, options: RelationOptions, longest: int) -> Iterator[Block | BadRecord]:
    """All records but the header."""
    dialect = _dialect(options)
    skip = options.header
    for part in text_blocks(file, options, dialect, longest):
        if skip and isinstance(part, Block):
            skip = False
            start = int(part.records(dialect)[1])
            part = Block(part.data[start:], part.line_of(start))
            if not part.data:
                continue
        yield part


def _parse(data: bytes, names: tuple[str, ...], schema: pa.Schema, options: RelationOptions) -> pa.Table:
    """Records as a table of `schema`, which has some of the columns `names`."""
    if options.encoding != "utf-8" and undecodable(data):
        raise RowError(f"bytes that are not {options.encoding}")
    # Names do not matter to the parser, and might clash with its own.
    numbers = {name: f"c{i}" for i, name in enumerate(names)}
    late = {f.name for f in schema if as_text_first(f.type, dates=False)}
    types = {numbers[f.name]: pa.string() if f.name in late else f.type for f in schema}
    table = pa_csv.read_csv(
        pa.BufferReader(data),
        read_options=pa_csv.ReadOptions(
            column_names=list(numbers.values()), use_threads=False, block_size=len(data) + 1024
        ),
        parse_options=pa_csv.ParseOptions(
            delimiter=_delimiter(options),
            quote_char=options.quote or False,
            newlines_in_values=True,
            # An empty line is a row where there is one column, and nothing where there are several.
            ignore_empty_lines=len(names) > 1,
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types={**{number: pa.binary() for number in numbers.values()}, **types},
            include_columns=[numbers[f.name] for f in schema],
            null_values=list(options.null),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["true", "True", "TRUE", "1"],
            false_values=["false", "False", "FALSE", "0"],
        ),
    )
    columns = [
        typed(f, column) if f.name in late else column
        for column, f in zip(table.columns, schema, strict=True)
    ]
    for column, f in zip(columns, schema, strict=True):
        if pa.types.is_floating(f.type):
            _check_overflow(data, column, f, names, options)
    return pa.Table.from_arrays(columns, schema=schema)


def _check_overflow(
    data: bytes, column: pa.ChunkedArray, f: pa.Field, names: tuple[str, ...], options: RelationOptions
) -> None:
    """A number too large for the type is read as infinity: refuse it, unless that is what is written."""
    infinite = pc.is_inf(column)
    if not pc.any(infinite).as_py():
        return
    texts = _parse(data, names, pa.schema([(f.name, pa.string())]), options)[0].filter(infinite)
    spelled = pc.match_substring(texts, "inf", ignore_case=True)
    if not pc.all(spelled).as_py():
        value = texts.filter(pc.invert(spelled))[0].as_py()
        raise RowError(f"column {f.name!r}: {value!r} does not fit {f.type}")


def _types(texts: pa.ChunkedArray) -> tuple[pa.DataType, ...] | None:
    """The types that all these texts could be; None if there are none."""
    values = texts.drop_null()
    if not len(values):
        return None
    found = [
        type_
        for type_, pattern in _CANDIDATES.items()
        if pc.all(pc.match_substring_regex(values, pattern)).as_py()
    ]
    return (*found, pa.string())


def _reason(error: Exception, names: tuple[str, ...]) -> str:
    text = str(error)
    width = _WIDTH.match(text)
    if width:
        return f"{width[1]} columns expected, {width[2]} found"
    column = _COLUMN.match(text)
    if column:
        value = _VALUE.match(column[2])
        said = f"{value[2]} is not {value[1]}" if value else column[2]
        if value and "UTF8" in value[2]:
            said = "bytes that are not utf-8"
        return f"column {names[int(column[1])]!r}: {said}"[:500]
    return text.splitlines()[0][:500] if text else "malformed"
