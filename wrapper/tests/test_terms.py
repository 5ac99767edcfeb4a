"""Sums of terms, evaluated by the source in one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.arrow_ipc import from_ipc, to_ipc
from algebra.delta import Delta
from algebra.expressions import Call, ColumnRef, Literal, Operator
from algebra.local_view import EquiJoin, LocalView, Occurrence, OutputColumn
from protos.convert import local_view_to_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.server import WrapperServer
from wrapper.tests.exchange import Mediator
from wrapper.tests.sqlite_writer import SqliteWriter

INT = pa.int64()
SINGLES = [
    LocalView(
        f"v.s.{name}", "s", (Occurrence(name, name),), (), (), (OutputColumn("x", ColumnRef(name, "x"), INT),)
    )
    for name in ("r1", "r2")
]
WHOLE = LocalView(
    "v.s/whole",
    "s",
    (Occurrence("r1", "r1"), Occurrence("r2", "r2")),
    (EquiJoin(ColumnRef("r1", "x"), ColumnRef("r2", "x")),),
    (Call(Operator.GT, (ColumnRef("r2", "y"), Literal(0, INT))),),
    (OutputColumn("n0.w", ColumnRef("r1", "w"), INT), OutputColumn("n1.y", ColumnRef("r2", "y"), INT)),
)


def rows(columns: Sequence[str], *values: tuple[Sequence[int], int]) -> pa.Table:
    return Delta.of(dict.fromkeys(columns, INT), values).rows


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SqliteWriter]:
    with SqliteWriter(tmp_path / "s.db") as made:
        made.commit(
            "CREATE TABLE r1 (w INTEGER, x INTEGER)",
            "CREATE TABLE r2 (x INTEGER, y INTEGER)",
            "CREATE TABLE secret (x INTEGER)",
            "CREATE TABLE other (x INTEGER)",
            "INSERT INTO r1 VALUES (1, 2), (4, 2)",
            "INSERT INTO r2 VALUES (2, 3), (2, 3), (2, -3)",
        )
        yield made


@pytest.fixture
def mediator(tmp_path: Path, writer: SqliteWriter) -> Iterator[Mediator]:
    config = SourceConfig("s", "sqlite", f"sqlite:///{tmp_path / 's.db'}", relations=("r1", "r2", "other"))
    server = WrapperServer(create(config), "127.0.0.1:0")
    with Mediator(server.start(), "s") as made:
        made.expect("attached")
        _, position = made.load(SINGLES[0])
        for single in SINGLES:
            made.define(single, position)
            made.expect("defined")
        yield made
    server.stop(0)


def ask(
    mediator: Mediator, terms: Sequence[tuple[int, Mapping[str, pa.Table]]], view: LocalView = WHOLE
) -> None:
    mediator.send(
        query=pb.MaintenanceQuery(
            query_id=7,
            local_view=SINGLES[0].name,
            definition=local_view_to_proto(view),
            terms=[
                pb.Term(
                    sign=sign,
                    substitutions=[
                        pb.Substitution(occurrence=name, arrow=to_ipc(given)) for name, given in term.items()
                    ],
                )
                for sign, term in terms
            ],
        )
    )


def answer(mediator: Mediator) -> dict[tuple[int, ...], int]:
    result = mediator.expect("result")
    assert (result.query_id, result.last) == (7, True)
    return Delta(from_ipc(result.arrow)).to_dict() if result.arrow else {}


def test_the_compensated_query_of_eca(mediator: Mediator) -> None:
    """Reference: slides, ECA example, Q2 = π_W([4,2] ⋈ r2) − π_W([4,2] ⋈ [2,3])."""
    u1, u2 = rows(("x", "y"), ((2, 3), 1)), rows(("w", "x"), ((4, 2), 1))
    ask(mediator, [(1, {"r1": u2})])
    assert answer(mediator) == {(4, 3): 2}, "duplicates count; the predicate drops y = -3"
    ask(mediator, [(1, {"r1": u2}), (-1, {"r1": u2, "r2": u1})])
    assert answer(mediator) == {(4, 3): 1}
    ask(mediator, [(-1, {"r2": rows(("x", "y"), ((2, 9), -2))})])
    assert answer(mediator) == {(1, 9): 2, (4, 9): 2}, "signs multiply"
    ask(mediator, [(1, {"r1": rows(("w", "x"), ((8, 8), 1))})])
    assert answer(mediator) == {}


def counting(count: int) -> pa.Table:
    return rows(("w", "x"), ((4, 2), count))


GOOD = rows(("w", "x"), ((4, 2), 1))


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ([(2, {"r1": GOOD})], "counts 2"),
        ([(1, {})], "substitutes nothing"),
        ([(1, {"r9": GOOD})], "no occurrence 'r9'"),
        ([(1, {"r1": GOOD.rename_columns(["w", "q", "_count"])})], "do not fit column 'q'"),
        ([(1, {"r1": GOOD.drop_columns(["_count"])})], "have no counts"),
        ([(1, {"r1": GOOD.set_column(0, "w", pa.array(["4"]))})], "do not fit column 'w'"),
        ([(1, {"r1": GOOD.drop_columns(["x"])})], "have no column 'x'"),
        ([(1, {"r1": GOOD.append_column("x", GOOD["x"])})], "have a column twice"),
        ([(1, {"r1": GOOD.append_column("_count", GOOD["_count"])})], "have a column twice"),
        ([(1, {"r1": GOOD.set_column(2, "_count", pa.array([None], INT))})], "have no counts"),
        ([(1, {"r1": counting(2**62), "r2": rows(("x", "y"), ((2, 3), 2))})], "count more than 64 bits hold"),
        ([(-1, {"r1": counting(-(2**63))})], "count more than 64 bits hold"),
    ],
)
def test_terms_that_do_not_fit_are_refused(
    mediator: Mediator, terms: Sequence[tuple[int, Mapping[str, pa.Table]]], problem: str
) -> None:
    ask(mediator, terms)
    error = mediator.expect("error")
    assert (error.query_id, error.reason) == (7, "REFUSED")
    assert problem in error.message
    ask(mediator, [(1, {"r1": GOOD})])
    assert answer(mediator) == {(4, 3): 2}, "the stream goes on"


def test_a_relation_that_is_not_shown_is_refused(mediator: Mediator) -> None:
    hidden = LocalView(
        "v.s/whole",
        "s",
        (Occurrence("r1", "secret"),),
        (),
        (),
        (OutputColumn("x", ColumnRef("r1", "x"), INT),),
    )
    ask(mediator, [(1, {"r1": rows(("x",), ((1,), 1))})], hidden)
    assert "does not show relation 'secret'" in mediator.expect("error").message


def test_a_relation_that_is_not_reported_is_refused(mediator: Mediator) -> None:
    """What it was at the position of the answer, nobody could tell."""
    unknown = LocalView(
        "v.s/whole",
        "s",
        (Occurrence("r1", "other"),),
        (),
        (),
        (OutputColumn("x", ColumnRef("r1", "x"), INT),),
    )
    ask(mediator, [(1, {"r1": rows(("x",), ((1,), 1))})], unknown)
    assert "read relation 'other', which is not reported" in mediator.expect("error").message


def test_terms_are_about_what_was_reported(mediator: Mediator, writer: SqliteWriter) -> None:
    u2 = rows(("w", "x"), ((4, 2), 1))
    writer.commit("INSERT INTO r2 VALUES (2, 5)", "DELETE FROM r2 WHERE y = 3")
    ask(mediator, [(1, {"r1": u2})])
    assert answer(mediator) == {(4, 3): 2}, "there was no credit to report what happened since"
    mediator.credit()
    mediator.expect("update")
    ask(mediator, [(1, {"r1": u2})])
    assert answer(mediator) == {(4, 5): 1}
