"""Hints make cycles cheap and lose nothing: no delete, no late commit, no change under a clock set back."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from adapters.sqlalchemy import reading
from adapters.sqlalchemy.adapter import SqlAlchemyAdapter
from adapters.sqlalchemy.tests.conftest import Clock, MakeAdapter, on_all, on_postgresql
from adapters.sqlalchemy.tests.harnesses import PostgresHarness, SqlAlchemyHarness
from adapters.sqlalchemy.tests.support import Rows, deltas_after, position_of, rows_of
from algebra.errors import ConfigurationError
from algebra.position import ORIGIN

OVERLAP = 60.0
BY_TIME = {"hints": {"item": {"modified_at": "changed"}}, "overlap": OVERLAP, "full_every": 100_000}
BY_VERSION = {"hints": {"item": {"version": "changed"}}, "full_every": 100_000}


@pytest.fixture
def table(database: SqlAlchemyHarness) -> SqlAlchemyHarness:
    """Ten rows whose hint is an integer, which serves as a time and as a version."""
    rows = ", ".join(f"({i}, 'name {i}', 100)" for i in range(10))
    database.execute(
        "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(50), changed BIGINT)",
        f"INSERT INTO item VALUES {rows}",
    )
    return database


def settled(make: MakeAdapter, clock: Clock, options: dict[str, Any]) -> SqlAlchemyAdapter:
    """An adapter whose hint is in use: the time in which all values are fresh is over."""
    adapter = make(**options)
    adapter.prepare(["item"])
    position_of(adapter)
    clock.now += OVERLAP + 1
    position_of(adapter)
    clock.now += 1
    position_of(adapter)
    return adapter


class Reads:
    """Counts what is read of the source."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole = self.by_key = 0
        rows, rows_of = reading.ReadState.rows, reading.ReadState.rows_of

        def count_rows(state: reading.ReadState, relation: str) -> Any:
            self.whole += 1
            return rows(state, relation)

        def count_keys(state: reading.ReadState, relation: str, keys: Any) -> Any:
            self.by_key += keys.num_rows
            return rows_of(state, relation, keys)

        monkeypatch.setattr(reading.ReadState, "rows", count_rows)
        monkeypatch.setattr(reading.ReadState, "rows_of", count_keys)


