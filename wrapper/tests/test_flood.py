"""A mediator that sends more than can be done: the wrapper keeps its pace and its size, and goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from adapters.registry import create
from adapters.spi import Snapshot, SourceConfig
from algebra.arrow_ipc import from_ipc
from algebra.errors import SourceUnavailableError
from algebra.expressions import ColumnRef
from algebra.local_view import Keys, LocalView, Occurrence, OutputColumn
from algebra.position import ORIGIN, Position
from protos.convert import local_view_to_proto, position_from_proto, position_to_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper import order_assignment, service
from wrapper.allow_list import MediatorPolicy, Policies
from wrapper.localized_processor import LocalizedQuery
from wrapper.query_processor import QueryProcessor
from wrapper.server import WrapperServer
from wrapper.service import MOST_WAITING
from wrapper.tests.exchange import Mediator
from wrapper.tests.sqlite_writer import SqliteWriter

VIEW = LocalView(
    "v.s",
    "s",
    (Occurrence("r", "r"),),
    (),
    (),
    (
        OutputColumn("x", ColumnRef("r", "x"), pa.int64()),
        OutputColumn("y", ColumnRef("r", "y"), pa.string()),
    ),
)
WIDE = "y" * 700
"""Wide enough that a few hundred answers of all rows fill what may wait to leave."""
RATE = 50


class Flooded:
    """A wrapper, its writer, and what waits in it."""

    def __init__(self, stack: ExitStack, folder: Path, policy: MediatorPolicy) -> None:
        self._stack = stack
        self.writer = stack.enter_context(SqliteWriter(folder / "s.db"))
        self.writer.commit(
            "CREATE TABLE r (x INTEGER, y TEXT)",
            *(f"INSERT INTO r VALUES ({-number}, '{WIDE}')" for number in range(100)),
        )
        server = WrapperServer(
            create(SourceConfig("s", "sqlite", f"sqlite:///{folder / 's.db'}")),
            "127.0.0.1:0",
            policies=Policies({"*": policy}),
        )
        self.address = server.start()
        stack.callback(server.stop, 0)
        self.processor: QueryProcessor = server._processor
        self.most_waiting = self.most_bytes = 0
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        stack.callback(self._watcher.join, 30)
        stack.callback(self._stopped.set)

    def _watch(self) -> None:
        while not self._stopped.wait(0.002):
            session = self.processor._session
            queries = len(session.queries) if session is not None else 0
            self.most_waiting = max(self.most_waiting, len(self.processor.messages) + queries)
            if session is not None:
                self.most_bytes = max(self.most_bytes, session.waiting_bytes)

    def attached(self, position: Position | None = None) -> Mediator:
        """A mediator whose local view is defined, from the position on or from where a load leaves it."""
        mediator = self._stack.enter_context(Mediator(self.address, "s"))
        mediator.expect("attached")
        mediator.define(VIEW, position or mediator.load(VIEW)[1])
        mediator.expect("defined")
        mediator.credit()
        return mediator


@pytest.fixture
def policy() -> MediatorPolicy:
    return MediatorPolicy()


@pytest.fixture
def flooded(tmp_path: Path, policy: MediatorPolicy) -> Iterator[Flooded]:
    with ExitStack() as stack:
        yield Flooded(stack, tmp_path, policy)


def one_row(number: int) -> Keys:
    return Keys(("x",), pa.table({"x": pa.array([number], pa.int64())}))


@pytest.mark.parametrize("policy", [MediatorPolicy(queries_per_second=RATE)])
def test_a_flood_of_queries_is_answered_at_the_allowed_rate(flooded: Flooded) -> None:
    """The bound is what the bucket held and what ran into it meanwhile; time that passes only raises it."""
    began = time.monotonic()
    mediator = flooded.attached()
    flood, commits = 5000, 25
    for number in range(flood):
        mediator.ask(VIEW, one_row(-number % 100))
    answered: list[int] = []
    told: list[int] = []
    reported = ORIGIN
    for number in range(1, commits + 1):
        flooded.writer.commit(f"INSERT INTO r VALUES ({number}, 'new')")
    while len(told) < commits or len(answered) < 2 * RATE:
        response = mediator.receive(heartbeats=True)
        match response.WhichOneof("message"):
            case "update":
                for transaction in response.update.transactions:
                    assert position_from_proto(transaction.position) > reported
                    reported = position_from_proto(transaction.position)
                    told.append(len(told) + 1)
            case "progress":
                assert position_from_proto(response.progress.position) >= reported
                reported = position_from_proto(response.progress.position)
            case "result":
                assert position_from_proto(response.result.position) == reported, "what it shows was reported"
                if response.result.last:
                    answered.append(response.result.query_id)
            case other:
                raise AssertionError(other)
    assert flooded.processor.counters.queries <= RATE + RATE * (time.monotonic() - began)
    assert answered == list(range(1, len(answered) + 1)), "none is left out"
    assert len(told) == commits
    assert flooded.most_waiting <= MOST_WAITING
    mediator.__exit__(None, None, None)
    after = flooded.attached(reported)
    flooded.writer.commit("INSERT INTO r VALUES (0, 'after')")
    assert len(after.expect("update").transactions) == 1, "unharmed: the next mediator has what came since"


FLOOD = 2 * MOST_WAITING


def flood_unread(flooded: Flooded, mediator: Mediator) -> None:
    """Queries whose answers are not read; returns when the wrapper no longer reads them."""
    for _ in range(FLOOD):
        mediator.ask(VIEW, None)
    still = 0
    while flooded.most_waiting < MOST_WAITING or still < 3:
        answered = flooded.processor.counters.queries
        time.sleep(0.2)
        still = still + 1 if flooded.processor.counters.queries == answered else 0


def test_queries_of_a_mediator_that_does_not_read_wait_in_bounds(flooded: Flooded) -> None:
    mediator = flooded.attached()
    flood_unread(flooded, mediator)
    assert flooded.processor.counters.queries < FLOOD - MOST_WAITING, "it does wait"
    assert flooded.most_waiting == MOST_WAITING
    flooded.writer.commit("INSERT INTO r VALUES (1, 'new')")
    rows = [0] * FLOOD
    updates = 0
    while not rows[-1]:
        response = mediator.receive()
        updates += response.HasField("update")
        if response.HasField("result"):
            rows[response.result.query_id - 1] += response.result.last
    assert (rows, updates) == ([1] * FLOOD, 1), "late, and complete"


def test_a_mediator_that_does_not_read_does_not_keep_the_next_one_out(flooded: Flooded) -> None:
    stuck = flooded.attached()
    flood_unread(flooded, stuck)
    after = flooded.attached()
    flooded.writer.commit("INSERT INTO r VALUES (1, 'new')")
    assert len(after.expect("update").transactions) == 1


def test_bytes_that_wait_are_bounded(flooded: Flooded, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 100_000
    monkeypatch.setattr(service, "MOST_WAITING_BYTES", most)
    mediator = flooded.attached()
    keys = Keys(("x",), pa.table({"x": pa.array(range(-1250, 0), pa.int64())}))
    for _ in range(300):
        asked = mediator.ask(VIEW, keys)
    for number in range(1, asked + 1):
        while not (found := mediator.expect("result")).last:
            pass
        assert found.query_id == number
    assert most // 2 < flooded.most_bytes < most + 11_000, "one message may be over"
    assert flooded.most_waiting < 15


def defining(mediator: Mediator, position: Position) -> None:
    """Define a local view, and announce another one that belongs to it."""
    define = pb.DefineLocalView(
        local_view=local_view_to_proto(VIEW), after=position_to_proto(position), more=True
    )
    mediator.send(define=define)
    mediator.expect("defined")


def test_queries_that_wait_for_a_definition_are_bounded(flooded: Flooded) -> None:
    """The last definition, without which nothing is answered, never comes."""
    mediator = flooded.attached()
    defining(mediator, ORIGIN)
    for _ in range(3 * MOST_WAITING):
        mediator.ask(VIEW, None)
    error = mediator.expect("error")
    assert error.reason == "LIMIT_EXCEEDED"
    assert "wait for the last of the local views" in error.message
    with pytest.raises(AssertionError, match="ended the stream"):
        mediator.receive()
    assert flooded.most_waiting <= 2 * MOST_WAITING
    assert len(flooded.attached().load(VIEW)[0]) == 100


def test_as_many_queries_as_may_wait_do_wait_for_a_definition(flooded: Flooded) -> None:
    mediator = flooded.attached()
    _, position = mediator.load(VIEW)
    defining(mediator, position)
    for _ in range(MOST_WAITING):
        mediator.ask(VIEW, one_row(-1))
    mediator.define(VIEW, position)
    mediator.expect("defined")
    for number in range(1, MOST_WAITING + 1):
        assert mediator.expect("result").query_id == number


def test_queries_outlast_a_source_that_goes_away_while_it_is_asked(
    flooded: Flooded, monkeypatch: pytest.MonkeyPatch
) -> None:
    mediator = flooded.attached()
    real = LocalizedQuery.answer
    failures = iter([SourceUnavailableError("gone for a moment")])

    def unreliable(self: LocalizedQuery, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        for failure in failures:
            raise failure
        yield from real(self, snapshot)

    _, position = mediator.load(VIEW)
    defining(mediator, position)  # so that all three are there when the first is answered
    for _ in range(3):
        mediator.ask(VIEW, one_row(-1))
    monkeypatch.setattr(LocalizedQuery, "answer", unreliable)
    mediator.define(VIEW, position)
    mediator.expect("defined")
    assert mediator.expect("error").reason == "SOURCE_UNAVAILABLE"
    assert [mediator.expect("result").query_id for _ in range(3)] == [1, 2, 3]


def test_an_answer_that_broke_off_begins_anew(flooded: Flooded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first chunks are out already: the next ones are numbered from the beginning."""
    monkeypatch.setattr(order_assignment, "CHUNK_BYTES", 1)
    mediator = flooded.attached()
    real = LocalizedQuery.answer
    failures = iter([SourceUnavailableError("gone in the middle of an answer")])

    def unreliable(self: LocalizedQuery, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        [rows] = real(self, snapshot)
        yield rows.slice(0, 40)
        for failure in failures:
            raise failure
        yield rows.slice(40)

    _, position = mediator.load(VIEW)
    monkeypatch.setattr(LocalizedQuery, "answer", unreliable)
    mediator.define(VIEW, position)
    mediator.expect("defined")
    mediator.ask(VIEW, None)
    assert mediator.expect("result").chunk == 0
    assert mediator.expect("error").reason == "SOURCE_UNAVAILABLE"
    chunks = [mediator.expect("result") for _ in range(3)]
    assert [(chunk.chunk, chunk.last) for chunk in chunks] == [(0, False), (1, False), (2, True)]
    assert sum(from_ipc(chunk.arrow).num_rows for chunk in chunks if chunk.arrow) == 100


def test_nobody_waits_for_the_rest_of_an_answer_that_nobody_reads(
    flooded: Flooded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked for too much has left; the source must not be read to the end for it."""
    left, ended = threading.Event(), threading.Event()

    def endless(self: LocalizedQuery, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        batch = pa.RecordBatch.from_pylist([], VIEW.arrow)
        left.set()
        try:
            while True:
                yield batch
        finally:
            ended.set()

    with Mediator(flooded.address, "s") as mediator:
        mediator.expect("attached")
        _, position = mediator.load(VIEW)
        monkeypatch.setattr(LocalizedQuery, "answer", endless)
        mediator.define(VIEW, position)
        mediator.expect("defined")
        mediator.ask(VIEW, None)
        assert left.wait(60)
    assert ended.wait(60)
