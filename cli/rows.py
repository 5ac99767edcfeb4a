"""Query results as a table, CSV, JSON or Arrow, written while they arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, Any, BinaryIO

from cli import text

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE = 1000
"""Rows a table looks at to choose its column widths; later rows may stand out, but nothing is held back."""


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"


class RowWriter(ABC):
    """Writes chunks of one schema to a binary stream."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    @abstractmethod
    def begin(self, schema: pa.Schema) -> None:
        """Told once, before the first chunk."""

    @abstractmethod
    def write(self, chunk: pa.Table) -> None:
        """Write the chunk's rows."""

    @abstractmethod
    def end(self) -> None:
        """Told once, after the last chunk."""


class TableWriter(RowWriter):
    """Aligned columns; `width` cuts lines for a terminal, None leaves them whole."""

    def __init__(self, out: BinaryIO, width: int | None = None) -> None:
        super().__init__(out)
        self._width = width
        self._names: list[str] = []
        self._right: list[bool] = []
        self._widths: list[int] | None = None
        self._held: list[list[str]] = []

    def begin(self, schema: pa.Schema) -> None:
        import pyarrow.types as types

        self._names = [text.cell(name) for name in schema.names]
        self._right = [
            types.is_integer(t) or types.is_floating(t) or types.is_decimal(t) for t in schema.types
        ]

    def write(self, chunk: pa.Table) -> None:
        columns = [[text.cell(value) for value in column.to_pylist()] for column in chunk.columns]
        self._held += [list(row) for row in zip(*columns, strict=True)]
        if len(self._held) >= _SAMPLE or self._widths is not None:
            self._flush()

    def end(self) -> None:
        self._flush()
        self._out.flush()

    def _flush(self) -> None:
        if self._widths is None:
            rows = [self._names, *self._held]
            self._widths = [max(len(row[at]) for row in rows) for at in range(len(self._names))]
            self._line(self._names)
            self._line(["─" * width for width in self._widths])
        for row in self._held:
            self._line(row)
        self._held = []

    def _line(self, cells: list[str]) -> None:
        widths = self._widths or []
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, self._right, strict=True)
        ]
        line = "  ".join(padded).rstrip()
        if self._width is not None and len(line) > self._width:
            line = line[: self._width - 1] + "…"
        self._out.write(line.encode() + b"\n")


class CsvWriter(RowWriter):
    """RFC 4180 with a heading; NULL is an empty field, an empty text is quoted."""

    def begin(self, schema: pa.Schema) -> None:
        import pyarrow.csv as csv

        self._writer: Any = csv.CSVWriter(self._out, schema)

    def write(self, chunk: pa.Table) -> None:
        self._writer.write_table(chunk)

    def end(self) -> None:
        self._writer.close()


class JsonWriter(RowWriter):
    """An array of objects, one per line."""

    def begin(self, schema: pa.Schema) -> None:
        self._separator = b"\n"
        self._out.write(b"[")

    def write(self, chunk: pa.Table) -> None:
        for row in chunk.to_pylist():
            line = text.visible_json(text.plain(row)).encode()
            self._out.write(self._separator + b"  " + line)
            self._separator = b",\n"

    def end(self) -> None:
        self._out.write(b"\n]\n")
        self._out.flush()


class ArrowWriter(RowWriter):
    """One Arrow IPC stream."""

    def begin(self, schema: pa.Schema) -> None:
        import pyarrow.ipc as ipc

        self._writer: Any = ipc.new_stream(self._out, schema)

    def write(self, chunk: pa.Table) -> None:
        self._writer.write_table(chunk)

    def end(self) -> None:
        self._writer.close()
        self._out.flush()


def writer(kind: Format, out: BinaryIO, width: int | None) -> RowWriter:
    """The writer for a format."""
    if kind is Format.TABLE:
        return TableWriter(out, width)
    if kind is Format.CSV:
        return CsvWriter(out)
    return JsonWriter(out) if kind is Format.JSON else ArrowWriter(out)
