"""The wrapper paper's Examples 1, 2, 5 and 6, over a real SQLite source with a concurrent writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.delta import Delta
from algebra.local_view import Keys, LocalView
from wrapper.server import WrapperServer
from wrapper.tests.exchange import Mediator, deltas_of
from wrapper.tests.sqlite_writer import SqliteWriter

INT = pa.int64()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SqliteWriter]:
    """IS_1 of the paper's Table 2: R1(A, C) and R2(D, E)."""
    with SqliteWriter(tmp_path / "is1.db") as made:
        made.commit(
            "CREATE TABLE R1 (A INTEGER, C INTEGER)",
            "CREATE TABLE R2 (D INTEGER, E INTEGER)",
            "INSERT INTO R1 VALUES (1, 10), (2, 20)",
            "INSERT INTO R2 VALUES (10, 100), (20, 200)",
        )
        yield made


@pytest.fixture
def mediator(writer: SqliteWriter, tmp_path: Path) -> Iterator[Mediator]:
    config = SourceConfig("is1", "sqlite", f"sqlite:///{tmp_path / 'is1.db'}")
    server = WrapperServer(create(config), "127.0.0.1:0")
    address = server.start()
    with Mediator(address, "is1") as made:
        made.expect("attached")
        yield made
    server.stop(0)


def local_view(mediator: Mediator) -> LocalView:
    """Q2 of the paper: SELECT A, E FROM R1, R2 WHERE R1.C = R2.D."""
    (view,) = mediator.decompose("SELECT A, E FROM is1.R1, is1.R2 WHERE R1.C = R2.D").local_views
    return view


def defined(mediator: Mediator) -> LocalView:
    view = local_view(mediator)
    _, position = mediator.load(view)
    mediator.define(view, position)
    mediator.expect("defined")
    return view


def rows(view: LocalView, *pairs: tuple[tuple[int, int], int]) -> Delta:
    return Delta.of({c.name: c.type for c in view.columns}, pairs)


def test_example_1_a_concurrent_update_is_reported_before_the_answer_that_shows_it(
    mediator: Mediator, writer: SqliteWriter
) -> None:
    """Reference: wrapper paper, section 1.1, Example 1.

    ΔR3 makes the mediator ask IS_1 for E = 100; meanwhile ΔR2 adds a second way to E = 100. Without a wrapper
    the error term ΔR3 ⋈ (R1 ⋈ ΔR2) could not be removed locally; with ΔIS it can.
    """
    view = defined(mediator)
    mediator.credit()
    writer.commit("INSERT INTO R2 VALUES (20, 100)")
    asked = mediator.ask(view, Keys(("E",), pa.table({"E": pa.array([100], INT)})))
    (delta_is,) = deltas_of(mediator.expect("update"), view)
    answer, _ = mediator.result(view, asked)
    assert delta_is == rows(view, ((2, 100), 1))
    assert answer == rows(view, ((1, 100), 1), ((2, 100), 1))
    assert answer.minus(delta_is) == rows(view, ((1, 100), 1)), "what R1 ⋈ R2 was before ΔR2"


def test_example_2_one_query_where_separate_sources_would_take_two(
    mediator: Mediator, writer: SqliteWriter
) -> None:
    """Reference: wrapper paper, section 1.1, Example 2: one relation per source costs one MQ per relation."""
    apart = mediator.decompose("SELECT x.A, y.E FROM is1.R1 x, is1.R2 y WHERE x.C = y.D")
    assert len(apart.local_views) == 1, "the wrapper shows both relations as one local view: one MQ"
    view = defined(mediator)
    asked = mediator.ask(view, Keys(("E",), pa.table({"E": pa.array([200], INT)})))
    answer, _ = mediator.result(view, asked)
    assert answer == rows(view, ((2, 200), 1))


def test_example_5_local_correction_removes_the_effect_of_a_later_update(
    mediator: Mediator, writer: SqliteWriter
) -> None:
    """Reference: wrapper paper, section 4.2, Example 5.

    Both updates are committed before the wrapper may report, so the snapshot that answers LQ = ΔR1 ⋈ R2
    shows ΔR2 as well. ΔIS(R1) must not contain ΔR1 ⋈ ΔR2; ΔIS(R2) must.
    """
    view = defined(mediator)
    writer.commit("INSERT INTO R1 VALUES (3, 30)")
    writer.commit("INSERT INTO R2 VALUES (30, 300)")
    mediator.credit()
    first, second = deltas_of(mediator.expect("update"), view)
    assert first.is_empty
    assert second == rows(view, ((3, 300), 1))


def test_example_5_with_a_deletion_in_between(mediator: Mediator, writer: SqliteWriter) -> None:
    """Local correction adds back what a later deletion took from the snapshot."""
    view = defined(mediator)
    writer.commit("INSERT INTO R1 VALUES (3, 20)")
    writer.commit("DELETE FROM R2 WHERE D = 20")
    mediator.credit()
    first, second = deltas_of(mediator.expect("update"), view)
    assert first == rows(view, ((3, 200), 1))
    assert second == rows(view, ((2, 200), -1), ((3, 200), -1))


def test_one_delta_is_per_transaction_also_when_it_touches_several_relations(
    mediator: Mediator, writer: SqliteWriter
) -> None:
    view = defined(mediator)
    writer.commit(
        "INSERT INTO R1 VALUES (5, 50)", "INSERT INTO R2 VALUES (50, 500)", "DELETE FROM R1 WHERE A = 1"
    )
    mediator.credit()
    (delta_is,) = deltas_of(mediator.expect("update"), view)
    assert delta_is == rows(view, ((5, 500), 1), ((1, 100), -1))


def test_a_transaction_without_effect_on_the_view_is_reported_all_the_same(
    mediator: Mediator, writer: SqliteWriter
) -> None:
    view = defined(mediator)
    writer.commit("INSERT INTO R1 VALUES (6, 60)")
    mediator.credit()
    (delta_is,) = deltas_of(mediator.expect("update"), view)
    assert delta_is.is_empty


def test_example_6_delta_is_leaves_before_the_result_that_shows_it(
    mediator: Mediator, writer: SqliteWriter
) -> None:
    """Reference: wrapper paper, section 4.4, Example 6.

    ΔV_IS_2 asks for E = 100 and E = 200 (LMQ Q6). ΔR2 happens while the LMQ waits; order assignment sends
    ΔIS_1(R2) first, then the LMQR with its effect. An update after the answer comes after it, without effect.
    """
    view = defined(mediator)
    mediator.credit()
    writer.commit("UPDATE R2 SET E = 100 WHERE D = 20")
    asked = mediator.ask(view, Keys(("E",), pa.table({"E": pa.array([100, 200], INT)})))
    delta_is = deltas_of(mediator.expect("update"), view)
    answer, position = mediator.result(view, asked)
    assert delta_is == [rows(view, ((2, 200), -1), ((2, 100), 1))]
    assert answer == rows(view, ((1, 100), 1), ((2, 100), 1))
    writer.commit("DELETE FROM R1 WHERE A = 1")
    mediator.credit()
    later = mediator.expect("update")
    assert later.transactions[0].position.ordinal > position.ordinal
    assert deltas_of(later, view) == [rows(view, ((1, 100), -1))]
