"""Backlog: what a source has to report and the wrapper has not yet reported, run by run, in bounded memory.

Problem. After an absence a snapshot may show millions of changes. Reported run by run, each ΔIS needs the
other relations of its local view as they were at that time, and a query between two runs is answered as of
the first one's end; the snapshot shows everything with all later runs in. To take those back, the later runs
must be known before the first one is reported, and they may be larger than memory.

Wrong ways. Hold them all: memory grows with the backlog. Read them again for every run: time grows with its
square, and every read is the source's. Let each run have a snapshot that ends with it: sources cannot go back
in time.

Chosen way. If a local view joins relations, or a query waits, and the changes do not fit one run, all runs
are read once and put into a temporary folder, as Arrow files. Each run is taken from there in its turn. For
the rows that a query asks for, the later runs are looked through one after the other, and what they did to
rows with these keys is summed up: a row that a million transactions changed counts as far as it differs in
the end.

The folder outlives the snapshot: history does not change, so the next snapshot only adds what came since. It
is a copy of what the source keeps anyway; lost, it is read again. Local views over one relation that nobody
asks about need none of this, nor do changes that fit one run.

See docs/adr/0020-a-backlog-is-reported-in-runs.md and 0023-answers-are-as-of-what-was-reported.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adapters.spi import TRANSACTION, Changes, Snapshot
from algebra.engines.contract import Relation
from algebra.engines.embedded import EmbeddedEngine
from algebra.errors import ResyncRequiredError, StorageError
from algebra.local_view import Keys
from algebra.position import Position
from algebra.schema import COUNT
from algebra.scratch import ScratchFolder
from algebra.weight import weight
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
    """One run in the folder: which positions it lies between, its weight, and its files."""

    after: Position
    end: Position
    weight: int
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

    def entries_until(self, position: Position) -> int | None:
        """How many entries end at that position or before.

        None if it may lie inside of an entry, or is not of this history.
        """
        if position.place == self.after.place:
            return 0
        if not self.after < position <= self.end:
            return None
        entries = _read(self.entries)
        count = int(np.searchsorted(entries["ordinal"].to_numpy(), position.ordinal, side="right"))
        if not count:
            return None
        last = Position(entries["ordinal"][count - 1].as_py(), entries["token"][count - 1].as_py())
        return count if last.place == position.place else None

    def remove(self) -> None:
        for path in (self.entries, *(table.path for table in self.tables.values())):
            path.unlink(missing_ok=True)


_FIRST_SHARE = 16
"""As long as it is not known how large rows are, so much smaller is what is asked for."""


class Backlog:
    """The runs that are still to be reported. `most_rows` is about how large one is, by weight."""

    def __init__(self, source: str, most_rows: int, engine: EmbeddedEngine) -> None:
        self._source = source
        self._most_rows = most_rows
        self._row_weight = float(_FIRST_SHARE)
        """What a row has weighed lately."""
        self._engine = engine
        self._folder: ScratchFolder | None = None
        self._stored: list[_Stored] = []
        self._files = 0

    def next_run(
        self,
        snapshot: Snapshot,
        after: Position,
        relations: Collection[str],
        *,
        ahead: bool,
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> Changes | None:
        """The next run after that position, with `more` if others follow it in this snapshot.

        `relations` are those whose changes are of interest; `ahead` if it must be known what they did after
        this run, too. None if it was interrupted while it read ahead.
        """
        while self._stored and self._stored[0].end <= after:
            self._stored.pop(0).remove()
        if self._stored and self._stored[0].after.place != after.place:
            self.clear()
        try:
            if self._stored:
                with suppress(ResyncRequiredError):
                    return self._first_after_all(snapshot, relations, is_interrupted)
                # Where it ended is no place in this history any more. What is, the source says itself.
                self.clear()
            run = self._next_from(snapshot, after)
            if run.more and ahead:
                self._store(after, run, relations)
                return self._first_after_all(snapshot, relations, is_interrupted)
            if self._fits(run):
                return run
            self._store(after, run, relations)
            first = self._first()
            return replace(first, more=first.more or run.more)
        except BaseException:
            self.clear()
            raise

    def _first_after_all(
        self, snapshot: Snapshot, relations: Collection[str], is_interrupted: Callable[[], bool]
    ) -> Changes | None:
        """The first run, when all that the snapshot shows after what is stored is stored, too."""
        if not self._store_all(snapshot, self._stored[-1].end, relations, is_interrupted):
            return None
        return self._first()

    def _store_all(
        self,
        snapshot: Snapshot,
        after: Position,
        relations: Collection[str],
        is_interrupted: Callable[[], bool],
    ) -> bool:
        """Store all that the snapshot shows after that position; False if it was interrupted."""
        while True:
            run = self._next_from(snapshot, after)
            if run.positions:
                self._store(after, run, relations)
                after = run.positions[-1]
            if not run.more:
                return True
            if is_interrupted():
                return False

    def _next_from(self, snapshot: Snapshot, after: Position) -> Changes:
        """The next run from the source: as many rows as fit one, if they are as large as they were lately."""
        run = snapshot.changes(after, max(1, int(self._most_rows / self._row_weight)))
        rows = sum(table.num_rows for table in run.tables.values())
        if rows:
            # Larger rows are believed at once, smaller ones by and by.
            self._row_weight = max(_weight(run) / rows, self._row_weight / 2, 1.0)
        return run

    def _fits(self, run: Changes) -> bool:
        """Whether it is as large as a run may be; a single transaction may have any size."""
        return len(run) <= 1 or _weight(run) <= self._most_rows

    def _first(self) -> Changes:
        """The first run: as many of those stored as one may have rows."""
        count, total = 1, self._stored[0].weight
        while count < len(self._stored) and total + self._stored[count].weight <= self._most_rows:
            total += self._stored[count].weight
            count += 1
        run = Changes.joined([stored.read() for stored in self._stored[:count]])
        return replace(run, more=count < len(self._stored))

    def parts_at(self, position: Position) -> bool:
        """Whether what is stored can be told apart there: into what happened before, and after."""
        return not self._stored or any(s.entries_until(position) is not None for s in self._stored)

    def read_ahead(
        self,
        snapshot: Snapshot,
        after: Position,
        relations: Collection[str],
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Have `later_changes` know all that the snapshot shows after that position.

        False if it was interrupted.
        """
        if not self.parts_at(after):
            self.clear()
        try:
            if self._stored:
                with suppress(ResyncRequiredError):
                    return self._store_all(snapshot, self._stored[-1].end, relations, is_interrupted)
                self.clear()
            return self._store_all(snapshot, after, relations, is_interrupted)
        except BaseException:
            self.clear()
            raise

    def later_changes(
        self, after: Position, relation: str, columns: Sequence[str], keys: Keys | None
    ) -> Iterator[Relation]:
        """What the runs that are stored did after that position to rows with these keys, run by run.

        As columns and `_count`, not in normal form.
        """
        wanted = {name: _bounds(keys.values[name]) for name in keys.columns} if keys is not None else {}
        for stored in self._stored:
            table = stored.tables.get(relation)
            if stored.end <= after or table is None or not table.may_match(wanted):
                continue
            rows = _read(table.path)
            if stored.after < after:
                first = stored.entries_until(after)
                assert first is not None, "`read_ahead` was not asked for this position"
                rows = rows.slice(int(np.searchsorted(rows[TRANSACTION].to_numpy(), first)))
            rows = rows.select([*columns, COUNT])
            yield rows if keys is None else self._engine.matching(rows, keys)

    def clear(self) -> None:
        """Forget what was read ahead; it can be read again."""
        forgotten, self._stored = self._stored, []
        for stored in forgotten:
            stored.remove()

    def close(self) -> None:
        self.clear()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _store(self, after: Position, run: Changes, relations: Collection[str]) -> None:
        """Store what was read, in halves where rows have turned out larger than they were lately."""
        if self._fits(run):
            tables = {name: table for name, table in run.tables.items() if name in relations}
            self._stored.append(self._written(after, replace(run, tables=tables)))
            self._merge_last()
            return
        half = len(run) // 2
        self._store(after, run.part(0, half), relations)
        self._store(run.positions[half - 1], run.part(half, len(run)), relations)

    def _merge_last(self) -> None:
        """Make one run of the last two while they are of about the same size, and fit one.

        Who looks at a source often finds few transactions each time, and every answer looks through every
        run. So there are few of them, and a row is written again as often as its run doubles. Should the next
        run come to begin inside of one, that one is the last, and is read again.
        """
        while len(self._stored) > 1:
            before, last = self._stored[-2:]
            if before.weight > 2 * last.weight or before.weight + last.weight > self._most_rows:
                return
            self._stored[-2:] = [self._written(before.after, Changes.joined([before.read(), last.read()]))]
            before.remove()
            last.remove()

    def _written(self, after: Position, run: Changes) -> _Stored:
        """A run in files of its own."""
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
        try:
            return _Stored(
                after,
                run.positions[-1],
                max(len(run), _weight(run)),
                self._write(entries),
                {name: self._write_table(table) for name, table in run.tables.items()},
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
            self._folder = ScratchFolder("backlog")
        self._files += 1
        path = self._folder.path / f"{self._files}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return path


def _weight(run: Changes) -> int:
    return sum(weight(table) for table in run.tables.values())


def _bounds(values: pa.ChunkedArray) -> Bounds:
    if pa.types.is_floating(values.type):
        return None  # NaN has no place in an order
    if pa.types.is_temporal(values.type):
        # As the number it is stored as: Python does not hold all of them.
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
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
