"""UMQ: the updates of one view that are delivered and not yet installed, in delivery order.

Each transaction gets the number of the version it will make when it is delivered, so the queue is also the
order of versions. Deltas stay columnar, a run per message; a batch is a prefix, cut without copying rows.

Reference: SWEEP paper, Figure 4, UpdateMessageQueue and process LogUpdates.
"""

from __future__ import annotations

import datetime
import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from algebra.assembly import SEQUENCE
from algebra.engines.contract import Relation
from algebra.global_transaction import GlobalTransaction
from algebra.position import Position
from algebra.schema import COUNT
from algebra.weight import weight


@dataclass(frozen=True)
class DeliveredRun:
    """Consecutive transactions of one source that touch the view.

    Transaction i makes version `first_version + i` and has the global delivery number `deliveries[i]`.
    `tables` maps nodes to deltas (columns, `_count`, `_seq`), ascending by `_seq`. `marks[i]` tells of which
    global transaction it is a part, or None; left out, none of them is.
    """

    source: str
    first_version: int
    positions: Sequence[Position]
    batched: Sequence[bool]
    deliveries: Sequence[int]
    observed_at: datetime.datetime
    tables: Mapping[int, Relation]
    marks: Sequence[GlobalTransaction | None] = ()
    cost: int = field(init=False)
    """What it takes of the room for updates: the weight of its rows, and one for each transaction."""

    def __post_init__(self) -> None:
        if not self.marks:
            object.__setattr__(self, "marks", (None,) * len(self.positions))
        cost = len(self.positions) + sum(weight(table) for table in self.tables.values())
        object.__setattr__(self, "cost", cost)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def last_version(self) -> int:
        return self.first_version + len(self.positions) - 1

    def split(self, count: int, width: int) -> tuple[DeliveredRun, DeliveredRun]:
        """The first `count` transactions, and the rest."""
        boundary = (self.first_version + count) * width
        head: dict[int, Relation] = {}
        tail: dict[int, Relation] = {}
        for node, table in self.tables.items():
            at = int(np.searchsorted(table[SEQUENCE].to_numpy(), boundary))
            head[node], tail[node] = table.slice(0, at), table.slice(at)
        first = replace(
            self,
            positions=self.positions[:count],
            batched=self.batched[:count],
            deliveries=self.deliveries[:count],
            tables=head,
            marks=self.marks[:count],
        )
        rest = replace(
            self,
            first_version=self.first_version + count,
            positions=self.positions[count:],
            batched=self.batched[count:],
            deliveries=self.deliveries[count:],
            tables=tail,
            marks=self.marks[count:],
        )
        return first, rest

    def deltas(self, width: int) -> list[dict[int, Relation]]:
        """For each transaction by itself, its rows (columns, `_count`) by node; cut without copying rows."""
        deltas: list[dict[int, Relation]] = [{} for _ in self.positions]
        starts = (self.first_version + np.arange(len(self) + 1, dtype=np.int64)) * width
        for node, table in self.tables.items():
            bounds = np.searchsorted(table[SEQUENCE].to_numpy(), starts).tolist()
            rows = table.drop_columns([SEQUENCE])
            for found, (start, end) in zip(deltas, itertools.pairwise(bounds), strict=True):
                if start < end:
                    found[node] = rows.slice(start, end - start)
        return deltas


