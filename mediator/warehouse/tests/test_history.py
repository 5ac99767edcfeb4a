"""Every version stays what it was: random histories against a model, across compactions and restarts."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from algebra.errors import NotFoundError, OrderingViolationError, PositionTrimmedError
from algebra.position import Position
from mediator.warehouse import ViewInstall, Warehouse
from mediator.warehouse.delta_files import DeltaFiles
from mediator.warehouse.tests.builders import (
    SCHEMA,
    Bag,
    at,
    bag,
    change,
    counted,
    plus,
    random_change,
    row,
)


@pytest.mark.parametrize("seed", range(4))
def test_random_histories(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    views = ("left", "right")
    warehouse = Warehouse(tmp_path, durable=False, grace_seconds=0.0)
    states: dict[str, list[Bag]] = {}
    deltas: dict[str, list[Bag]] = {}
    for view in views:
        first = random_change(generator, Bag())
        warehouse.create_view(view, {"sql": view}, SCHEMA, counted(first), row(0))
        states[view], deltas[view] = [Bag(first)], [Bag(first)]
    for _ in range(45):
        installs = []
        for view in views[: generator.choice([1, 2, 2])]:
            tables, rows = [], []
            for _ in range(generator.choice([1, 1, 1, 3])):
                delta = random_change(generator, states[view][-1])
                number = len(states[view])
                states[view].append(plus(states[view][-1], delta))
                deltas[view].append(Bag(delta))
                rows.append(row(number))
                tables.append(counted(delta, SCHEMA, number))
            installs.append(ViewInstall(view, rows, table=pa.concat_tables(tables)))
        warehouse.install(installs)
        step = generator.random()
        if step < 0.08:
            warehouse.compact(generator.choice(views))
        elif step < 0.16:
            warehouse.maintain()
        elif step < 0.22:
            warehouse.close()
            warehouse = Warehouse(tmp_path, durable=False, grace_seconds=0.0)
    for ending in ("as it is", "compacted", "reopened"):
        for view in views:
            if ending == "compacted":
                warehouse.compact(view)
            for number in generator.sample(range(len(states[view])), 25):
                assert at(warehouse, view, number) == states[view][number], (ending, view, number)
            newest = warehouse.newest(view)
            assert newest.version == len(states[view]) - 1
            assert newest.rows == sum(states[view][-1].values())
        if ending == "compacted":
            warehouse.close()
            warehouse = Warehouse(tmp_path, durable=False)
    for view in views:
        history = warehouse.history(view)[::-1]
        assert [record.version for record in history] == list(range(len(states[view])))
        assert [record.rows for record in history] == [sum(state.values()) for state in states[view]]
        sizes = [sum(map(abs, delta.values())) for delta in deltas[view]]
        assert [record.changed_rows for record in history] == sizes
        watched = list(warehouse.changes(view, 0))
        assert [record for record, _ in watched] == history[1:]
        assert [bag(table) for _, table in watched] == deltas[view][1:]
    warehouse.close()


def test_records_keep_their_vectors(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {"sql": "SELECT 1", "max_batch": 3}, SCHEMA, counted({}), row(0))
    warehouse.install([ViewInstall("v", [row(1)])])
    warehouse.install([change("v", 2, {(1, "a"): 2})])
    newest = warehouse.newest("v")
    assert (newest.source, newest.position.token, newest.rows, newest.changed_rows) == ("shop", "t2", 2, 2)
    assert warehouse.vector("v") == {"shop": Position(2), "crm": Position(7)}
    assert warehouse.vector("v")["crm"].token == 'say "hi"'
    warehouse.maintain()
    first = warehouse.version_record("v", 1)
    assert first.vector["shop"].token == "t1"
    assert first.observed_at == row(1).observed_at
    assert first.committed_at <= newest.committed_at
    assert [record.version for record in warehouse.history("v", 2)] == [2, 1]
    assert [record.version for record in warehouse.history("v", 1, before=2)] == [1]
    assert warehouse.history("v", before=0) == []
    assert warehouse.view("v").spec == {"sql": "SELECT 1", "max_batch": 3}
    with pytest.raises(NotFoundError, match=r"view 'v' has no version 3; it has the versions 0 to 2"):
        warehouse.version_record("v", 3)
    with pytest.raises(NotFoundError, match="no version 9"):
        warehouse.read("v", 9)
    with pytest.raises(NotFoundError, match="there is no view 'w'; the views are: v"):
        warehouse.newest("w")


def test_gaps_are_refused_and_change_nothing(warehouse: Warehouse) -> None:
    for view in ("a", "b"):
        warehouse.create_view(view, {}, SCHEMA, counted({(1, "x"): 1}), row(0))
    wrong = (
        [change("a", 1, {(2, "y"): 1}), change("b", 2, {(2, "y"): 1})],
        [change("a", 1, {}), change("a", 2, {})],
        [ViewInstall("a", [row(1), row(3)])],
        [ViewInstall("a", [row(0)])],
    )
    for installs in wrong:
        with pytest.raises(OrderingViolationError):
            warehouse.install(installs)
    assert at(warehouse, "a") == at(warehouse, "b") == {(1, "x"): 1}
    warehouse.install([change("a", 1, {(2, "y"): 1}), change("b", 1, {(1, "x"): -1})])
    assert at(warehouse, "a") == {(1, "x"): 1, (2, "y"): 1}
    assert at(warehouse, "b") == {}


def test_watching_begins_where_asked(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted({}), row(0))
    warehouse.install([change("v", 1, {(1, "a"): 1})])
    warehouse.install([ViewInstall("v", [row(2)])])
    warehouse.install([change("v", 3, {(1, "a"): -1, (2, None): 4})])
    seen = [(record.version, bag(table)) for record, table in warehouse.changes("v", 1, 3)]
    assert seen == [(2, {}), (3, {(1, "a"): -1, (2, None): 4})]
    assert list(warehouse.changes("v", 3)) == []
    assert [record.version for record, _ in warehouse.changes("v", 0, 1)] == [1]
    with pytest.raises(PositionTrimmedError):
        warehouse.changes("v", -1)
    with pytest.raises(NotFoundError, match="no version 4"):
        warehouse.changes("v", 4)


@pytest.mark.parametrize("known", [True, False], ids=["with statistics", "made without"])
def test_a_view_of_many_columns_is_still_there_when_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Delta's statistics are of the first 32 columns, by default; the version is the last one."""
    if not known:
        monkeypatch.setattr(DeltaFiles, "_statistics", lambda _, file: f'{{"numRecords": {file.rows}}}')
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(40)])
    first, second = (1,) * 40, (2,) * 40
    with Warehouse(tmp_path, durable=False) as warehouse:
        warehouse.create_view("wide", {}, schema, counted({first: 1}, schema), row(0))
        warehouse.install([change("wide", 1, {first: -1, second: 1}, schema)])
        warehouse.install([change("wide", 2, {second: 2}, schema)])
    for ending in ("reopened", "with a checkpoint", "compacted"):
        with Warehouse(tmp_path, durable=False, grace_seconds=0.0) as warehouse:
            assert at(warehouse, "wide") == {second: 3}, ending
            assert at(warehouse, "wide", 1) == {second: 1}, ending
            assert at(warehouse, "wide", 0) == {first: 1}, ending
            if ending == "reopened":
                warehouse._store.data(warehouse.view("wide")).changes.checkpoint()
            else:
                warehouse.compact("wide")
