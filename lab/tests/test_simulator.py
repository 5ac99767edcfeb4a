"""The driver carries out every step of the contract; links are queues; faults lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from algebra.consistency import Level, Scenario
from algebra.local_view import Keys
from algebra.schema import COUNT
from algebra.sweep import Query
from lab.errors import ScheduleError
from lab.history import Action, Received
from lab.oracle import check_vectors, judge
from lab.scenario_text import format_bag
from lab.schedules import finish, replay
from lab.simulator import Simulator
from lab.tests.worlds import CHAIN, pair, scenario
from lab.world import World
from mediator.maintenance.contract import (
    Answered,
    Maintenance,
    Next,
    Process,
    Read,
    Settle,
    SourceQuery,
    Term,
    Update,
    ViewContext,
)


def schedule(text: str) -> list[Action]:
    return [Action.parse(part) for part in text.split(",")]


def done(world: World, text: str) -> Simulator:
    simulator = Simulator(world)
    for action in schedule(text):
        simulator.do(action)
    return simulator


@pytest.fixture
def maintained_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[ViewContext], Process]], None]:
    """Makes a generator the algorithm of every scenario."""

    def use(process: Callable[[ViewContext], Process]) -> None:
        class Probe(Maintenance):
            name = "probe"
            guarantee = dict.fromkeys(Scenario, Level.NONE)
            message_cost = "none"

            def maintain(self, view: ViewContext) -> Process:
                return process(view)

        monkeypatch.setattr("lab.scenario.algorithm", lambda _: Probe())

    return use


def test_messages_arrive_in_exactly_the_order_of_receipt(maintained_by: Any) -> None:
    log: list[str] = []

    def probe(view: ViewContext) -> Process:
        queries: tuple[Query, ...] = (Query(0, None), Query(1, None))
        while True:
            message = yield Next(queries)
            queries = ()
            if isinstance(message, Update):
                log.append(f"{message.source}@{message.position}")
            else:
                assert isinstance(message, Answered)
                assert isinstance(message.query, Query)
                log.append(
                    f"{message.query.node}: {message.answer.rows.num_rows} at {message.answer.position}"
                )

    maintained_by(probe)
    world = pair(x="+r1(1, 2); +r1(3, 2)", y="+r2(2, 3)")
    done(
        world, "commit x, answer x, commit y, commit x, receive y, answer y, receive x, receive y, receive x"
    )
    assert log == ["y@1", "x@1", "1: 1 at 1", "0: 1 at 1"]


def test_a_tuple_of_queries_receives_its_answers_in_its_own_order(maintained_by: Any) -> None:
    answers: list[tuple[Any, ...]] = []

    def probe(view: ViewContext) -> Process:
        keys = Keys(("b",), pa.table({"b": pa.array([2], pa.int64())}))
        answers.append((yield (Query(0, keys), Query(1, None))))
        answers.append((yield ()))
        while True:
            yield Next()

    maintained_by(probe)
    world = pair(x="+r1(1, 2)", x_rows="(1, 2) (1, 2) (1, 5)", y_rows="(7, 8)")
    simulator = done(world, "answer y, receive y, commit x, answer x")
    assert not answers
    for action in schedule("receive x, receive x"):
        simulator.do(action)
    (first, second), nothing = answers
    assert [row["a"] for row in first.rows.to_pylist()] == [1, 1, 1]
    assert first.position.ordinal == 1
    assert second.rows.num_rows == 1
    assert nothing == ()


def test_read_and_settle_work_on_the_last_version(maintained_by: Any) -> None:
    found: list[list[dict[str, Any]]] = []
    change = pa.table({"a": [1, 4], "c": [3, 9], COUNT: [-1, 2]})

    def probe(view: ViewContext) -> Process:
        update = yield Next()
        found.append((yield Read()).to_pylist())
        yield Settle(change)
        values = pa.table({"c": [9, 11]})
        found.append((yield Read(("c",), values)).to_pylist())
        yield Settle(change.slice(0, 0), (update,))
        yield Next()

    maintained_by(probe)
    world = pair(x="+r1(7, 7)", x_rows="(1, 2)", y_rows="(2, 3)")
    history = done(world, "commit x, receive x").history
    assert found == [[{"a": 1, "c": 3, COUNT: 1}], [{"a": 4, "c": 9, COUNT: 2}]]
    assert [(format_bag(s.contents), s.vector) for s in history.states] == [
        ("{(1, 3)}", (0, 0)),
        ("{(4, 9)[2]}", (0, 0)),
        ("{(4, 9)[2]}", (1, 0)),
    ]


def test_a_source_evaluates_a_sum_of_terms_in_one_state(maintained_by: Any) -> None:
    answers: list[Answered] = []

    def probe(view: ViewContext) -> Process:
        row = pa.table({"a": [4], "b": [2], COUNT: [-1]})
        other = pa.table({"c": [5], "b": [2], COUNT: [1]})
        terms = (Term(1, {0: row}), Term(-1, {0: row, 1: other}), Term(1, {}))
        yield Next((SourceQuery(terms),))
        while True:
            answers.append((yield Next()))

    maintained_by(probe)
    text = """
nodes: relations
view: SELECT r1.a, r2.c FROM s.r1 r1 JOIN s.r2 r2 ON r1.b = r2.b
source s
  relation r1(a int, b int)
    (1, 2)
  relation r2(b int, c int)
  transaction +r2(2, 3)
