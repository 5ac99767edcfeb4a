"""A wrapper that lies about the protocol: the stream ends, the problem is named, and no view hears of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from algebra.arrow_ipc import to_ipc
from algebra.errors import (
    LimitExceededError,
    LockstepError,
    ProtocolVersionError,
    SourceUnavailableError,
    StorageError,
)
from algebra.position import Position
from mediator.channel import SourceChannel
from mediator.loader import loaded_extents
from mediator.tests.test_channel import (  # noqa: F401 (the fixture)
    ASSEMBLED,
    CREDIT,
    INT,
    VIEW,
    Setup,
    Status,
    ask,
    progress,
    result,
    setup,
    update,
    wait_for_problem,
)
from protos.lockstep.v1 import types_pb2
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.version import PROTOCOL_VERSION


def delta(
    name: str = VIEW.name,
    touched: tuple[int, ...] = (0,),
    numbers: tuple[int | None, ...] = (0,),
    counts: tuple[int | None, ...] = (1,),
    **columns: pa.Array,
) -> pb.LocalViewDelta:
    given = {
        "x": pa.array([1] * len(numbers), INT),
        "_tx": pa.array(numbers, pa.int32()),
        "_count": pa.array(counts, INT),
        **columns,
    }
    rows = pa.table({column: values for column, values in given.items() if values is not None})
    return pb.LocalViewDelta(local_view=name, arrow=to_ipc(rows), touched=touched)


def message(*deltas: pb.LocalViewDelta, ordinals: tuple[int, ...] = (3,)) -> pb.ExchangeResponse:
    made = update(*ordinals)
    del made.update.deltas[:]
    made.update.deltas.extend(deltas)
    return made


def truncated() -> pb.ExchangeResponse:
    made = update(3)
    made.update.deltas[0].arrow = made.update.deltas[0].arrow[:-40]
    return made


ATTACHED = pb.ExchangeResponse(attached=pb.Attached(source="s", protocol_version=PROTOCOL_VERSION))
LIES = {
    "changes of a view it was not given": (
        message(delta(name="other.s")),
        "source 's' sent changes of local view 'other.s', which it was not given",
    ),
    "two changes of one view": (
        message(delta(), delta()),
        "source 's' sent changes of local view 'v.s' twice",
    ),
    "rows without a column": (
        message(delta(x=None)),
        "an update of local view 'v.s' does not have its columns",
    ),
    "rows with a column more": (
        message(delta(z=pa.array([1], INT))),
        "an update of local view 'v.s' does not have its columns",
    ),
    "rows of another type": (
        message(delta(x=pa.array(["1"]))),
        "an update of local view 'v.s' does not have its columns",
    ),
    "counts of another type": (
        message(delta(_count=pa.array([1.5]))),
        "an update of local view 'v.s' does not have its columns",
    ),
    "rows without a count": (
        message(delta(counts=(None,))),
        "an update of local view 'v.s' has rows without a transaction or a count",
    ),
    "rows of a transaction that does not touch the view": (
        message(delta(numbers=(1,)), ordinals=(3, 4)),
        "an update of local view 'v.s' has rows of transactions that do not touch it",
    ),
    "rows out of order": (
        message(delta(touched=(0, 1), numbers=(1, 0), counts=(1, 1)), ordinals=(3, 4)),
        "an update of local view 'v.s' has its transactions out of order",
    ),
    "transactions that are not there": (
        message(delta(touched=(0, 5))),
        "changes of local view 'v.s' name transactions that the update does not have",
    ),
    "transactions before the first": (
        message(delta(touched=(-1,))),
        "changes of local view 'v.s' name transactions that the update does not have",
    ),
    "an answer that nobody asked for": (
        result(99, 0, pa.table({"x": pa.array([7], INT)})),
        "source 's' answered query 99, which was not asked",
    ),
    "an attachment within the stream": (ATTACHED, "source 's' attached twice on one stream"),
    "nothing": (pb.ExchangeResponse(), "source 's' sent a message of no known kind"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_ends_the_stream_and_changes_no_view(setup: Setup, lie: str) -> None:  # noqa: F811
    told, problem = LIES[lie]
    setup.wrapper.script.put(told)
    setup.channel.define([VIEW], Position(2))
    assert wait_for_problem(setup) == problem
    assert setup.updates == []
    assert setup.channel.delivered(VIEW.name, 0) == Position(2), (
        "it is asked for again from where it was right"
    )


def test_damaged_rows_end_the_stream(setup: Setup) -> None:  # noqa: F811
    setup.wrapper.script.put(truncated())
    setup.channel.define([VIEW], Position(2))
    assert wait_for_problem(setup).startswith("not an Arrow IPC stream: ")
    assert setup.updates == []


def test_an_answer_is_about_one_state_of_the_source(setup: Setup) -> None:  # noqa: F811
    """Each chunk is at the position that was reported last, and yet no state has all these rows."""
    setup.channel.define([VIEW], Position(2))
    first = result(1, 5, pa.table({"x": pa.array([7], INT)}))
    first.result.last = False
    second = result(1, 6, pa.table({"x": pa.array([8], INT)}))
    second.result.chunk = 1
    for told in (progress(5), first, progress(6), second):
        setup.wrapper.script.put(told)
    future = ask(setup)
    assert wait_for_problem(setup) == "source 's' answered one query at 5 and at 6"
    assert not future.done()


def part(rows: int) -> pb.ExchangeResponse:
    """A part of an update after which more are to come."""
    made = message(delta(numbers=(0,) * rows, counts=(1,) * rows))
    made.update.more = True
    return made


@pytest.mark.parametrize("rows", [100, 0])
def test_an_update_that_does_not_end_is_refused(setup: Setup, rows: int) -> None:  # noqa: F811
    for _ in range(2 * (CREDIT + ASSEMBLED) // (rows or 1)):
        setup.wrapper.script.put(part(rows))
    setup.channel.define([VIEW], Position(2))
    assert wait_for_problem(setup) == (
        "source 's' sent more than 500 rows of updates beyond its credit; "
        "if its transactions are that large, raise assembled_rows"
    )
    assert setup.updates == []
    with setup.channel._lock:
        assert setup.channel._views._held <= CREDIT + ASSEMBLED + rows + 2


def test_updates_without_credit_are_refused(setup: Setup) -> None:  # noqa: F811
    """Each is whole, and in order; each takes two, for its row and as a transaction."""
    most = (CREDIT + ASSEMBLED) // 2
    for ordinal in range(most):
        setup.wrapper.script.put(update(3 + ordinal))
    setup.channel.define([VIEW], Position(2))
    assert "rows of updates beyond its credit" in wait_for_problem(setup)
    assert CREDIT < 2 * len(setup.updates) < 2 * most


@pytest.mark.parametrize("cost", [0, -(10**6)])
def test_an_update_that_does_not_tell_its_cost_is_refused(setup: Setup, cost: int) -> None:  # noqa: F811
    told = message(delta(numbers=(0,) * 9, counts=(1,) * 9))
    told.update.cost = cost
    setup.wrapper.script.put(told)
    setup.channel.define([VIEW], Position(2))
    assert wait_for_problem(setup) == f"source 's' sent an update that takes 10 rows, and told {cost}"
    assert setup.updates == []


@pytest.mark.parametrize("rows", [100, 0])
def test_an_answer_that_does_not_end_is_refused(setup: Setup, rows: int) -> None:  # noqa: F811
    setup.wrapper.script.put(progress(5))
    for chunk in range(ASSEMBLED):
        told = result(1, 5, pa.table({"x": pa.array([7] * rows, INT)}))
        told.result.chunk, told.result.last = chunk, False
        setup.wrapper.script.put(told)
    told = result(1, 5, pa.table({"x": pa.array([7], INT)}))
    told.result.chunk = ASSEMBLED
    setup.wrapper.script.put(told)
    with setup.channel._lock:  # nothing is taken in before it is asked
        setup.channel.define([VIEW], Position(2))
        future = ask(setup)
    assert wait_for_problem(setup) == (
        "source 's' sent more than 500 rows of answers that have not ended; "
        "if they are that large, raise assembled_rows"
    )
    assert not future.done()


def test_answers_that_do_not_end_are_bounded_together(setup: Setup) -> None:  # noqa: F811
    setup.wrapper.script.put(progress(5))
    for query in range(1, 7):
        told = result(query, 5, pa.table({"x": pa.array([7] * 100, INT)}))
        told.result.last = False
        setup.wrapper.script.put(told)
    with setup.channel._lock:  # nothing is taken in before all are asked
        setup.channel.define([VIEW], Position(2))
        futures = [ask(setup) for _ in range(6)]
    assert "rows of answers that have not ended" in wait_for_problem(setup)
    assert not any(future.done() for future in futures)


def test_what_a_wrapper_says_of_an_error_is_one_line_of_bounded_length(setup: Setup) -> None:  # noqa: F811
    said = pb.ExchangeError(reason="SOURCE_UNAVAILABLE", message="locked\n" + "x" * 1_000_000)
    setup.wrapper.script.put(pb.ExchangeResponse(error=said))
    setup.channel.define([VIEW], Position(2))
    problem = wait_for_problem(setup)
    assert problem.startswith("locked xxx")
    assert len(problem) <= 1000


DETAILS = "grpc-status-details-bin"
CODE = grpc.StatusCode.ABORTED
ODD_ENDS = {
    "another code than the call has": status_pb2.Status(code=5, message="gone").SerializeToString(),
    "a code that there is not": status_pb2.Status(code=99, message="gone").SerializeToString(),
    "another text than the call has": status_pb2.Status(code=10, message="other").SerializeToString(),
    "no message": b"\xff\xff",
    "details that are no message": status_pb2.Status(
        code=10,
        message="gone",
        details=[any_pb2.Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff\xff")],
    ).SerializeToString(),
}


@pytest.mark.parametrize("odd", ODD_ENDS)
def test_a_stream_that_ends_in_an_odd_way_is_begun_again(setup: Setup, odd: str) -> None:  # noqa: F811
    assert end_oddly(setup, Status(CODE, "gone", ((DETAILS, ODD_ENDS[odd]),))) == "gone"


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_stream_that_ends_without_a_word_is_begun_again(setup: Setup, text: str) -> None:  # noqa: F811
    assert end_oddly(setup, Status(CODE, text)) == "StatusCode.ABORTED"


def end_oddly(setup: Setup, status: Status) -> str:  # noqa: F811
    """What the channel complains of when the stream ends that way; returns when the next one delivers."""
    for told in (update(3), progress(3)):
        setup.wrapper.script.put(told)
    setup.wrapper.abortion = status
    setup.channel.define([VIEW], Position(2))
    problem = wait_for_problem(setup)
    setup.channel.wait_delivered(VIEW.name, Position(3), 10)
    return problem


def extent(rows: int, last: bool = False) -> pb.LoadLocalViewResponse:
    table = pa.table({"x": pa.array([7] * rows, INT)})
    return pb.LoadLocalViewResponse(
        position=types_pb2.Position(ordinal=5), local_view=VIEW.name, arrow=to_ipc(table), last=last
    )


@pytest.mark.parametrize("rows", [20_000, 0])
def test_an_extent_that_does_not_end_is_refused(setup: Setup, rows: int) -> None:  # noqa: F811
    setup.wrapper.extent = itertools.repeat(extent(rows))
    with (
        pytest.raises(LimitExceededError) as refused,
        loaded_extents([VIEW], {"s": setup.channel}, lambda *_: None, most_rows=100_000),
    ):
        pass
    assert str(refused.value) == (
        "source 's' sent more than 100,000 rows for one load; if it has that many, raise extent_rows"
    )


def test_an_extent_within_its_bound_is_taken(setup: Setup) -> None:  # noqa: F811
    setup.wrapper.extent = iter([extent(20_000), extent(9, last=True)])
    with loaded_extents([VIEW], {"s": setup.channel}, lambda *_: None, most_rows=40_000) as loaded:
        assert loaded.vector == {"s": Position(5)}


def test_a_late_answer_to_an_abandoned_query_is_no_lie(setup: Setup) -> None:  # noqa: F811
    setup.channel.define([VIEW], Position(2))
    first = ask(setup)
    setup.channel.abandon([first])
    rows = pa.table({"x": pa.array([7], INT)})
    for told in (progress(5), result(1, 5, rows), result(2, 5, rows)):
        setup.wrapper.script.put(told)
    assert ask(setup).result(timeout=30).rows["x"].to_pylist() == [7]
    assert not setup.channel.problem


def test_a_wrapper_of_another_version_is_refused_with_both_named(
    setup: Setup,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = pb.DescribeSourceResponse(source="s", protocol_version=7)
    monkeypatch.setattr(setup.channel._wrapper._link, "stub", _Describes(described))
    with pytest.raises(ProtocolVersionError) as refused:
        setup.channel.describe()
    assert str(refused.value) == (
        "the wrapper of source 's' speaks protocol version 7, "
        f"this mediator {PROTOCOL_VERSION}: upgrade the older one"
    )


class _Describes:
    """A stub that answers one way."""

    def __init__(self, answer: pb.DescribeSourceResponse) -> None:
        self._answer = answer

    def DescribeSource(self, request: object, **_: object) -> pb.DescribeSourceResponse:
        return self._answer


@pytest.mark.parametrize(
    "ask", [SourceChannel.describe, lambda channel: list(channel.load([VIEW]))], ids=["describe", "load"]
)
def test_a_disk_that_is_full_there_is_not_ours(setup: Setup, ask: Callable[[SourceChannel], Any]) -> None:  # noqa: F811
    """A `StorageError` is for the mediator's own: versions could not be stored, and health would say so."""
    setup.wrapper.abortion = failed_with(StorageError("the disk is full"))
    with pytest.raises(SourceUnavailableError, match=r"^the wrapper of source 's' .*: the disk is full$"):
        ask(setup.channel)


def failed_with(error: LockstepError) -> Status:
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=error.reason))
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    status = status_pb2.Status(code=code.value[0], message=str(error), details=[detail])
    return Status(code, str(error), ((DETAILS, status.SerializeToString()),))


def test_a_catalog_that_cannot_be_is_refused(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    schema = to_ipc(pa.schema([("x", INT)]).empty_table())
    relation = types_pb2.Relation(name="r", arrow_schema=schema, key=["y"])
    monkeypatch.setattr(
        setup.channel._wrapper._link,
        "stub",
        _Describes(
            pb.DescribeSourceResponse(source="s", relations=[relation], protocol_version=PROTOCOL_VERSION)
        ),
    )
    with pytest.raises(Exception, match="shows relation 'r' in a way that cannot be"):
        setup.channel.describe()