@on_all
@pytest.mark.usefixtures("table")
def test_only_what_changed_is_read_and_deletes_are_found(
    database: SqlAlchemyHarness, make: MakeAdapter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = settled(make, clock, BY_VERSION)
    before = position_of(adapter)
    reads = Reads(monkeypatch)
    database.execute(
        "UPDATE item SET name = 'new', changed = 101 WHERE id = 3",
        "DELETE FROM item WHERE id = 4",
        "INSERT INTO item VALUES (20, 'twenty', 101)",
    )
    assert deltas_after(adapter, before) == [
        {
            "item": {
                (3, "name 3", 100): -1,
                (3, "new", 101): 1,
                (4, "name 4", 100): -1,
                (20, "twenty", 101): 1,
            }
        }
    ]
    assert (reads.whole, reads.by_key) == (0, 2)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("options", [BY_TIME, BY_VERSION])
def test_hints_may_go_back(
    database: SqlAlchemyHarness, make: MakeAdapter, clock: Clock, options: dict[str, Any]
) -> None:
    """A clock that was set back stamps changes with times before any that was seen."""
    adapter = settled(make, clock, options)
    before = position_of(adapter)
    database.execute(
        "UPDATE item SET name = 'new', changed = 5 WHERE id = 3", "INSERT INTO item VALUES (20, 'twenty', 5)"
    )
    (entry,) = deltas_after(adapter, before)
    assert entry["item"] == {(3, "name 3", 100): -1, (3, "new", 5): 1, (20, "twenty", 5): 1}


@on_postgresql
@pytest.mark.usefixtures("table")
def test_a_long_transaction_with_old_times_is_not_lost(
    database: PostgresHarness, make: MakeAdapter, clock: Clock
) -> None:
    adapter = settled(make, clock, BY_TIME)
    with closing(database._server.connect(database._database)) as late:
        late.execute("BEGIN")
        late.execute("UPDATE item SET name = 'late', changed = 101 WHERE id = 1")
        late.execute("INSERT INTO item VALUES (30, 'late', 101)")
        late.execute("DELETE FROM item WHERE id = 2")
        database.execute("UPDATE item SET name = 'early', changed = 900 WHERE id = 9")
        clock.now += 10 * OVERLAP
        before = position_of(adapter)
        clock.now += 10 * OVERLAP
        assert position_of(adapter) == before
        late.execute("COMMIT")
    (entry,) = deltas_after(adapter, before)
    assert entry["item"] == {
        (1, "name 1", 100): -1,
        (1, "late", 101): 1,
        (30, "late", 101): 1,
        (2, "name 2", 100): -1,
    }


@pytest.mark.usefixtures("table")
def test_two_changes_within_one_tick_of_the_clock_are_told_apart(
    database: SqlAlchemyHarness, make: MakeAdapter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = settled(make, clock, BY_TIME)
    database.execute("UPDATE item SET name = 'first', changed = 101 WHERE id = 3")
    before = position_of(adapter)
    clock.now += OVERLAP - 1
    database.execute("UPDATE item SET name = 'second' WHERE id = 3")
    (entry,) = deltas_after(adapter, before)
    assert entry["item"] == {(3, "first", 101): -1, (3, "second", 101): 1}
    # Committed just within the time that was promised, seen after it.
    database.execute("UPDATE item SET name = 'third' WHERE id = 3")
    clock.now += 100 * OVERLAP
    assert rows_of(adapter, "item")[(3, "third", 101)] == 1
    reads = Reads(monkeypatch)
    clock.now += 100 * OVERLAP
    position_of(adapter)
    position_of(adapter)
    assert reads.by_key <= 1, "then the row is settled"


@pytest.mark.usefixtures("table")
def test_a_broken_promise_is_found_by_the_full_comparison(
    database: SqlAlchemyHarness, make: MakeAdapter, clock: Clock
) -> None:
    adapter = settled(make, clock, {**BY_VERSION, "full_every": 500})
    before = position_of(adapter)
    database.execute("UPDATE item SET name = 'behind the version' WHERE id = 3")
    assert deltas_after(adapter, before) == []
    clock.now += 500
    (entry,) = deltas_after(adapter, before)
    assert entry["item"] == {(3, "name 3", 100): -1, (3, "behind the version", 100): 1}


@pytest.mark.usefixtures("table")
def test_rows_without_a_hint_are_read_every_time(
    database: SqlAlchemyHarness, make: MakeAdapter, clock: Clock
) -> None:
    database.execute("UPDATE item SET changed = NULL WHERE id = 3")
    adapter = settled(make, clock, BY_VERSION)
    before = position_of(adapter)
    database.execute("UPDATE item SET name = 'new' WHERE id = 3")
    (entry,) = deltas_after(adapter, before)
    assert entry["item"] == {(3, "name 3", None): -1, (3, "new", None): 1}


@pytest.mark.usefixtures("table")
def test_changes_right_after_prepare_are_seen_whatever_their_hint(
    database: SqlAlchemyHarness, make: MakeAdapter, clock: Clock
) -> None:
    """All values are fresh then, so nothing is left to the hint."""
    adapter = make(**BY_TIME)
    adapter.prepare(["item"])
    before = position_of(adapter)
    for step in range(4):
        clock.now += OVERLAP / 4
        database.execute(f"UPDATE item SET name = 'step {step}' WHERE id = 3")
        (*_, entry) = deltas_after(adapter, before)
        assert entry["item"][(3, f"step {step}", 100)] == 1


@pytest.mark.usefixtures("table")
def test_a_table_that_changed_much_is_read_whole(
    database: SqlAlchemyHarness, make: MakeAdapter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ", ".join(f"({i}, 'more', 100)" for i in range(100, 700))
    database.execute(f"INSERT INTO item VALUES {more}")
    adapter = settled(make, clock, BY_VERSION)
    before = position_of(adapter)
    reads = Reads(monkeypatch)
    database.execute("UPDATE item SET changed = 101 WHERE id >= 100")
    (entry,) = deltas_after(adapter, before)
    assert len(entry["item"]) == 1200
    assert (reads.whole, reads.by_key) == (1, 0)


@on_all
@pytest.mark.parametrize("options", [BY_TIME, BY_VERSION], ids=["time", "version"])
def test_random_changes_under_a_hint_add_up(
    database: SqlAlchemyHarness, make: MakeAdapter, clock: Clock, options: dict[str, Any]
) -> None:
    """Composite text keys; each cycle's changes lead exactly to the rows of its snapshot."""
    database.execute(
        "CREATE TABLE item (a VARCHAR(10) NOT NULL, b INTEGER NOT NULL, name VARCHAR(10), changed BIGINT,"
        " PRIMARY KEY (a, b))"
    )
    rnd = random.Random(11)
    adapter = settled(make, clock, options)
    replica: Counter[tuple[Any, ...]] = Counter()
    at, version = ORIGIN, 0
    for _ in range(12):
        statements = []
        for _ in range(rnd.randrange(4)):
            version += 1
            a, b = rnd.choice(["x", "X", "x ", "ü"]), rnd.randrange(3)
            # A time that jumps about, but is another with every change.
            stamp = version if options is BY_VERSION else version * 7919 % 1000
            statements += [
                f"DELETE FROM item WHERE a = '{a}' AND b = {b}",
                *(
                    [f"INSERT INTO item VALUES ('{a}', {b}, '{rnd.randrange(3)}', {stamp})"]
                    * rnd.randrange(2)
                ),
            ]
        if statements:
            database.execute(*statements)
        clock.now += rnd.choice([1, OVERLAP * 2])
        for entry in deltas_after(adapter, at):
            for row, count in entry.get("item", {}).items():
                replica[row] += count
        at = position_of(adapter)
        found: Rows = rows_of(adapter, "item")
        assert {row: n for row, n in replica.items() if n} == found
        assert found == Counter(map(tuple, database.execute("SELECT * FROM item")))


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ({"item": {"modified_at": "nope"}}, "names column 'nope'"),
        ({"bag": {"version": "n"}}, "needs a primary key"),
        ({"item": {"changed": "n"}}, "hints.item"),
        ({"item": "n"}, "hints.item"),
        (["item"], "option hints"),
    ],
)
def test_hints_that_cannot_serve_are_refused(
    database: SqlAlchemyHarness, make: MakeAdapter, hint: object, message: str
) -> None:
    database.execute("CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, n INTEGER)")
    database.execute("CREATE TABLE bag (n INTEGER)")
    with pytest.raises(ConfigurationError, match=message) as caught:
        make(hints=hint).prepare(["item", "bag"])
    assert "\n" not in str(caught.value)
    assert not database.shadow.exists()
