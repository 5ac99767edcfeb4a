"""Excel: one sheet of a workbook, read by calamine as a whole; rows are named by sheet and row.

A cell has a type of its own. A number must be exactly a value of the column's type; a text may say one, in
the form that CSV has. What Excel's numbers cannot hold (integers beyond 2^53, times with zones, binary
values) is given as text. An empty cell is NULL, and so is an empty text: the format does not tell them apart.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, BinaryIO

import pyarrow as pa
import python_calamine

from adapters.files.options import RelationOptions
from adapters.files.readers import (
    FileShape,
    Guess,
    IncompleteError,
    Reader,
    RowError,
    ShapeError,
    Task,
)
from adapters.files.types import from_text

BATCH_ROWS = 65_536

Cell = Any
Row = list[Cell]


class ExcelReader(Reader):
    """Workbooks of every kind that calamine reads."""

    def shape(self, file: BinaryIO, options: RelationOptions, longest: int) -> FileShape | None:
        return FileShape(_columns(*_sheet(file, options), options), {})

    def infer(self, file: BinaryIO, names: Sequence[str], options: RelationOptions, longest: int) -> Guess:
        _, rows = _sheet(file, options)
        guess: dict[str, tuple[pa.DataType, ...] | None] = {}
        for place, name in enumerate(names):
            kinds: set[pa.DataType] = set()
            for row in rows[_first(options) - 1 :]:
                cell = row[place] if place < len(row) else ""
                if not _is_null(cell, options):
                    kinds.add(_kind(cell))
            guess[name] = _candidates(kinds)
        return Guess(guess)

    def batches(self, file: BinaryIO, task: Task) -> Iterator[pa.RecordBatch]:
        sheet, rows = _sheet(file, task.options)
        names = _columns(sheet, rows, task.options)
        places = [names.index(f.name) for f in task.schema]
        first = _first(task.options)
        body = rows[first - 1 :]
        for start in range(0, len(body), BATCH_ROWS):
            good: list[Row] = []
            for number, row in enumerate(body[start : start + BATCH_ROWS], first + start):
                values = _row(row, len(names), places, f"{task.file}[{sheet}]", number, task)
                if values is not None:
                    good.append(values)
            columns = [pa.array([r[i] for r in good], f.type) for i, f in enumerate(task.schema)]
            yield pa.RecordBatch.from_arrays(columns, schema=task.schema)


def _sheet(file: BinaryIO, options: RelationOptions) -> tuple[str, list[Row]]:
    """The sheet's name and all its rows, from the first on."""
    try:
        workbook = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(file.read()))
        name = options.sheet or workbook.sheet_names[0]
        if name not in workbook.sheet_names:
            raise ShapeError(f"has no sheet {name!r}; it has: {', '.join(workbook.sheet_names)}")
        return name, workbook.get_sheet_by_name(name).to_python(skip_empty_area=False)
    except python_calamine.CalamineError as error:
        raise IncompleteError(f"is not a whole workbook ({str(error).splitlines()[0]})") from error


def _first(options: RelationOptions) -> int:
    """The sheet's row in which the data begins."""
    return 2 if options.header else 1


def _columns(sheet: str, rows: list[Row], options: RelationOptions) -> tuple[str, ...]:
    if not options.header:
        if not options.columns:
            raise ShapeError("has no header row; declare its columns in option `columns`")
        return tuple(options.columns)
    cells = list(rows[0]) if rows else []
    while cells and cells[-1] == "":
        cells.pop()
    if not cells:
        raise ShapeError(f"has no header in the first row of sheet {sheet!r}")
    names = tuple(str(cell) for cell in cells)
    if not all(names):
        raise ShapeError("has a header row with a column without a name")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ShapeError(f"has two columns that are called {twice!r}")
    return names


def _row(row: Row, width: int, places: list[int], where: str, number: int, task: Task) -> Row | None:
    """The values of a row in the schema's order; None if it is empty, or malformed and left out."""
    if all(_is_null(cell, task.options) for cell in row):
        return None
    try:
        if any(cell != "" for cell in row[width:]):
            raise RowError(f"{width} columns expected, more found")
        values = []
        for place, f in zip(places, task.schema, strict=True):
            cell = row[place] if place < len(row) else ""
            value = None if _is_null(cell, task.options) else _value(cell, f)
            if value is None and f.name in task.key:
                raise RowError(f"column {f.name!r} is of the key and has no value")
            values.append(value)
    except RowError as error:
        task.malformed.report(where, number, str(error), str(row))
        return None
    return values


def _is_null(cell: Cell, options: RelationOptions) -> bool:
    return cell == "" or (isinstance(cell, str) and cell in options.null)


def _value(cell: Cell, f: pa.Field) -> Any:
    """The cell as a value of the column's type; RowError if it is not exactly one."""
    type_ = f.type
    if isinstance(cell, str):
        if pa.types.is_string(type_):
            return cell
        try:
            return from_text(pa.array([cell]), type_)[0].as_py()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise RowError(f"column {f.name!r}: {cell!r} is not {type_}") from error
    value: Any = None
    match cell:
        case bool():
            value = cell if pa.types.is_boolean(type_) else None
        case int() | float() if pa.types.is_integer(type_):
            value = int(cell) if cell == cell // 1 and abs(cell) <= 2**53 else None
        case int() | float() if pa.types.is_floating(type_):
            value = float(cell)
        case int() | float() if pa.types.is_decimal(type_):
            value = Decimal(repr(cell))
        case datetime() if pa.types.is_date(type_):
            value = cell.date() if cell.time() == time() else None
        case datetime() if pa.types.is_timestamp(type_) and type_.tz is None:
            value = cell
        case date() if pa.types.is_date(type_):
            value = cell
        case date() if pa.types.is_timestamp(type_) and type_.tz is None:
            value = datetime.combine(cell, time())
        case time() if pa.types.is_time(type_):
            value = cell
    try:
        if value is not None:
            pa.scalar(value, type_)
            return value
    except (pa.ArrowInvalid, OverflowError):
        pass
    raise RowError(f"column {f.name!r}: {cell!r} is not {type_}")


def _kind(cell: Cell) -> pa.DataType:
    match cell:
        case bool():
            return pa.bool_()
        case int() | float():
            return pa.int64() if cell == cell // 1 and abs(cell) <= 2**53 else pa.float64()
        case datetime():
            return pa.timestamp("us")
        case date():
            return pa.date32()
        case time():
            return pa.time64("us")
    return pa.string()


def _candidates(kinds: set[pa.DataType]) -> tuple[pa.DataType, ...] | None:
    """The types that can show values of all these kinds."""
    if not kinds:
        return None
    if kinds == {pa.int64()}:
        return (pa.int64(), pa.float64())
    if kinds <= {pa.int64(), pa.float64()}:
        return (pa.float64(),)
    if kinds == {pa.date32()}:
        return (pa.date32(), pa.timestamp("us"))
    if kinds <= {pa.date32(), pa.timestamp("us")}:
        return (pa.timestamp("us"),)
    return (next(iter(kinds)),) if len(kinds) == 1 else ()
