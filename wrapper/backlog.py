"""Backlog: what a source has to report and the wrapper has not yet reported, run by run, in bounded memory.

Problem. After an absence a snapshot may show millions of changes. Reported run by run, each ΔIS needs the
other relations of its local view as they were at that time; the snapshot shows them with all later runs in.
To take those back, the later runs must be known before the first one is reported, and they may be larger
than memory.

Wrong ways. Hold them all: memory grows with the backlog. Read them again for every run: time grows with its
square, and every read is the source's. Let each run have a snapshot that ends with it: sources cannot go back
in time.

Chosen way. If a local view joins relations and the changes do not fit one run, all runs are read once and put
into a temporary folder, as Arrow files. Each run is taken from there in its turn. For the rows that a query
of its sweep asks for, the later runs are looked through one after the other, and what they did to rows with
these keys is summed up: a row that a million transactions changed counts as far as it differs in the end.

The folder outlives the snapshot: history does not change, so the next snapshot only adds what came since. It
is a copy of what the source keeps anyway; lost, it is read again. Local views over one relation need none of
this, nor do changes that fit one run.

See docs/adr/0020-a-backlog-is-reported-in-runs.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from adapters.spi import TRANSACTION, Changes, Snapshot
from algebra.delta import consolidate
from algebra.engines.contract import Relation
from algebra.engines.embedded import EmbeddedEngine
from algebra.errors import ResyncRequiredError, StorageError
from algebra.local_view import Keys
from algebra.position import Position
from algebra.schema import COUNT
from protos.convert import global_transaction_from_proto, global_transaction_to_proto
from protos.lockstep.v1 import wrapper_pb2 as pb

_ENTRIES = pa.schema(
    [("ordinal", pa.int64()), ("token", pa.string()), ("batched", pa.bool_()), ("part_of", pa.binary())]
)


Bounds = tuple[Any, Any] | None
"""The least and the greatest value, both None if all are NULL; None if that is not known."""


@dataclass(frozen=True)
class _StoredTable:
    """The changes of one relation in a run: where they are, and what their columns can hold."""

    path: Path
    bounds: Mapping[str, Bounds]

    def may_match(self, keys: Mapping[str, Bounds]) -> bool:
        """Whether a row can have one of the keys, of which the bounds are given."""
        return all(_overlap(self.bounds[column], bounds) for column, bounds in keys.items())


@dataclass(frozen=True)
class _Stored:
    """One run in the folder: which positions it lies between, how large it is, and its files."""

    after: Position
    end: Position
    rows: int
    entries: Path
    tables: Mapping[str, _StoredTable]

    def read(self) -> Changes:
        entries = _read(self.entries).to_pydict()
        positions = tuple(
            Position(ordinal, token)
            for ordinal, token in zip(entries["ordinal"], entries["token"], strict=True)
        )
        part_of = {}
        for index, written in enumerate(entries["part_of"]):
            if written is not None:
                mark = global_transaction_from_proto(pb.SourceTransaction.FromString(written).part_of)
                assert mark is not None
                part_of[index] = mark
        return Changes(
            positions,
            {relation: _read(table.path) for relation, table in self.tables.items()},
            frozenset(index for index, batched in enumerate(entries["batched"]) if batched),
            part_of,
        )

    def remove(self) -> None:
        for path in (self.entries, *(table.path for table in self.tables.values())):
            path.unlink(missing_ok=True)


class Backlog:
    """The runs that are still to be reported. `most_rows` is about how large one is."""

    def __init__(self, source: str, most_rows: int, engine: EmbeddedEngine) -> None:
        self._source = source
        self._most_rows = most_rows
        self._engine = engine
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._stored: list[_Stored] = []
        self._later: Sequence[_Stored] = ()
        self._files = 0

    def next_run(
        self,
        snapshot: Snapshot,
        after: Position,
        relations: Collection[str],
        *,
        joined: bool,
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> Changes | None:
        """The next run after that position, with `more` if others follow it in this snapshot.

        `relations` are those whose changes are of interest; `joined` if what they did must be taken back from
        what the snapshot shows. None if it was interrupted while it read ahead.
        """
        self._later = ()
        while self._stored and self._stored[0].end <= after:
            self._stored.pop(0).remove()
        if self._stored and self._stored[0].after != after:
            self.clear()
        try:
            if self._stored:
                with suppress(ResyncRequiredError):
                    return self._first_after_all(snapshot, relations, is_interrupted)
                # Where it ended is no place in this history any more. What is, the source says itself.
                self.clear()
            run = snapshot.changes(after, self._most_rows)
            if not (run.more and joined):
                return run
            self._store(after, run, relations)
            return self._first_after_all(snapshot, relations, is_interrupted)
        except BaseException:
            self.clear()
            raise

    def _first_after_all(
        self, snapshot: Snapshot, relations: Collection[str], is_interrupted: Callable[[], bool]
    ) -> Changes | None:
        """The first run, when all that the snapshot shows after what is stored is stored, too."""
        for run in snapshot.runs(self._stored[-1].end, self._most_rows):
            if run.positions:
                self._store(self._stored[-1].end, run, relations)
            if run.more and is_interrupted():
                return None
        return self._first()

    def _first(self) -> Changes:
        """The first run: as many of those stored as one may have rows."""
        count, rows = 1, self._stored[0].rows
        while count < len(self._stored) and rows + self._stored[count].rows <= self._most_rows:
            rows += self._stored[count].rows
            count += 1
        self._later = self._stored[count:]
        run = Changes.joined([stored.read() for stored in self._stored[:count]])
        return replace(run, more=bool(self._later))

    def later_changes(self, relation: str, columns: Sequence[str], keys: Keys | None) -> Relation | None:
        """What the runs after the last one did in sum to rows with these keys: columns and `_count`.

        None if there are none.
        """
        total: Relation | None = None
        wanted = {name: _bounds(keys.values[name]) for name in keys.columns} if keys is not None else {}
        for stored in self._later:
            table = stored.tables.get(relation)
            if table is None or not table.may_match(wanted):
                continue
            rows = _read(table.path).select([*columns, COUNT])
            if keys is not None:
                rows = self._engine.matching(rows, keys)
            total = consolidate(rows if total is None else pa.concat_tables([total, rows]))
        return total

    def clear(self) -> None:
        """Forget what was read ahead; it can be read again."""
        forgotten, self._stored, self._later = self._stored, [], ()
        for stored in forgotten:
            stored.remove()

    def close(self) -> None:
        self.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _store(self, after: Position, run: Changes, relations: Collection[str]) -> None:
        tables = {name: table for name, table in run.tables.items() if name in relations}
        marks = [run.part_of.get(index) for index in range(len(run))]
        entries = pa.table(
            [
                [position.ordinal for position in run.positions],
                [position.token for position in run.positions],
                [index in run.batched for index in range(len(run))],
                [
                    pb.SourceTransaction(part_of=global_transaction_to_proto(mark)).SerializeToString()
                    if mark is not None
                    else None
                    for mark in marks
                ],
            ],
            schema=_ENTRIES,
        )
        rows = max(len(run), sum(table.num_rows for table in run.tables.values()))
        try:
            self._stored.append(
                _Stored(
                    after,
                    run.positions[-1],
                    rows,
                    self._write(entries),
                    {name: self._write_table(table) for name, table in tables.items()},
                )
            )
        except OSError as error:
            raise StorageError(
                f"source {self._source!r}: its backlog cannot be put into the temporary folder "
                f"{tempfile.gettempdir()}: {error}"
            ) from error

    def _write_table(self, table: pa.Table) -> _StoredTable:
        names = [name for name in table.column_names if name not in (TRANSACTION, COUNT)]
        return _StoredTable(self._write(table), {name: _bounds(table[name]) for name in names})

    def _write(self, table: pa.Table) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="lockstep-backlog-")
        self._files += 1
        path = Path(self._folder.name) / f"{self._files}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return path


def _bounds(values: pa.ChunkedArray) -> Bounds:
    if pa.types.is_floating(values.type):
        return None  # NaN has no place in an order
    found = pc.min_max(values).as_py()
    return found["min"], found["max"]


def _overlap(one: Bounds, other: Bounds) -> bool:
    if one is None or other is None:
        return True
    if one[0] is None or other[0] is None:
        return False
    return bool(one[0] <= other[1] and other[0] <= one[1])


def _read(path: Path) -> pa.Table:
    """The table in a file, mapped: what is not looked at takes no memory."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()
