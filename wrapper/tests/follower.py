"""A wrapper without its server and without threads, and a mediator that believes nothing it is told.

The oracle is recomputation: the local views after every commit of a database in memory. The mediator's end
adds up what it is told, compares after each transaction, and checks the order contract at every message.
"""

from __future__ import annotations

import datetime
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pyarrow as pa

from adapters.memory import MemoryAdapter, MemoryDatabase
from adapters.spi import Changes, Snapshot, SourceConfig
from algebra.arrow_ipc import from_ipc, to_ipc
from algebra.assembly import local_assembly
from algebra.decompose import decompose
from algebra.delta import Delta
from algebra.engines.contract import Extent
from algebra.engines.reference import ReferenceEngine
from algebra.errors import SourceUnavailableError
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import COUNT, Catalog
from protos.convert import (
    global_transaction_from_proto,
    local_view_to_proto,
    position_from_proto,
    position_to_proto,
)
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.limits import WrapperLimits
from wrapper.message_queue import OrderMessageQueue
from wrapper.query_processor import QueryProcessor
from wrapper.session import Arrival, Session

INT = pa.int64()
RELATIONS = {"r": {"x": INT, "y": INT}, "s": {"y": INT, "z": INT}, "t": {"z": INT, "w": INT}}
VIEWS = {
    "alone": "SELECT r.x FROM m.r r WHERE r.y > 0",
    "two": "SELECT r.x, s.z FROM m.r r JOIN m.s s ON r.y = s.y",
    "chain": "SELECT r.x, s.z, t.w FROM m.r r, m.s s, m.t t WHERE r.y = s.y AND s.z = t.z AND t.w > 0",
    "itself": "SELECT a.x, b.y FROM m.r a JOIN m.r b ON a.y = b.x",
    "thrice": "SELECT a.x, c.y FROM m.r a, m.r b, m.r c WHERE a.y = b.x AND b.y = c.x",
    "star": "SELECT s.y, r.x, t.w FROM m.s s, m.r r, m.t t WHERE s.y = r.y AND s.z = t.z",
    "theta": "SELECT r.x, s.z FROM m.r r, m.s s WHERE r.y = s.y AND r.x < s.z",
}
"""Each is one local view of source m."""

ODD_RELATIONS = {
    "r": {"x": INT, "y": INT, "f": pa.float64()},
    "s": {"y": INT, "name": pa.string(), "d": pa.decimal128(9, 2)},
    "t": {"name": pa.string(), "b": pa.binary(), "at": pa.timestamp("us")},
}
ODD_VIEWS = {
    "lone": "SELECT r.f, r.y FROM m.r r WHERE r.x > 0 OR r.y IS NULL",
    "joined": "SELECT r.x, r.f, s.name FROM m.r r JOIN m.s s ON r.y = s.y WHERE s.d <> 1",
    "floats": "SELECT a.x, b.y, b.f FROM m.r a JOIN m.r b ON a.f = b.f",
    "names": "SELECT s.y, t.b, t.at, s.name AS n1, t.name AS n2 FROM m.s s JOIN m.t t ON s.name = t.name",
    "pairs": "SELECT a.d, b.name FROM m.s a JOIN m.s b ON a.y = b.y AND a.name = b.name",
    "less": "SELECT s.d, r.f FROM m.r r JOIN m.s s ON r.x < s.y",
    "triangle": "SELECT a.x, s.d, b.f FROM m.r a, m.s s, m.r b WHERE a.y = s.y AND s.y = b.x AND a.f = b.f",
    "either": "SELECT r.x, s.y, t.b FROM m.r r, m.s s, m.t t "
    "WHERE r.y = s.y AND s.name = t.name AND (r.x = 1 OR t.b IS NULL)",
}
"""Every type with values that are equal and look different or the reverse, NULL among them."""

_VALUES: Mapping[pa.DataType, Sequence[Any]] = {
    INT: [0, 1, 2, 2, None],
    pa.float64(): [0.5, -1.0, math.nan, None],
    pa.string(): ["a", "A", "a ", "", "\u00e9", "e\u0301", None],
    pa.decimal128(9, 2): [Decimal("1.00"), Decimal("0.10"), Decimal("-0.10"), None],
    pa.binary(): [b"", b"a", b"\xff\x00", None],
    pa.timestamp("us"): [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, 0, 0, 0, 1), None],
}

State = dict[tuple[Any, ...], int]


