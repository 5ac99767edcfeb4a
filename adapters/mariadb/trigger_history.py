"""The logs of triggers as one snapshot shows them: batches in order, each as one entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from adapters.global_marks import MARKER, Mark, parts
from adapters.mariadb import trigger_layout as layout
from adapters.mariadb.catalog import SourceTables
from adapters.mariadb.connection import Connection
from adapters.mariadb.fetch import ResultColumn, Select, batches
from adapters.mariadb.history import History, Installed, Prepared, change_schema, changed, check_position
from adapters.mariadb.options import TRIGGER
from adapters.mariadb.types import ColumnType, Kind
from adapters.run_length import run_length
from adapters.spi import COUNT, TRANSACTION, Changes
from algebra.errors import PositionTrimmedError
from algebra.position import Position

INTEGER = ColumnType(Kind.INTEGER, pa.int64(), "bigint")
TEXT = ColumnType(Kind.TEXT, pa.string(), "text")


@dataclass(frozen=True)
class Batch:
    """One batch: its number, its mark, and whether it may hold several transactions."""

    number: int
    mark: str
    batched: bool


class TriggerHistory(History):
    """The logs as one snapshot shows them; `batch` is what it was the first to see."""

    def __init__(
        self,
        connection: Connection,
        source: str,
        installed: Installed,
        tables: SourceTables,
        batch: Batch | None,
        problems: Mapping[str, str],
    ) -> None:
        self._connection = connection
        self._source = source
        self._installed = installed
        self.tables = tables
        self._batch = batch
        self._problems = problems

    @property
    def position(self) -> Position:
        self._installed.require(self._source, TRIGGER)
        return self._position(self._batch or self._last())

    def changes(self, after: Position, most_rows: int | None) -> Changes:
        self._installed.require(self._source, TRIGGER)
        for name, problem in self._problems.items():
            raise changed(self._source, name, problem)
        current = self.position.ordinal
        trimmed = int(self._installed.facts["trimmed"])
        mark = self._mark(after.ordinal) if trimmed <= after.ordinal <= current else None
        check_position(self._source, self._installed, after, current, trimmed, mark)
        last = current if most_rows is None else min(current, after.ordinal + most_rows)
        found = self._batches(after.ordinal, last)
        if [batch.number for batch in found] != list(range(after.ordinal + 1, last + 1)):
            raise PositionTrimmedError(f"source {self._source!r}: its list of batches was edited by hand")
        if not found:
            return Changes((), {})
        if most_rows is not None and len(found) > 1:
            found = found[: self._run_length(after.ordinal, found[-1].number, most_rows)]
        last = found[-1].number
        positions = tuple(self._position(batch) for batch in found)
        tables = {}
        for prepared in self._installed.relations:
            rows = self._rows(prepared, after.ordinal, last)
            if rows.num_rows:
                tables[prepared.name] = rows
        part_of = parts(self._source, positions, self._marks(after.ordinal, last))
        batched = frozenset(i for i, batch in enumerate(found) if batch.batched)
        return Changes(positions, tables, batched, part_of, more=last < current)

    def _run_length(self, after: int, last: int, most_rows: int) -> int:
        """How many of the batches after one, in order, make a run; by the index on `batch` alone."""
        counts: list[tuple[int, int]] = []
        for log in (layout.log_table(prepared.number) for prepared in self._installed.relations):
            counts += self._connection.rows(
                f"SELECT b - {after + 1}, COUNT(*) FROM (SELECT batch AS b FROM {log} FORCE INDEX (batch) "
                f"WHERE batch > {after} AND batch <= {last} ORDER BY batch LIMIT {most_rows + 1}) AS l "
                "GROUP BY b"
            )
            if self._batch is not None and self._batch.number == last:
                # Of what this snapshot was the first to see, the rows have no number in it yet.
                newest = self._connection.value(f"SELECT COUNT(*) FROM {log} WHERE batch IS NULL")
                counts.append((last - after - 1, int(newest)))
        return run_length(counts, last - after, most_rows)

    def _rows(self, prepared: Prepared, after: int, last: int) -> pa.Table:
        table = self.tables.tables[prepared.name]
        columns = [
            ResultColumn(
                column.name, layout.log_column(i), column.shown, f"{self._source}.{table.name}.{column.name}"
            )
            for i, column in enumerate(table.columns)
        ]
        log = f"the change log of {self._source}.{table.name}"
        columns += [self._entry(after, last, log), ResultColumn(COUNT, "sign", INTEGER, log)]
        rows = self._read(layout.log_table(prepared.number), columns, after, last)
        rows = rows.take(pc.sort_indices(rows[TRANSACTION])) if rows.num_rows else rows
        return rows.cast(change_schema(table.shown(self._source)))

    def _marks(self, after: int, last: int) -> list[Mark]:
        columns = [
            self._entry(after, last, MARKER),
            ResultColumn("id", "id", TEXT, MARKER),
            ResultColumn("participants", "participants", TEXT, MARKER),
        ]
        rows = self._read(MARKER, columns, after, last)
        return [Mark(*row) for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)]

    def _entry(self, after: int, last: int, log: str) -> ResultColumn:
        """The index of the entry that a row belongs to; rows without a number are the newest."""
        return ResultColumn(TRANSACTION, f"COALESCE(batch, {last}) - {after + 1}", INTEGER, log)

    def _read(self, log: str, columns: Sequence[ResultColumn], after: int, last: int) -> pa.Table:
        condition = f"batch > {after} AND batch <= {last}"
        if self._batch is not None and self._batch.number == last:
            condition = f"{condition} OR batch IS NULL"
        select = Select(tuple(columns), f"FROM {log} WHERE {condition}")
        return pa.Table.from_batches(batches(self._connection, select), select.schema)

    def _last(self) -> Batch:
        number = int(self._installed.facts["current"])
        return Batch(number, self._mark(number) or "", False)

    def _mark(self, number: int) -> str | None:
        if self._batch is not None and number == self._batch.number:
            return self._batch.mark
        rows = self._connection.rows(f"SELECT mark FROM {layout.BATCHES} WHERE number = %s", [number])
        return str(rows[0][0]) if rows else None

    def _batches(self, after: int, last: int) -> list[Batch]:
        rows = self._connection.rows(
            f"SELECT number, mark, batched FROM {layout.BATCHES} WHERE number > %s AND number <= %s "
            "ORDER BY number",
            [after, last],
        )
        stored = [Batch(number, mark, bool(batched)) for number, mark, batched in rows]
        newest = self._batch
        return [*stored, newest] if newest is not None and after < newest.number <= last else stored

    def _position(self, batch: Batch) -> Position:
        return Position(batch.number, f"{self._installed.epoch}:{batch.mark}")