"""
    history = finish(done(World(scenario(text)), "commit s, answer s"))
    assert not history.problem
    # -[4, 2] ⋈ r2, minus -[4, 2] ⋈ [2, 5], plus r1 ⋈ r2
    rows = {(r["a"], r["c"]): r[COUNT] for r in answers[0].answer.rows.to_pylist()}
    assert rows == {(4, 3): -1, (4, 5): 1, (1, 3): 1}
    assert answers[0].answer.position.ordinal == 1


def test_an_algorithm_that_raises_is_reported_and_the_run_goes_on(maintained_by: Any) -> None:
    def probe(view: ViewContext) -> Process:
        yield Next()
        raise ValueError("cannot\ngo on")

    maintained_by(probe)
    history = replay(pair(x="+r1(1, 2)", y="+r2(2, 3)"), [])
    assert history.problem == "ValueError: cannot go on"
    assert judge(history).level is Level.NONE


def test_an_algorithm_that_never_waits_is_stopped(maintained_by: Any) -> None:
    def probe(view: ViewContext) -> Process:
        yield Next()
        while True:
            yield Read()

    maintained_by(probe)
    history = replay(pair(x="+r1(1, 2)"), [])
    assert "without waiting" in history.problem


def test_updates_of_empty_change_make_a_version() -> None:
    world = pair(x="+r1(1, 2); -r1(1, 2)")
    for name in ("sweep", "sweep-published", "sweep-parallel"):
        history = replay(pair(x="+r1(1, 2)", y="+r2(9, 9)", algorithm=name), [])
        assert [s.vector for s in history.states] == [(0, 0), (1, 0), (1, 1)]
    assert len(replay(world, []).states) == 3


def test_a_restart_gives_the_same_updates_again_and_ignores_late_answers() -> None:
    for name in ("sweep-published", "ivma"):
        world = pair(x="+r1(1, 2); +r1(5, 2)", y_rows="(2, 3)", algorithm=name)
        simulator = done(world, "commit x, commit x, receive x, receive x, answer y, restart, receive y")
        late = simulator.history.events[-1][0]
        assert isinstance(late, Received)
        assert late.ignored
        assert len(simulator.history.states) == 1
        history = finish(simulator)
        assert [format_bag(s.contents) for s in history.states] == ["{}", "{(1, 3)}", "{(1, 3), (5, 3)}"]
        assert not check_vectors(history)


def test_a_restart_does_not_repeat_what_is_installed() -> None:
    for name in ("sweep-published", "ivma"):
        world = pair(x="+r1(1, 2)", y_rows="(2, 3)", algorithm=name)
        history = finish(done(world, "commit x, receive x, answer y, receive y, restart"))
        assert len(history.states) == 2
        assert judge(history).level is Level.COMPLETE


def test_a_cut_link_holds_messages_in_both_directions() -> None:
    world = pair(x="+r1(1, 2)", y="+r2(2, 9)", y_rows="(2, 3)", algorithm="sweep-published")
    simulator = done(world, "commit x, receive x, cut y, commit y")
    for held in ("answer y", "receive y", "cut y", "restore x"):
        with pytest.raises(ScheduleError, match=f"'{held}' cannot happen now"):
            simulator.do(Action.parse(held))
    assert Action.parse("restore y") in simulator.enabled()
    history = finish(simulator)
    assert judge(history).level is Level.COMPLETE


def test_the_schedule_may_say_how_many_updates_are_taken() -> None:
    text = f"takes: scheduled\nbatch limit: 2\n{CHAIN}"
    simulator = done(World(scenario(text)), "commit x, receive x, commit y, receive y, commit z, receive z")
    takes = [str(a) for a in simulator.enabled() if a.kind == "take"]
    assert takes == ["take 2", "take 1"]
    with pytest.raises(ScheduleError, match="'take 3' cannot happen now"):
        simulator.do(Action.parse("take 3"))
    simulator.do(Action.parse("take 2"))
    history = finish(simulator)
    assert [s.vector for s in history.states] == [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)]
    assert judge(history).level is Level.COMPLETE


def test_the_warehouse_takes_all_that_waits_up_to_the_limit() -> None:
    def queries(limit: int | None) -> int:
        made = pair(x="+r1(1, 2); +r1(5, 2); +r1(6, 2)", y_rows="(2, 3)").scenario
        simulator = done(World(replace(made, max_batch=limit)), "commit x, receive x, commit x, commit x")
        for action in schedule("receive x, receive x"):
            simulator.do(action)
        return finish(simulator).counts().queries

    # The first update is swept alone; the others together, or one after the other.
    assert queries(None) == 2
    assert queries(1) == 3


def test_a_local_view_of_two_relations_is_reported_as_one_change() -> None:
    text = """
view: SELECT r1.a, r3.d FROM x.r1 r1, x.r2 r2, y.r3 r3 WHERE r1.b = r2.b AND r2.c = r3.c
source x
  relation r1(a int, b int)
    (1, 2)
  relation r2(b int, c int)
  transaction +r2(2, 3) +r1(4, 2)
source y
  relation r3(c int, d int)
    (3, 7)
"""
    world = World(scenario(text))
    (delta,) = world.deltas("x", 1).values()
    assert sorted(row["a"] for row in delta.to_pylist()) == [1, 4]
    history = replay(world, [])
    assert [format_bag(s.contents) for s in history.states] == ["{}", "{(1, 7), (4, 7)}"]
