"""The mediator's half of the ordering contract: a wrapper that breaks it is refused, never believed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pyarrow as pa
import pytest

from algebra.arrow_ipc import to_ipc
from algebra.errors import LockstepError, NotFoundError
from algebra.expressions import ColumnRef
from algebra.global_transaction import GlobalTransaction
from algebra.local_view import LocalView, Occurrence, OutputColumn
from algebra.position import ORIGIN, Position
from algebra.sweep import Answer
from mediator.channel import MOST_UNSENT, SourceChannel
from mediator.open_queries import query_by_keys
from mediator.reported_views import SourceUpdate
from protos.lockstep.v1 import types_pb2, wrapper_pb2_grpc
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.version import PROTOCOL_VERSION

INT = pa.int64()
CREDIT, ASSEMBLED = 1000, 500
VIEW = LocalView("v.s", "s", (Occurrence("r", "r"),), (), (), (OutputColumn("x", ColumnRef("r", "x"), INT),))


DEFINED = pb.ExchangeResponse(defined=pb.LocalViewDefined(local_view=VIEW.name))


@dataclass(frozen=True)
class Status(grpc.Status):
    """The end of a failed call, as it goes over the wire."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...] = ()


class ScriptedWrapper(wrapper_pb2_grpc.WrapperServiceServicer):
    """A wrapper that sends what a test tells it to, once a local view is defined or a query asked."""

    def __init__(self) -> None:
        self.script: queue.SimpleQueue[pb.ExchangeResponse] = queue.SimpleQueue()
        self.requests: queue.SimpleQueue[pb.ExchangeRequest] = queue.SimpleQueue()
        self.takes = threading.Event()
        """It takes what it is sent."""
        self.takes.set()
        self.confirms = True
        """It says at once that it has taken up a local view."""
        self.parting: pb.ExchangeResponse | None = None
        """What it says before it ends the stream, if it is to end it."""
        self.abortion: Status | None = None
        """With what it ends the next call, if that is to fail: the stream when it is asked for something."""
        self.extent: Iterator[pb.LoadLocalViewResponse] = iter(())

    def DescribeSource(
        self, request: pb.DescribeSourceRequest, context: grpc.ServicerContext
    ) -> pb.DescribeSourceResponse:
        self._abort(context)
        return pb.DescribeSourceResponse(source="s", protocol_version=PROTOCOL_VERSION)

    def LoadLocalView(
        self, request: pb.LoadLocalViewRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.LoadLocalViewResponse]:
        self._abort(context)
        yield from self.extent

    def Exchange(
        self, request_iterator: Iterator[pb.ExchangeRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ExchangeResponse]:
        yield pb.ExchangeResponse(attached=pb.Attached(source="s", protocol_version=PROTOCOL_VERSION))
        for request in request_iterator:
            self.requests.put(request)
            self.takes.wait(30)
            if request.WhichOneof("message") == "define" and self.confirms:
                name, number = request.define.local_view.name, request.define.subscription
                yield pb.ExchangeResponse(defined=pb.LocalViewDefined(local_view=name, subscription=number))
            if request.WhichOneof("message") in ("define", "query"):
                self._abort(context)
                while not self.script.empty():
                    yield self.script.get()
                if self.parting is not None:
                    yield self.parting
                    return

    def _abort(self, context: grpc.ServicerContext) -> None:
        if self.abortion is not None:
            abortion, self.abortion = self.abortion, None
            context.abort_with_status(abortion)


class NotingChannel(SourceChannel):
    """Notes what it complains of: it connects again soon, and then it has no problem any more."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.problems: queue.SimpleQueue[str] = queue.SimpleQueue()
        super().__init__(*given, **named)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "problem" and value:
            self.problems.put(str(value))


@dataclass
class Setup:
    wrapper: ScriptedWrapper
    channel: NotingChannel
    updates: list[SourceUpdate] = field(default_factory=list)
    failures: list[tuple[str, LockstepError]] = field(default_factory=list)


@pytest.fixture
def setup() -> Iterator[Setup]:
    wrapper = ScriptedWrapper()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    wrapper_pb2_grpc.add_WrapperServiceServicer_to_server(wrapper, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    updates: list[SourceUpdate] = []
    failures: list[tuple[str, LockstepError]] = []
    channel = NotingChannel(
        "s",
        f"127.0.0.1:{port}",
        "test",
        updates.append,
        lambda name, _, error: failures.append((name, error)),
        CREDIT,
        assembled_rows=ASSEMBLED,
    )
    channel.start()
    channel.wait_connected(30)
    yield Setup(wrapper, channel, updates, failures)
    channel.stop()
    server.stop(0)


def update(*ordinals: int) -> pb.ExchangeResponse:
    rows = pa.table({"x": pa.array([1], INT), "_tx": pa.array([0], pa.int32()), "_count": pa.array([1], INT)})
    return pb.ExchangeResponse(
        update=pb.Update(
            transactions=[pb.SourceTransaction(position=types_pb2.Position(ordinal=o)) for o in ordinals],
            deltas=[
                pb.LocalViewDelta(
                    local_view=VIEW.name, arrow=to_ipc(rows), touched=list(range(len(ordinals)))
                )
            ],
            cost=len(ordinals) + rows.num_rows,
        )
    )


def progress(ordinal: int) -> pb.ExchangeResponse:
    return pb.ExchangeResponse(progress=pb.Progress(position=types_pb2.Position(ordinal=ordinal)))


def result(query_id: int, ordinal: int, rows: pa.Table) -> pb.ExchangeResponse:
    return pb.ExchangeResponse(
        result=pb.QueryResult(
            query_id=query_id,
            position=types_pb2.Position(ordinal=ordinal),
            arrow=to_ipc(rows),
            last=True,
        )
    )


def ask(setup: Setup) -> Future[Answer]:
    answer: Future[Answer] = Future()
    setup.channel.ask(query_by_keys(VIEW, None), answer)
    return answer


def wait_for_problem(setup: Setup) -> str:
    """What the channel complains of next; it drops the connection when it does."""
    return setup.channel.problems.get(timeout=30)


def test_updates_and_answers_arrive_in_order(setup: Setup) -> None:
    for response in (update(3, 5), progress(5)):
        setup.wrapper.script.put(response)
    setup.channel.define([VIEW], Position(2))
    setup.channel.wait_delivered(VIEW.name, Position(5), 30)
    assert [u.positions for u in setup.updates] == [(Position(3), Position(5))]
    setup.wrapper.script.put(result(1, 5, pa.table({"x": pa.array([7], INT)})))
    answer = ask(setup).result(timeout=30)
    assert (answer.rows["x"].to_pylist(), answer.position) == ([7], Position(5))


def test_an_update_in_parts_is_delivered_whole_and_owed_once(setup: Setup) -> None:
    first, rest = update(3), update(3)
    first.update.more = True
    del rest.update.transactions[:]
    rest.update.deltas[0].ClearField("touched")
    rest.update.cost = 3
    for response in (first, rest, progress(3)):
        setup.wrapper.script.put(response)
    setup.channel.define([VIEW], Position(2), subscription=7)
    setup.channel.wait_delivered(VIEW.name, Position(3), 30)
    (delivered,) = setup.updates
    rows, touched = delivered.deltas[VIEW.name]
    assert rows is not None
    assert (rows.num_rows, touched, delivered.positions) == (2, (0,), (Position(3),))
    assert delivered.subscriptions == {VIEW.name: 7}
    assert setup.channel.owed == 3
    setup.channel.give_back()
    assert setup.channel.owed == 0


def test_a_source_that_does_not_answer_its_wrapper_is_away_until_it_is_heard_of(setup: Setup) -> None:
    unavailable = pb.ExchangeError(reason="SOURCE_UNAVAILABLE", message="locked")
    setup.wrapper.script.put(pb.ExchangeResponse(error=unavailable))
    setup.channel.define([VIEW], Position(2))
    assert wait_for_problem(setup) == "locked"
    assert (setup.channel.state, setup.channel.connected) == ("unavailable", False)
    assert setup.channel.away_since is not None
    setup.wrapper.script.put(progress(3))
    setup.channel.define([VIEW], Position(2))
    setup.channel.wait_connected(30)
    assert setup.channel.problem == ""
    since: object = setup.channel.away_since
    assert since is None


def test_updates_carry_the_marks_of_their_transactions(setup: Setup) -> None:
    message = update(3, 4, 5)
    one = types_pb2.GlobalTransaction(id="x", participants=["s", "t"])
    other = types_pb2.GlobalTransaction(id="y", participants=["s"])
    message.update.transactions[1].part_of.append(one)
    message.update.transactions[2].part_of.extend([other, one])
    setup.wrapper.script.put(message)
    setup.channel.define([VIEW], Position(2))
    setup.channel.wait_delivered(VIEW.name, Position(5), 30)
    x, y = GlobalTransaction("x", frozenset({"s", "t"})), GlobalTransaction("y", frozenset({"s"}))
    assert [u.marks for u in setup.updates] == [(None, x, GlobalTransaction.joined([x, y]))]


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([update(5, 4)], "source 's' sent transactions out of order"),
        ([update(2)], "source 's' repeated a transaction of local view 'v.s'"),
        ([update(3), update(3)], "source 's' repeated a transaction of local view 'v.s'"),
        ([progress(9), progress(8)], "source 's' went back from 9 to 8"),
    ],
)
def test_a_broken_order_ends_the_stream(
    setup: Setup, messages: list[pb.ExchangeResponse], problem: str
) -> None:
    for message in messages:
        setup.wrapper.script.put(message)
    setup.channel.define([VIEW], Position(2))
    assert wait_for_problem(setup) == problem


ROWS = pa.table({"x": pa.array([7], INT)})


def test_an_answer_from_before_what_was_reported_is_refused(setup: Setup) -> None:
    setup.channel.define([VIEW], Position(2))
    for message in (progress(5), result(1, 4, ROWS)):
        setup.wrapper.script.put(message)
    future = ask(setup)
    assert wait_for_problem(setup) == (
        "source 's' answered for local view 'v.s' at 4, after it had reported changes up to 5"
    )
    assert not future.done(), "the query is asked again when the stream is back"


def test_a_query_whose_answer_was_refused_is_answered_later(setup: Setup) -> None:
    for message in (progress(5), result(1, 4, ROWS)):
        setup.wrapper.script.put(message)
    with setup.channel._lock:  # nothing is taken in before it is asked
        setup.channel.define([VIEW], Position(2))
        future = ask(setup)
    assert "after it had reported changes up to 5" in wait_for_problem(setup)
    setup.wrapper.script.put(result(1, 5, ROWS))
    setup.channel.define([VIEW], Position(2))  # the next stream may be up already
    assert future.result(timeout=30).position == Position(5)


def test_an_answer_that_is_refused_moves_nothing(setup: Setup) -> None:
    """Its position is no more to be believed than its rows: what came before it is asked for again."""
    setup.wrapper.script.put(result(1, 9, pa.table({"x": ["text"]})))
    with setup.channel._lock:
        setup.channel.define([VIEW], Position(2))
        ask(setup)
    assert wait_for_problem(setup) == "an answer for 'v.s' does not have its columns"
    assert setup.channel.delivered(VIEW.name, 0) == Position(2)


def test_a_stream_that_breaks_gives_no_credit_for_what_still_waits(setup: Setup) -> None:
    """Credit that was used on the stream before comes back when there is room, not with the next stream."""
    for message in (update(3), update(4), progress(4)):
        setup.wrapper.script.put(message)
    setup.wrapper.parting = progress(4)
    setup.channel.define([VIEW], Position(2))
    granted: list[int] = []
    while len(granted) < 2:
        request = setup.wrapper.requests.get(timeout=30)
        if request.WhichOneof("message") == "credit":
            granted.append(request.credit.rows)
    assert granted == [CREDIT, CREDIT - 4]
    assert setup.channel.owed == 4


def test_a_change_that_an_answer_should_have_come_after_is_refused(setup: Setup) -> None:
    """A local view may be ahead of what was reported of all; what its answer shows cannot come later."""
    setup.channel.define([VIEW], Position(2))
    setup.wrapper.script.put(progress(5))
    setup.wrapper.script.put(result(1, 6, ROWS))
    assert ask(setup).result(timeout=30).position == Position(6)
    setup.wrapper.script.put(update(6))
    ask(setup)
    assert wait_for_problem(setup) == "source 's' repeated a transaction of local view 'v.s'"
    assert setup.updates == []


def test_an_answer_that_begins_anew_counts_once(setup: Setup) -> None:
    """The source went away in the middle of it, and came back as it was."""
    setup.channel.define([VIEW], Position(2))
    chunks = [result(1, 5, ROWS) for _ in range(4)]
    for chunk, message in zip((0, 1, 0, 1), chunks, strict=True):
        message.result.chunk, message.result.last = chunk, message is chunks[-1]
    for message in (progress(5), *chunks):
        setup.wrapper.script.put(message)
    assert ask(setup).result(timeout=30).rows["x"].to_pylist() == [7, 7]


def test_an_answer_with_a_chunk_missing_is_refused(setup: Setup) -> None:
    setup.channel.define([VIEW], Position(2))
    missing = result(1, 5, ROWS)
    missing.result.chunk = 1
    for message in (progress(5), missing):
        setup.wrapper.script.put(message)
    ask(setup)
    assert wait_for_problem(setup) == "source 's' sent chunk 1 of an answer after 0 chunks"


def test_a_sign_of_life_moves_nothing(setup: Setup) -> None:
    setup.channel.define([VIEW], Position(2))
    memory = types_pb2.WrapperMemory(memory_bytes=7)
    for message in (pb.ExchangeResponse(progress=pb.Progress(memory=memory)), result(1, 2, ROWS)):
        setup.wrapper.script.put(message)
    assert ask(setup).result(timeout=30).position == Position(2)
    assert setup.channel.position == ORIGIN
    assert setup.channel.memory == memory
    assert not setup.channel.problem


def test_rows_that_do_not_fit_the_local_view_are_refused(setup: Setup) -> None:
    setup.channel.define([VIEW], Position(2))
    for message in (progress(5), result(1, 5, pa.table({"x": ["text"]}))):
        setup.wrapper.script.put(message)
    ask(setup)
    assert wait_for_problem(setup) == "an answer for 'v.s' does not have its columns"


@pytest.mark.parametrize("message", ["no", "source 's': no"])
def test_a_failed_query_tells_why(setup: Setup, message: str) -> None:
    """And once of which source, whoever said so."""
    setup.channel.define([VIEW], Position(2))
    setup.wrapper.script.put(
        pb.ExchangeResponse(error=pb.ExchangeError(reason="REFUSED", message=message, query_id=1))
    )
    with pytest.raises(LockstepError, match=r"^source 's': no$"):
        ask(setup).result(timeout=30)


def test_only_what_comes_after_a_definition_is_about_it(setup: Setup) -> None:
    """Progress that left the wrapper before it took up a local view does not speak for its changes."""
    setup.channel.define([VIEW], Position(2))
    setup.channel.wait_delivered(VIEW.name, Position(2), 30)
    setup.wrapper.confirms = False
    for message in (progress(9), update(3), DEFINED, update(3, 5), progress(9)):
        setup.wrapper.script.put(message)
    setup.channel.define([VIEW], Position(2))
    setup.channel.wait_delivered(VIEW.name, Position(9), 30)
    assert [u.positions for u in setup.updates if u.deltas] == [(Position(3), Position(5))]


def test_who_waits_for_a_local_view_that_is_dropped_is_told(setup: Setup) -> None:
    setup.channel.define([VIEW], Position(2))
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(setup.channel.wait_delivered, VIEW.name, Position(9), 30)
        setup.channel.drop(VIEW.name)
        with pytest.raises(NotFoundError, match="its view was dropped"):
            waits.result(timeout=30)


def test_local_views_are_defined_together(setup: Setup) -> None:
    other = replace(VIEW, name="v.s.2")
    setup.channel.define([VIEW, other], Position(2))
    found: list[tuple[str, bool]] = []
    while len(found) < 2:
        request = setup.wrapper.requests.get(timeout=30)
        if request.WhichOneof("message") == "define":
            found.append((request.define.local_view.name, request.define.more))
    assert found == [("v.s", True), ("v.s.2", False)]


@pytest.mark.parametrize("subscription", [7, 8])
def test_local_views_of_one_subscription_are_followed_from_one_position(
    setup: Setup, subscription: int
) -> None:
    """Else a source that tells all since a position as one would tell the same to each of them by itself."""
    other = replace(VIEW, name="v.s.2")
    setup.channel.define([VIEW], Position(2), 7)
    setup.channel.define([other], Position(2), subscription)
    for _ in range(2):
        while setup.wrapper.requests.get(timeout=30).WhichOneof("message") != "define":
            pass
    setup.wrapper.script.put(update(5))
    ask(setup)
    setup.channel.wait_delivered(VIEW.name, Position(5), 30)
    assert setup.channel.delivered(VIEW.name, 7) == Position(5)
    assert setup.channel.delivered(other.name, subscription) == Position(5 if subscription == 7 else 2)


def test_a_stream_that_fails_each_time_is_opened_ever_more_rarely_and_tells_why(setup: Setup) -> None:
    """That it attached is no success: a wrapper may fail at its source each time."""
    failure = pb.ExchangeError(reason="CONFIGURATION", message="no right to read")
    setup.wrapper.parting = pb.ExchangeResponse(error=failure)
    setup.channel.define([VIEW], Position(2))
    with setup.channel._lock:
        assert setup.channel._lock.wait_for(
            lambda: setup.channel._backoff._failures >= 3 and setup.channel.state == "connecting", 30
        )
        assert setup.channel.problem == "no right to read"
    setup.wrapper.parting = None
    setup.wrapper.script.put(progress(3))
    setup.channel.define([VIEW], Position(2))  # the next stream may be up already
    setup.channel.wait_delivered(VIEW.name, Position(3), 30)
    assert setup.channel._backoff._failures == 0


def test_acknowledgements_do_not_pile_up_for_a_wrapper_that_takes_nothing(setup: Setup) -> None:
    """Its source does not answer, for hours maybe, and other views go on; then it is acknowledged as ever."""
    setup.wrapper.takes.clear()
    for _ in range(100_000):
        setup.channel.acknowledge(Position(5))
    assert setup.channel._outgoing.qsize() <= MOST_UNSENT
    setup.wrapper.takes.set()
    for _ in range(100_000):
        setup.channel.acknowledge(Position(6))
        if setup.wrapper.requests.get(timeout=30).acknowledge.position.ordinal == 6:
            return
    raise AssertionError("it was not acknowledged again")


def test_what_is_said_of_an_earlier_definition_is_not_about_a_later_one(setup: Setup) -> None:
    """It was on its way when the local view was dropped and defined anew, perhaps as another."""
    setup.wrapper.confirms = False
    first, second = (
        pb.ExchangeResponse(defined=pb.LocalViewDefined(local_view=VIEW.name, subscription=number))
        for number in (1, 2)
    )
    for told in (first, update(3), progress(3), second, update(3), update(4)):
        setup.wrapper.script.put(told)
    with setup.channel._lock:  # nothing is taken in before it is defined anew
        setup.channel.define([VIEW], Position(2), 1)
        setup.channel.drop(VIEW.name)
        setup.channel.define([VIEW], Position(2), 2)
    setup.channel.wait_delivered(VIEW.name, Position(4), 30)
    assert [u.positions for u in setup.updates if u.deltas] == [(Position(3),), (Position(4),)]
    assert setup.channel.problem == ""