class UpdateMessageQueue:
    """UMQ of one view. Not thread-safe: its owner's lock guards it."""

    def __init__(self, width: int, schemas: Sequence[pa.Schema], installed: int) -> None:
        self._width = width
        self._schemas = schemas
        self._runs: deque[DeliveredRun] = deque()
        self._next_version = installed + 1

    def __len__(self) -> int:
        """How many transactions wait."""
        return sum(len(run) for run in self._runs)

    @property
    def rows(self) -> int:
        """How many delta rows wait."""
        return sum(table.num_rows for run in self._runs for table in run.tables.values())

    @property
    def cost(self) -> int:
        """What waits, as credit counts it."""
        return sum(run.cost for run in self._runs)

    def next_run(
        self,
        source: str,
        positions: Sequence[Position],
        batched: Sequence[bool],
        deliveries: Sequence[int],
        observed_at: datetime.datetime,
        deltas: Mapping[int, tuple[Relation | None, Sequence[int]]],
        marks: Sequence[GlobalTransaction | None] = (),
        after: Position | None = None,
    ) -> DeliveredRun | None:
        """The transactions that touch this view, for `log_update`; None if none does. Nothing is queued yet.

        `deltas` maps nodes to (rows with `_tx`, indexes of the transactions that touch the node). `marks`
        has one entry per transaction, or is left out. What is not after the position `after` is left out.
        """
        touched = np.unique(np.asarray([i for _, indexes in deltas.values() for i in indexes], np.int64))
        known = bisect_right([positions[i] for i in touched], after) if after is not None else 0
        touched = touched[known:]
        if not len(touched):
            return None
        tables: dict[int, Relation] = {}
        for node, (rows, _) in deltas.items():
            if rows is not None and known:
                rows = rows.filter(pc.greater_equal(rows["_tx"], int(touched[0])))
            if rows is None or not rows.num_rows:
                continue
            rank = np.searchsorted(touched, rows["_tx"].to_numpy())
            sequence = (self._next_version + rank) * self._width + node
            columns = rows.select([*self._schemas[node].names, COUNT])
            tables[node] = columns.append_column(SEQUENCE, pa.array(sequence.astype(np.int64)))
        return DeliveredRun(
            source=source,
            first_version=self._next_version,
            positions=[positions[i] for i in touched],
            batched=[batched[i] for i in touched],
            deliveries=[deliveries[i] for i in touched],
            observed_at=observed_at,
            tables=tables,
            marks=[marks[i] for i in touched] if marks else (),
        )

    def log_update(self, run: DeliveredRun) -> None:
        """Append what `next_run` made, with nothing queued in between. Cannot fail."""
        self._runs.append(run)
        self._next_version += len(run)

    def last_position(self, source: str) -> Position | None:
        """The position of the source's last waiting transaction; None if none waits."""
        return next((run.positions[-1] for run in reversed(self._runs) if run.source == source), None)

    def horizon(self, limit: int) -> int | None:
        """The delivery number of the last of the first `limit` waiting transactions; None if none waits."""
        last = None
        for run in self._runs:
            if limit <= 0:
                break
            taken = min(limit, len(run))
            last = run.deliveries[taken - 1]
            limit -= taken
        return last

    def prefix(self, horizon: int, limit: int) -> list[DeliveredRun]:
        """The waiting transactions delivered up to the horizon, at most `limit`; they stay in the queue."""
        batch: list[DeliveredRun] = []
        for run in self._runs:
            count = min(int(np.searchsorted(np.asarray(run.deliveries), horizon, side="right")), limit)
            if count == len(run):
                batch.append(run)
            elif count:
                batch.append(run.split(count, self._width)[0])
            limit -= count
            if count < len(run):
                break
        return batch

    def pending(self, node: int, source: str, position: Position) -> Relation:
        """Deltas of one node that an answer of its source at this position shows."""
        tables = [
            run.tables[node]
            for run in self._runs
            if run.source == source and run.positions[-1] <= position and node in run.tables
        ]
        return pa.concat_tables(tables) if tables else self._no_deltas(node)

    def pending_until(self, node: int, source: str, position: Position) -> Relation:
        """Deltas of one node up to a position that need not be the end of a run."""
        tables = []
        for run in self._runs:
            if run.source != source or node not in run.tables:
                continue
            count = sum(1 for p in run.positions if p <= position)
            tables.append(run.split(count, self._width)[0].tables[node])
        return pa.concat_tables(tables) if tables else self._no_deltas(node)

    def _no_deltas(self, node: int) -> Relation:
        fields = [pa.field(COUNT, pa.int64()), pa.field(SEQUENCE, pa.int64())]
        return pa.schema([*self._schemas[node], *fields]).empty_table()

    @property
    def runs(self) -> Sequence[DeliveredRun]:
        """Everything that waits, in delivery order."""
        return self._runs

    def forget(self, vector: Mapping[str, Position]) -> None:
        """Forget what a vector reflects, wherever in the queue it is; what remains keeps its numbers."""
        runs, self._runs = self._runs, deque()
        for run in runs:
            reflected = vector[run.source]
            if run.positions[0] > reflected:
                self._runs.append(run)
            elif run.positions[-1] > reflected:
                count = bisect_right(run.positions, reflected)
                self._runs.append(run.split(count, self._width)[1])

    def rebase(self, installed: int, vector: Mapping[str, Position]) -> None:
        """Forget what a vector reflects already; what remains makes the versions after `installed`."""
        runs, self._runs = self._runs, deque()
        self._next_version = installed + 1
        for run in runs:
            count = sum(1 for p in run.positions if p <= vector[run.source])
            rest = run.split(count, self._width)[1]
            if not len(rest):
                continue
            shift = (self._next_version - rest.first_version) * self._width
            tables = {
                node: table.set_column(
                    table.column_names.index(SEQUENCE), SEQUENCE, pc.add(table[SEQUENCE], shift)
                )
                for node, table in rest.tables.items()
            }
            self._runs.append(replace(rest, first_version=self._next_version, tables=tables))
            self._next_version += len(rest)

    def installed(self, version: int) -> None:
        """Forget the transactions up to a version: they are in the view now."""
        while self._runs and self._runs[0].last_version <= version:
            self._runs.popleft()
        if self._runs and self._runs[0].first_version <= version:
            count = version - self._runs[0].first_version + 1
            self._runs[0] = self._runs[0].split(count, self._width)[1]

    def clear(self, installed: int) -> None:
        """Forget everything; the next transaction will make version `installed + 1`."""
        self._runs.clear()
        self._next_version = installed + 1
