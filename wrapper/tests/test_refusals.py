"""What a wrapper refuses: everything that its source does not show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.errors import LockstepError
from algebra.expressions import Call, ColumnRef, Literal, Operator
from algebra.local_view import EquiJoin, Keys, LocalView, Occurrence, OutputColumn
from algebra.position import ORIGIN, Position
from protos.convert import position_from_proto, position_to_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.status import error_from_rpc
from wrapper.server import WrapperServer
from wrapper.tests.exchange import Mediator
from wrapper.tests.sqlite_writer import SqliteWriter

INT = pa.int64()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with SqliteWriter(tmp_path / "s.db") as writer:
        writer.commit(
            "CREATE TABLE r (x INTEGER, y TEXT)",
            "CREATE TABLE secret (x INTEGER, y TEXT)",
            "INSERT INTO r VALUES (1, 'a'), (2, 'b'), (3, NULL)",
        )
        config = SourceConfig("s", "sqlite", f"sqlite:///{tmp_path / 's.db'}", relations=("r",))
        server = WrapperServer(create(config), "127.0.0.1:0")
        yield server.start()
        server.stop(0)


def view(**changes: object) -> LocalView:
    made = LocalView(
        "v.s", "s", (Occurrence("r", "r"),), (), (), (OutputColumn("x", ColumnRef("r", "x"), INT),)
    )
    return replace(made, **changes)  # type: ignore[arg-type]


X = ColumnRef("r", "x")
BAD = {
    "a relation that is not shown": (
        view(occurrences=(Occurrence("r", "secret"),)),
        "source 's' does not show relation 'secret'",
    ),
    "a column that does not exist": (
        view(columns=(OutputColumn("x", ColumnRef("r", "z"), INT),)),
        "relation s.r no longer has column 'z'",
    ),
    "another type": (
        view(columns=(OutputColumn("x", ColumnRef("r", "x"), pa.string()),)),
        "column s.r.x is now int64, the view was made for string",
    ),
    "an occurrence that is not there": (
        view(joins=(EquiJoin(ColumnRef("r", "x"), ColumnRef("q", "x")),)),
        "local view 'v.s' has no occurrence 'q'",
    ),
    "a literal of another type": (
        view(predicates=(Call(Operator.EQ, (X, Literal("a", pa.string()))),)),
        "a predicate compares integer with text, which do not compare",
    ),
    "a literal of another type in a list": (
        view(predicates=(Call(Operator.IN, (X, Literal(1, INT), Literal("1970-01-02", pa.date64()))),)),
        "a predicate compares date64[ms] with integer, which do not compare",
    ),
    "columns of two types": (
        view(predicates=(Call(Operator.LT, (X, ColumnRef("r", "y"))),)),
        "a predicate compares integer with text, which do not compare",
    ),
    "a join of two types": (
        view(joins=(EquiJoin(X, ColumnRef("r", "y")),)),
        "local view 'v.s' joins integer with text, which do not compare",
    ),
    "another type for a column that is shown twice": (
        view(columns=(OutputColumn("z", X, pa.string()), OutputColumn("x", X, INT))),
        "column s.r.x is now int64, the view was made for string",
    ),
    "NOT of a text": (
        view(predicates=(Call(Operator.NOT, (ColumnRef("r", "y"),)),)),
        "NOT of what is no condition in a predicate",
    ),
    "a number as a condition": (view(predicates=(X,)), "a predicate of local view 'v.s' is no condition"),
    "a number that is none": (
        view(predicates=(Call(Operator.EQ, (X, Literal(math.nan, pa.float64()))),)),
        "a literal of type double has no usable value",
    ),
    "a number without end": (
        view(predicates=(Call(Operator.EQ, (X, Literal(-math.inf, pa.float32()))),)),
        "a literal of type float has no usable value",
    ),
    "a decimal of too many digits": (
        view(predicates=(Call(Operator.EQ, (X, Literal("1", pa.decimal256(39, 0)))),)),
        "a literal of type decimal256(39, 0) in a predicate",
    ),
    "a decimal of a negative scale": (
        view(predicates=(Call(Operator.EQ, (X, Literal(None, pa.decimal128(38, -5)))),)),
        "a literal of type decimal128(38, -5) in a predicate",
    ),
    "another source's view": (view(source="t"), "local view 'v.s' is for source 't', this is 's'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_local_view_outside_of_what_is_shown_is_refused(address: str, case: str) -> None:
    bad, problem = BAD[case]
    with Mediator(address, "s") as mediator:
        mediator.expect("attached")
        with pytest.raises(grpc.RpcError) as refused:
            mediator.load(bad)
        assert str(error_from_rpc(refused.value)) == problem
        mediator.define(bad, ORIGIN)
        error = mediator.expect("error")
        assert (error.message, error.local_view) == (problem, "v.s")


def test_a_query_for_what_was_not_defined_is_refused(address: str) -> None:
    with Mediator(address, "s") as mediator:
        mediator.expect("attached")
        good = view()
        _, position = mediator.load(good)
        mediator.define(good, position)
        mediator.expect("defined")
        asked = mediator.ask(replace(good, name="other"), None)
        error = mediator.expect("error")
        assert (error.query_id, error.reason) == (asked, "REFUSED")
        asked = mediator.ask(good, Keys(("y",), pa.table({"y": ["a"]})))
        error = mediator.expect("error")
        assert error.message == "local view 'v.s' has no column 'y'", "the column was not asked to be shown"
        asked = mediator.ask(good, None)
        answer, _ = mediator.result(good, asked)
        assert len(answer) == 3, "the stream goes on"


def test_what_has_not_happened_cannot_be_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter would wait for that position, and trim nothing for anybody until it is reached."""
    with SqliteWriter(tmp_path / "s.db") as writer:
        writer.commit("CREATE TABLE r (x INTEGER, y TEXT)")
        adapter = create(SourceConfig("s", "sqlite", f"sqlite:///{tmp_path / 's.db'}"))
        told: list[Position] = []
        monkeypatch.setattr(adapter, "acknowledge", told.append)
        server = WrapperServer(adapter, "127.0.0.1:0")
        with Mediator(server.start(), "s") as mediator:
            mediator.expect("attached")
            good = view()
            _, position = mediator.load(good)
            mediator.define(good, position)
            mediator.expect("defined")
            forged = replace(position, ordinal=position.ordinal + 10**12)
            mediator.send(acknowledge=pb.Acknowledge(position=position_to_proto(forged)))
            writer.commit("INSERT INTO r VALUES (1, 'a')")
            mediator.credit()
            update = mediator.expect("update")
            real = position_from_proto(update.transactions[-1].position)
            mediator.send(acknowledge=pb.Acknowledge(position=position_to_proto(real)))
            mediator.result(good, mediator.ask(good, None))
        server.stop(0)
    assert told == [real]


@pytest.mark.parametrize(("source", "version"), [("t", 1), ("s", 99)])
def test_a_mediator_for_another_source_or_protocol_is_refused(
    address: str, source: str, version: int
) -> None:
    with Mediator(address, source, version) as mediator, pytest.raises(grpc.RpcError) as refused:
        mediator.receive()
    assert isinstance(error_from_rpc(refused.value), LockstepError)


def test_predicates_on_columns_that_are_not_shown_are_applied_here(address: str) -> None:
    predicate = Call(Operator.EQ, (ColumnRef("r", "y"), Literal("b", pa.string())))
    with Mediator(address, "s") as mediator:
        mediator.expect("attached")
        extent, _ = mediator.load(view(predicates=(predicate,)))
        assert extent.to_dict() == {(2,): 1}
        negated = Call(Operator.NOT, (predicate,))
        extent, _ = mediator.load(view(predicates=(negated,)))
        assert extent.to_dict() == {(1,): 1}, "NULL is neither equal nor unequal"