def told_apart(rows: Iterable[tuple[tuple[Any, ...], int]]) -> State:
    """Rows with their counts, by value: each NaN is the same."""
    found: State = {}
    for row, count in rows:
        key = tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in row)
        found[key] = found.get(key, 0) + count
    return {row: count for row, count in found.items() if count}


def some_keys(view: LocalView, rnd: random.Random) -> Keys:
    """Some values of some of a local view's columns."""
    columns = rnd.sample(view.columns, rnd.randint(1, min(3, len(view.columns))))
    names = [column.name for column in columns]
    rows = {
        tuple(rnd.choice([v for v in _VALUES[column.type] if v is not None]) for column in columns)
        for _ in range(rnd.randint(1, 4))
    }
    values = [dict(zip(names, row, strict=True)) for row in rows]
    schema = pa.schema([(column.name, column.type) for column in columns])
    return Keys(tuple(names), pa.Table.from_pylist(values, schema))


class Weather:
    """When the source goes away: at the n-th time from now on that something of it is read, half-way."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}

    def goes_away(self, what: str, calls: int) -> None:
        """After so many readings of `changes` or `rows`."""
        self._calls[what] = calls

    def stays(self, what: str) -> bool:
        """Whether it stays for what is read now."""
        calls = self._calls.pop(what, 0) - 1
        if calls > 0:
            self._calls[what] = calls
        return calls != 0


class BatchingSnapshot(Snapshot):
    """Every third transaction is told as several in one; it may go away while it is read."""

    def __init__(self, healthy: Snapshot, weather: Weather) -> None:
        self._healthy, self._weather = healthy, weather

    @property
    def position(self) -> Position:
        return self._healthy.position

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        if not self._weather.stays("changes"):
            raise SourceUnavailableError("away while its changes are read")
        run = self._healthy.changes(after, most_rows)
        return replace(run, batched=frozenset(i for i, p in enumerate(run.positions) if is_batched(p)))

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        rows = self._healthy.fetch(query, keys).read_all()
        whole = self._weather.stays("rows")

        def batches() -> Iterator[pa.RecordBatch]:
            yield from rows.slice(0, rows.num_rows // 2).to_batches()
            if not whole:
                raise SourceUnavailableError("away in the middle of an answer")
            yield from rows.slice(rows.num_rows // 2).to_batches()

        return pa.RecordBatchReader.from_batches(rows.schema, batches())


def is_batched(position: Position) -> bool:
    return position.ordinal % 3 == 0


class BatchingAdapter(MemoryAdapter):
    """A database in memory that cannot always tell transactions apart, or says so, and goes away at times."""

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self.weather = Weather()

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        with super().snapshot() as healthy:
            yield BatchingSnapshot(healthy, self.weather)


@dataclass
class World:
    """A source, everything it ever was, and the marks of its transactions."""

    random: random.Random
    relations: Mapping[str, Mapping[str, pa.DataType]] = field(default_factory=lambda: RELATIONS)
    sql: Mapping[str, str] = field(default_factory=lambda: VIEWS)
    before: int = 6
    """Transactions before anyone looks."""
    database: MemoryDatabase = field(default_factory=lambda: MemoryDatabase(uuid4().hex))
    versions: dict[int, Mapping[str, Delta]] = field(default_factory=dict)
    marks: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, columns in self.relations.items():
            self.database.create(name, columns)
        self.adapter = BatchingAdapter(SourceConfig("m", "memory", f"memory:///{self.database.name}"))
        self.adapter.prepare(list(self.relations))
        self.catalog: Catalog = self.adapter.catalog()
        self.views = {
            name: decompose(name, sql, {"m": self.catalog}).local_views[0] for name, sql in self.sql.items()
        }
        self._states: dict[tuple[str, int], State] = {}
        self._note()
        for _ in range(self.before):
            self.transact()

    def _note(self) -> None:
        version = self.database.version
        self.versions[version.ordinal] = version.contents

    @property
    def position(self) -> Position:
        capture = self.database.version.capture
        assert capture is not None
        return Position(self.database.version.ordinal, capture.epoch)

    def transact(self) -> None:
        """A transaction with one to four changes, duplicates and deletes included."""
        with self.database.transaction() as transaction:
            here = {name: dict(self.versions[max(self.versions)][name].to_dict()) for name in self.relations}
            for _ in range(self.random.choice([1, 1, 2, 4])):
                name = self.random.choice(list(self.relations))
                present = [row for row, count in here[name].items() if count > 0]
                if present and self.random.random() < 0.45:
                    row = self.random.choice(present)
                    transaction.delete(name, [row])
                    here[name][row] -= 1
                else:
                    row = tuple(self._value(type_) for type_ in self.relations[name].values())
                    transaction.insert(name, [row])
                    here[name][row] = here[name].get(row, 0) + 1
            if self.random.random() < 0.2:
                self.marks[max(self.versions) + 1] = f"g{max(self.versions)}"
                transaction.mark(f"g{max(self.versions)}", "m,other")
        self._note()

    def _value(self, type_: pa.DataType) -> Any:
        if self.relations is RELATIONS:
            return self.random.randrange(3)
        return self.random.choice(_VALUES[type_])

    def state(self, view: LocalView, ordinal: int) -> State:
        """A local view as it was after a commit, by nested loops."""
        known = self._states.get((view.name, ordinal))
        if known is None:
            query = local_assembly(view, self.catalog)
            tables = [
                Extent(self._table(ordinal, occurrence.relation, node.schema.names))
                for occurrence, node in zip(view.occurrences, query.nodes, strict=True)
            ]
            found = ReferenceEngine().extent(query, tables, None).table
            assert found is not None
            known = self._states[view.name, ordinal] = told_apart(Delta(found).to_dict().items())
        return dict(known)

    def _table(self, ordinal: int, relation: str, columns: Sequence[str]) -> pa.Table:
        counted = self.versions[ordinal][relation].rows
        copies = [i for i, count in enumerate(counted[COUNT].to_pylist()) for _ in range(count)]
        return counted.select(list(columns)).take(pa.array(copies, pa.int64()))

    def touches(self, view: LocalView, ordinal: int) -> bool:
        """Whether a commit concerns a local view: by a mark, or by a change of one of its relations."""
        before, after = self.versions[ordinal - 1], self.versions[ordinal]
        return ordinal in self.marks or any(
            not before[name].minus(after[name]).is_empty for name in view.relations
        )


@dataclass
class Followed:
    """A local view at the mediator: where it is, and what it holds."""

    view: LocalView
    at: int
    state: State


class Follower:
    """A wrapper that is told when to take a turn, and the checks of all that it says."""

    def __init__(self, world: World, most_rows: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.world = world
        limits = WrapperLimits(max_run_rows=most_rows)
        self.processor = QueryProcessor(world.adapter, limits=limits, clock=clock)
        self.attach()

    def attach(self) -> None:
        """A new stream in place of the last one; what was delivered stays delivered."""
        self.session = Session("test", OrderMessageQueue())
        self.followed: dict[str, Followed] = getattr(self, "followed", {})
        self.asked: dict[int, tuple[str, Keys | None]] = {}
        self.reported = 0
        self.answered = 0
        self.runs = 0
        self.signs_of_life = 0
        self.failures = 0
        self._parts: list[pb.Update] = []
        self._chunks: dict[int, list[pa.Table | None]] = {}
        self._number = 0
        self._send(attach=pb.Attach(mediator="test"))
        for name in self.followed:
            self.define(name, self.followed[name].at)

    def close(self) -> None:
        self.processor._backlog.close()
        self.processor._aside.close()
        self.processor._engine.close()

    def _send(self, **message: Any) -> None:
        self.processor.messages.put(Arrival(self.session, pb.ExchangeRequest(**message)))

    def define(self, name: str, at: int) -> None:
        view = replace(self.world.views[name], name=name)
        self.followed[name] = Followed(view, at, self.world.state(view, at))
        after = replace(self.world.position, ordinal=at)
        self._send(
            define=pb.DefineLocalView(local_view=local_view_to_proto(view), after=position_to_proto(after))
        )

    def drop(self, name: str) -> None:
        del self.followed[name]
        self._send(drop=pb.DropLocalView(local_view=name))
        self.turn()

    def credit(self, rows: int) -> None:
        self._send(credit=pb.Credit(rows=rows))

    def ask(self, name: str) -> None:
        """Ask for the rows with some values in some columns, or for all."""
        self._number += 1
        view = self.followed[name].view
        keys = some_keys(view, random.Random(self._number)) if self._number % 3 else None
        query = pb.MaintenanceQuery(query_id=self._number, local_view=name)
        if keys is not None:
            query.key_columns.extend(keys.columns)
            query.arrow = to_ipc(keys.values)
        self.asked[self._number] = (name, keys)
        self._send(query=query)

    def turn(self) -> None:
        """Let the wrapper take one turn, and check what it sent, also if the source went away meanwhile."""
        try:
            self.processor._turn()
        except SourceUnavailableError:
            self.failures += 1
        while self.session.queue._responses:
            response, size = self.session.queue._responses.popleft()
            self.session.queue._bytes -= size
            self._check(response)

    def settle(self) -> None:
        """Enough credit and turns to report everything."""
        for _ in range(1000):
            self.credit(1000)
            self.turn()
            if all(f.at == self.world.position.ordinal for f in self.followed.values()) and not self.asked:
                return
        raise AssertionError(f"not all was reported: {[(f.view.name, f.at) for f in self.followed.values()]}")

    def _check(self, response: pb.ExchangeResponse) -> None:
        match response.WhichOneof("message"):
            case "update":
                self._update(response.update)
            case "progress" if response.progress.HasField("position"):
                self._progress(response.progress.position.ordinal)
            case "progress":
                self.signs_of_life += 1
            case "result":
                self._result(response.result)
            case "error":
                name, _ = self.asked.pop(response.error.query_id, ("", None))
                assert name not in {"", *self.followed}, response.error.message

    def _update(self, part: pb.Update) -> None:
        self._parts.append(part)
        if part.more:
            return
        (update, *further), self._parts = self._parts, []
        self.runs += 1
        ordinals = [transaction.position.ordinal for transaction in update.transactions]
        assert ordinals == sorted(set(ordinals))
        for transaction in update.transactions:
            position = position_from_proto(transaction.position)
            assert transaction.batched == is_batched(position)
            mark = global_transaction_from_proto(transaction.part_of)
            assert (mark.id if mark else None) == self.world.marks.get(position.ordinal)
        for delta in update.deltas:
            followed = self.followed.get(delta.local_view)
            if followed is None:
                continue
            own_parts = [d for p in (update, *further) for d in p.deltas if d.local_view == delta.local_view]
            rows = [row for d in own_parts if d.arrow for row in from_ipc(d.arrow).to_pylist()]
            for index in delta.touched:
                own = [row for row in rows if row["_tx"] == index]
                self._apply(followed, ordinals[index], own)
            assert {row["_tx"] for row in rows} <= set(delta.touched)

    def _apply(self, followed: Followed, ordinal: int, rows: Sequence[Mapping[str, Any]]) -> None:
        skipped = range(followed.at + 1, ordinal)
        assert ordinal > followed.at, "a transaction came twice"
        assert not any(self.world.touches(followed.view, o) for o in skipped), "a transaction is missing"
        assert all(row[COUNT] for row in rows), "not in normal form"
        names = [column.name for column in followed.view.columns]
        changed = [(tuple(row[name] for name in names), row[COUNT]) for row in rows]
        followed.state = told_apart([*followed.state.items(), *changed])
        followed.at = ordinal
        assert followed.state == self.world.state(followed.view, ordinal), followed.view.name

    def _progress(self, ordinal: int) -> None:
        assert ordinal >= self.reported
        self.reported = ordinal
        for followed in self.followed.values():
            if followed.at < ordinal:
                self._reached(followed, ordinal)

    def _reached(self, followed: Followed, ordinal: int) -> None:
        """All that concerns a local view up to a commit was told, and nothing beyond."""
        assert followed.at <= ordinal, f"{ordinal} was told after {followed.at}"
        missing = [o for o in range(followed.at + 1, ordinal + 1) if self.world.touches(followed.view, o)]
        assert not missing, f"told to be at {ordinal} without {missing}"
        followed.at = ordinal

    def _result(self, result: pb.QueryResult) -> None:
        chunks = self._chunks.setdefault(result.query_id, [])
        if not result.chunk:
            chunks.clear()
        assert result.chunk == len(chunks)
        chunks.append(from_ipc(result.arrow) if result.arrow else None)
        if not result.last:
            return
        name, keys = self.asked.pop(result.query_id)
        followed = self.followed.get(name)
        if followed is None:
            return
        self._reached(followed, result.position.ordinal)
        answer = pa.concat_tables([followed.view.arrow.empty_table(), *filter(None, chunks)])
        expected = followed.state
        if keys is not None:
            wanted = set(told_apart((tuple(row.values()), 1) for row in keys.values.to_pylist()))
            at = [followed.view.arrow.names.index(name) for name in keys.columns]
            expected = {row: n for row, n in expected.items() if tuple(row[i] for i in at) in wanted}
        assert told_apart(Delta.of_bag(answer).to_dict().items()) == expected, followed.view.name
        self.answered += 1
