"""A wrapper without its server and without threads, and a mediator that believes nothing it is told.

The oracle is recomputation: the local views after every commit of a database in memory. The mediator's end
adds up what it is told, compares after each transaction, and checks the order contract at every message.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from wrapper.query_processor import Arrival, QueryProcessor, Session

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

State = dict[tuple[Any, ...], int]


class BatchingSnapshot(Snapshot):
    """Every third transaction is told as several in one."""

    def __init__(self, healthy: Snapshot) -> None:
        self._healthy = healthy

    @property
    def position(self) -> Position:
        return self._healthy.position

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        run = self._healthy.changes(after, most_rows)
        return replace(run, batched=frozenset(i for i, p in enumerate(run.positions) if is_batched(p)))

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        return self._healthy.fetch(query, keys)


def is_batched(position: Position) -> bool:
    return position.ordinal % 3 == 0


class BatchingAdapter(MemoryAdapter):
    """A database in memory that cannot always tell transactions apart, or says so."""

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        with super().snapshot() as healthy:
            yield BatchingSnapshot(healthy)


@dataclass
class World:
    """A source, everything it ever was, and the marks of its transactions."""

    random: random.Random
    database: MemoryDatabase = field(default_factory=lambda: MemoryDatabase(uuid4().hex))
    versions: dict[int, Mapping[str, Delta]] = field(default_factory=dict)
    marks: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, columns in RELATIONS.items():
            self.database.create(name, columns)
        self.adapter = BatchingAdapter(SourceConfig("m", "memory", f"memory:///{self.database.name}"))
        self.adapter.prepare(list(RELATIONS))
        self.catalog: Catalog = self.adapter.catalog()
        self.views = {
            name: decompose(name, sql, {"m": self.catalog}).local_views[0] for name, sql in VIEWS.items()
        }
        self._states: dict[tuple[str, int], State] = {}
        self._note()
        for _ in range(6):
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
            here = {name: dict(self.versions[max(self.versions)][name].to_dict()) for name in RELATIONS}
            for _ in range(self.random.choice([1, 1, 2, 4])):
                name = self.random.choice(list(RELATIONS))
                present = [row for row, count in here[name].items() if count > 0]
                if present and self.random.random() < 0.45:
                    row = self.random.choice(present)
                    transaction.delete(name, [row])
                    here[name][row] -= 1
                else:
                    row = (self.random.randrange(3), self.random.randrange(3))
                    transaction.insert(name, [row])
                    here[name][row] = here[name].get(row, 0) + 1
            if self.random.random() < 0.2:
                self.marks[max(self.versions) + 1] = f"g{max(self.versions)}"
                transaction.mark(f"g{max(self.versions)}", "m,other")
        self._note()

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
            known = self._states[view.name, ordinal] = Delta(found).to_dict()
        return dict(known)

    def _table(self, ordinal: int, relation: str, columns: Sequence[str]) -> pa.Table:
        counted = self.versions[ordinal][relation].rows
        copies = [i for i, count in enumerate(counted[COUNT].to_pylist()) for _ in range(count)]
        return counted.select(list(columns)).take(pa.array(copies, pa.int64()))

    def touches(self, view: LocalView, ordinal: int) -> bool:
        """Whether a commit concerns a local view: by a mark, or by a change of one of its relations."""
        before, after = self.versions[ordinal - 1], self.versions[ordinal]
        return ordinal in self.marks or any(
            before[name].to_dict() != after[name].to_dict() for name in view.relations
        )


@dataclass
class Followed:
    """A local view at the mediator: where it is, and what it holds."""

    view: LocalView
    at: int
    state: State


class Follower:
    """A wrapper that is told when to take a turn, and the checks of all that it says."""

    def __init__(self, world: World, most_rows: int) -> None:
        self.world = world
        self.processor = QueryProcessor(world.adapter, limits=WrapperLimits(max_run_rows=most_rows))
        self.attach()

    def attach(self) -> None:
        """A new stream in place of the last one; what was delivered stays delivered."""
        self.session = Session("test", OrderMessageQueue())
        self.followed: dict[str, Followed] = getattr(self, "followed", {})
        self.asked: dict[int, tuple[str, Keys | None]] = {}
        self.reported = 0
        self.answered = 0
        self.runs = 0
        self._number = 0
        self._send(attach=pb.Attach(mediator="test"))
        for name in self.followed:
            self.define(name, self.followed[name].at)

    def close(self) -> None:
        self.processor._backlog.close()
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
        """Ask for the rows with some values in the first column."""
        self._number += 1
        column = self.followed[name].view.columns[0]
        values = pa.table({column.name: pa.array([0, 2], column.type)})
        keys = Keys((column.name,), values) if self._number % 2 else None
        query = pb.MaintenanceQuery(query_id=self._number, local_view=name)
        if keys is not None:
            query.key_columns.append(column.name)
            query.arrow = to_ipc(keys.values)
        self.asked[self._number] = (name, keys)
        self._send(query=query)

    def turn(self) -> None:
        """Let the wrapper take one turn, and check what it sent."""
        self.processor._turn()
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
            case "progress":
                self._progress(response.progress.position.ordinal)
            case "result":
                self._result(response.result)
            case "error":
                name, _ = self.asked.pop(response.error.query_id, ("", None))
                assert name not in {"", *self.followed}, response.error.message

    def _update(self, update: pb.Update) -> None:
        assert not update.more
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
            rows = from_ipc(delta.arrow).to_pylist() if delta.arrow else []
            for index in delta.touched:
                own = [row for row in rows if row["_tx"] == index]
                self._apply(followed, ordinals[index], own)
            assert {row["_tx"] for row in rows} <= set(delta.touched)

    def _apply(self, followed: Followed, ordinal: int, rows: Sequence[Mapping[str, Any]]) -> None:
        skipped = range(followed.at + 1, ordinal)
        assert ordinal > followed.at, "a transaction came twice"
        assert not any(self.world.touches(followed.view, o) for o in skipped), "a transaction is missing"
        for row in rows:
            values = tuple(row[column.name] for column in followed.view.columns)
            assert row[COUNT], "not in normal form"
            followed.state[values] = followed.state.get(values, 0) + row[COUNT]
        followed.state = {values: count for values, count in followed.state.items() if count}
        followed.at = ordinal
        assert followed.state == self.world.state(followed.view, ordinal), followed.view.name

    def _progress(self, ordinal: int) -> None:
        assert ordinal >= self.reported
        self.reported = ordinal
        for followed in self.followed.values():
            missing = [o for o in range(followed.at + 1, ordinal + 1) if self.world.touches(followed.view, o)]
            assert not missing, f"progress to {ordinal} skips {missing}"
            followed.at = max(followed.at, ordinal)

    def _result(self, result: pb.QueryResult) -> None:
        name, keys = self.asked.pop(result.query_id)
        assert result.last
        assert result.position.ordinal == self.reported, "an answer shows what was not reported"
        followed = self.followed.get(name)
        if followed is None:
            return
        assert followed.at == result.position.ordinal
        answer = from_ipc(result.arrow) if result.arrow else followed.view.arrow.empty_table()
        expected = followed.state
        if keys is not None:
            wanted = set(keys.values.column(0).to_pylist())
            expected = {values: count for values, count in expected.items() if values[0] in wanted}
        assert Delta.of_bag(answer).to_dict() == expected
        self.answered += 1
