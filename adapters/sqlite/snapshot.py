"""One read transaction as the contract's snapshot: changes from the log, rows from the base tables."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from adapters.global_marks import MARKER, Mark, parts
from adapters.spi import COUNT, TRANSACTION, Changes, Snapshot
from adapters.sqlite.capture import LOG, MARK_ID, PreparedRelation
from adapters.sqlite.commit_marks import CommitMarks
from adapters.sqlite.connection import BATCH_ROWS
from adapters.sqlite.lookup import keyed_select
from adapters.sqlite.rows import ResultColumn, read_rows
from adapters.sqlite.schema import BaseTable
from adapters.sqlite.session import ReadView
from adapters.sqlite.sql import FetchBuilder
from adapters.sqlite.types import Integer, UncheckedText
from adapters.statement_limit import StatementLimit
from algebra.errors import ConfigurationError, PositionTrimmedError, SchemaChangedError
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import Catalog

_SEQ = "_seq"


class SqliteSnapshot(Snapshot):
    """What one read transaction on the source shows. `timeout`: seconds that a fetch may work, 0 for ever."""

    def __init__(self, source: str, view: ReadView, marks: CommitMarks, timeout: float) -> None:
        self._source, self._view, self._marks, self._timeout = source, view, marks, timeout

    @property
    def position(self) -> Position:
        view = self._view
        if not view.source.capture.installed:
            return Position(view.last, view.epoch)
        return Position(view.last, token(view.epoch, view.last_nonce))

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        self._check_capture(after)
        first, last = after.ordinal, self._view.last
        entries = self._marks.entries(first, last, most_rows)
        if not entries.ends:
            return Changes((), {})
        newest, last = last, entries.ends[-1]
        index = _transaction_of_row(first, entries.ends)
        positions = self._positions(first, entries.ends)
        numbers = self._numbers(first, last)
        tables = {
            relation.name: self._changes_of(relation, first, last, index)
            for relation in self._view.source.capture.relations.values()
            if relation.id in numbers
        }
        part_of = {}
        if MARK_ID in numbers:
            part_of = parts(self._source, positions, self._marks_in(first, last, index))
        return Changes(positions, tables, entries.batched, part_of, more=last < newest)

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        tables = self._view.source.tables
        used = {name: tables[name].relation(None) for name in query.relations if name in tables}
        query.check(Catalog(self._source, used))
        builder = FetchBuilder(query, tables)
        connection = self._view.connection
        select = builder.all_rows() if keys is None else keyed_select(connection, builder, keys)
        limit = StatementLimit(self._source, self._timeout)
        return read_rows(
            connection,
            select.columns,
            select.tail,
            select.parameters,
            holds=select.holds,
            limit=limit,
            expected=BATCH_ROWS if keys is None else keys.values.num_rows,
        )

    def _check_capture(self, after: Position) -> None:
        view, where = self._view, f"source {self._source!r}"
        if not view.source.capture.installed:
            raise ConfigurationError(f"{where} is not prepared: no capture is installed in it")
        for name, what in view.source.drift.items():
            raise SchemaChangedError(f"relation {self._source}.{name} has to be prepared again: {what}")
        is_foreign = epoch_of(after) != view.epoch and (bool(after.token) or after.ordinal > 0)
        for relation in view.source.capture.relations.values():
            # At `since` itself two histories meet: the one that was given up then, and the one that began.
            last_lost = relation.since if is_foreign else relation.since - 1
            if relation.reshaped and after.ordinal <= last_lost:
                raise SchemaChangedError(
                    f"relation {self._source}.{relation.name} was prepared anew at position "
                    f"{relation.since}; what it was at position {after} cannot be followed"
                )
        if is_foreign:
            raise PositionTrimmedError(
                f"{where}: position {after} belongs to another history (capture was installed anew, a "
                "relation was lost and prepared again, or the database was replaced)"
            )
        if after.ordinal > view.last:
            raise PositionTrimmedError(
                f"{where}: position {after} is beyond the end of its history ({view.last}); was the database "
                "restored from a backup?"
            )
        if after.ordinal < view.trimmed:
            raise PositionTrimmedError(
                f"{where}: history up to {view.trimmed} was trimmed, position {after} lies before that"
            )
        if after.token not in ("", view.epoch, token(view.epoch, self._nonce(after.ordinal) or 0)):
            raise PositionTrimmedError(
                f"{where}: position {after} is of another history than the one that is here; was the "
                "database restored from a backup and written further?"
            )

    def _nonce(self, ordinal: int) -> int | None:
        """The nonce of that row of the log, which may be the last trimmed one."""
        view = self._view
        nonce = view.source.capture.nonce
        found: int | None = view.connection.value(f"SELECT {nonce} FROM {LOG} WHERE seq = {ordinal:d}")
        return view.trimmed_nonce if found is None and ordinal == view.trimmed else found

    def _positions(self, first: int, ends: tuple[int, ...]) -> tuple[Position, ...]:
        """The positions of the entries that end at these rows, all of them after `first`."""
        log = f"the change log of {self._source}"
        columns = [
            ResultColumn(_SEQ, "seq", Integer(), log),
            ResultColumn("nonce", self._view.source.capture.nonce, Integer(), log),
        ]
        tail = f"FROM {LOG} WHERE seq > ? AND seq <= ?"
        parameters = [first, ends[-1]]
        expected = ends[-1] - first
        rows = read_rows(self._view.connection, columns, tail, parameters, expected=expected).read_all()
        at = rows.filter(pc.is_in(rows[_SEQ], pa.array(ends, pa.int64()))).to_pydict()
        nonces = dict(zip(at[_SEQ], at["nonce"], strict=True))
        return tuple(Position(end, token(self._view.epoch, nonces.get(end) or 0)) for end in ends)

    def _numbers(self, first: int, last: int) -> set[int]:
        """The numbers of relations in this stretch of the log, which must have no holes."""
        rows, found = self._view.connection.rows(
            f"SELECT count(*), group_concat(DISTINCT rel) FROM {LOG} WHERE seq > ? AND seq <= ?",
            [first, last],
        )[0]
        if rows != last - first:
            raise PositionTrimmedError(
                f"source {self._source!r}: {last - first - rows} rows are missing from its change log after "
                f"position {first}; it was edited by hand"
            )
        return {int(number) for number in str(found).split(",")}

    def _changes_of(self, relation: PreparedRelation, first: int, last: int, index: pa.Array) -> pa.Table:
        table: BaseTable = self._view.source.tables[relation.name]
        columns = [
            ResultColumn(column.name, f"c{i}", column.codec, f"{self._source}.{table.name}.{column.name}")
            for i, column in enumerate(table.columns)
        ]
        log = f"the change log of {self._source}.{table.name}"
        columns += [ResultColumn(_SEQ, "seq", Integer(), log), ResultColumn(COUNT, "op", Integer(), log)]
        tail = f"FROM {LOG} WHERE seq > ? AND seq <= ? AND rel = ?"
        parameters = [first, last, relation.id]
        rows = read_rows(self._view.connection, columns, tail, parameters, expected=last - first).read_all()
        offsets = pc.subtract(rows[_SEQ], first + 1)
        data = rows.select([column.name for column in table.columns])
        data = data.append_column(TRANSACTION, pc.take(index, offsets))
        return data.append_column(COUNT, rows[COUNT])

    def _marks_in(self, first: int, last: int, index: pa.Array) -> list[Mark]:
        """The marks of global transactions in this stretch of the log."""
        columns = [
            ResultColumn(_SEQ, "seq", Integer(), MARKER),
            ResultColumn("id", "c0", UncheckedText(), MARKER),
            ResultColumn("participants", "c1", UncheckedText(), MARKER),
        ]
        tail = f"FROM {LOG} WHERE seq > ? AND seq <= ? AND rel = ?"
        parameters = [first, last, MARK_ID]
        rows = read_rows(self._view.connection, columns, tail, parameters, expected=last - first).read_all()
        entries = pc.take(index, pc.subtract(rows[_SEQ], first + 1)).to_pylist()
        ids, participants = rows["id"].to_pylist(), rows["participants"].to_pylist()
        return [
            Mark(entry, _text(id_), _text(names))
            for entry, id_, names in zip(entries, ids, participants, strict=True)
        ]


def token(epoch: str, nonce: int) -> str:
    """A position's token: the epoch of the capture, and the nonce of the row, so that it is no other's."""
    return f"{epoch}:{nonce & 0xFFFFFFFFFFFFFFFF:x}" if nonce else epoch


def epoch_of(position: Position) -> str:
    """The epoch in a position's token."""
    return position.token.partition(":")[0]


def _transaction_of_row(first: int, ends: tuple[int, ...]) -> pa.Array:
    """For each log row after `first`, in order, the index of the entry it belongs to."""
    run_ends = pa.array([end - first for end in ends], pa.int64())
    runs = pa.RunEndEncodedArray.from_arrays(run_ends, pa.array(range(len(ends)), pa.int32()))
    return pc.run_end_decode(runs)


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
