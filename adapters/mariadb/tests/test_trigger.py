"""Trigger capture: the order that snapshots give, and what triggers do not see."""

from __future__ import annotations

import random

import pytest

from adapters.mariadb.adapter import MariaDBAdapter
from adapters.mariadb.tests.conftest import Source, entries, position, rows
from algebra.errors import ConfigurationError, PositionTrimmedError, ResyncRequiredError, SchemaChangedError
from algebra.position import Position

ITEM = "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(30))"
COUNTED = "CREATE TABLE item (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(30))"
SECRET = "a secret"


def ids(adapter: MariaDBAdapter, after: Position) -> list[list[int]]:
    return [sorted(row[0] for row in t.deltas["item"].to_dict()) for t in entries(adapter, after)]


def test_a_transaction_with_early_numbers_that_commits_late_is_not_lost(source: Source) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("trigger", "item")
    late = source.connect(autocommit=False)
    late.cursor().execute("INSERT INTO item VALUES (1, 'late'), (2, 'late')")
    source.run("INSERT INTO item VALUES (3, 'early')")
    assert ids(adapter, start) == [[3]]
    between = position(adapter)
    source.run("INSERT INTO item VALUES (4, 'early')")
    assert ids(adapter, between) == [[4]]
    late.commit()
    assert ids(adapter, between) == [[4], [1, 2]]
    assert ids(source.adapter("trigger"), start) == [[3], [4], [1, 2]]


def test_an_open_transaction_holds_up_neither_snapshots_nor_trimming(source: Source) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("trigger", "item")
    waiting = source.connect(autocommit=False)
    for number in range(0, 40, 2):
        waiting.cursor().execute(f"INSERT INTO item VALUES ({number}, 'open')")
        source.run(f"INSERT INTO item VALUES ({number + 1}, 'committed')")
    found = ids(adapter, start)
    assert found == [list(range(1, 40, 2))]
    adapter.acknowledge(position(adapter))
    with pytest.raises(PositionTrimmedError, match="trimmed"):
        entries(adapter, start)
    after = position(adapter)
    waiting.commit()
    assert ids(adapter, after) == [list(range(0, 40, 2))]


def test_an_entry_is_exact_if_one_transaction_is_in_it(source: Source) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("trigger", "item")
    writer = source.connect(autocommit=False)
    for number in range(3):
        writer.cursor().execute(f"INSERT INTO item VALUES ({2 * number}, 'x')")
        writer.cursor().execute(f"INSERT INTO item VALUES ({2 * number + 1}, 'x')")
        writer.commit()
        position(adapter)
    for number in range(10, 12):
        writer.cursor().execute(f"INSERT INTO item VALUES ({number}, 'x')")
        writer.commit()
    assert [t.batched for t in entries(adapter, start)] == [False, False, False, True]


def test_without_a_name_of_its_transaction_an_entry_counts_as_batched(source: Source) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("trigger", "item")
    source.run("SET SESSION sql_log_bin = 0", "INSERT INTO item VALUES (1, 'x')")
    assert [t.batched for t in entries(adapter, start)] == [True]


def test_two_adapters_on_one_source_tell_the_same_order(source: Source) -> None:
    source.run(ITEM)
    first, start = source.prepared("trigger", "item")
    second = source.adapter("trigger")
    chance = random.Random(4)
    writers = [source.connect(autocommit=False) for _ in range(3)]
    for number in range(60):
        chance.choice(writers).cursor().execute(f"INSERT INTO item VALUES ({number}, 'x')")
        if chance.random() < 0.4:
            chance.choice(writers).commit()
        if chance.random() < 0.3:
            position(chance.choice([first, second]))
    for writer in writers:
        writer.commit()
    one = ids(first, start)
    assert one == ids(second, start)
    assert sorted(number for entry in one for number in entry) == list(range(60))


def test_rows_written_by_every_kind_of_statement(source: Source) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("trigger", "item")
    source.run(
        "INSERT INTO item VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "REPLACE INTO item VALUES (1, 'A')",
        "INSERT INTO item VALUES (2, 'x') ON DUPLICATE KEY UPDATE name = 'B'",
        "INSERT IGNORE INTO item VALUES (3, 'ignored'), (4, 'd')",
        "UPDATE item AS i JOIN item AS j ON i.id = j.id + 1 SET i.name = 'joined' WHERE i.id = 3",
        "DELETE FROM item WHERE id = 4",
    )
    (entry,) = entries(adapter, start)
    assert entry.deltas["item"].to_dict() == dict.fromkeys(rows(adapter, "item"), 1)


@pytest.mark.parametrize("table", [ITEM, COUNTED])
def test_truncate_is_noticed(source: Source, table: str) -> None:
    source.run(table, "INSERT INTO item VALUES (1, 'x'), (2, 'y')")
    adapter, start = source.prepared("trigger", "item")
    source.run("TRUNCATE TABLE item", "INSERT INTO item VALUES (1, 'new')")
    for _ in range(2):
        with pytest.raises(SchemaChangedError, match=r"shop\.item was truncated"):
            entries(adapter, start)
    adapter.prepare(["item"])
    with pytest.raises(ResyncRequiredError):
        entries(adapter, start)
    after = position(adapter)
    source.run("INSERT INTO item VALUES (2, 'seen')")
    assert ids(adapter, after) == [[2]]


def test_truncate_is_noticed_without_the_right_process_by_the_counter(source: Source) -> None:
    source.run(COUNTED, "INSERT INTO item (name) VALUES ('x'), ('y')")
    source.run(
        f"CREATE OR REPLACE USER plain@'%' IDENTIFIED BY '{SECRET}'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, TRIGGER ON `{source.database}`.* TO plain@'%'",
    )
    adapter = source.adapter("trigger", "plain", SECRET)
    adapter.prepare(["item"])
    start = position(adapter)
    source.run("TRUNCATE TABLE item")
    with pytest.raises(SchemaChangedError, match="was truncated"):
        entries(adapter, start)
    # Noted in the source: an adapter that never saw the counter knows it, too.
    with pytest.raises(SchemaChangedError, match="was truncated"):
        entries(source.adapter("trigger", "plain", SECRET), start)


@pytest.mark.parametrize("rule", ["ON DELETE CASCADE", "ON UPDATE CASCADE", "ON DELETE SET NULL"])
def test_cascading_foreign_keys_are_refused(source: Source, capture: str, rule: str) -> None:
    source.run(
        ITEM,
        f"CREATE TABLE part (id INT PRIMARY KEY, item INT, FOREIGN KEY (item) REFERENCES item (id) {rule})",
    )
    adapter = source.adapter(capture)
    adapter.prepare(["item"])
    with pytest.raises(ConfigurationError, match=r"shop\.part has the cascading foreign key"):
        adapter.prepare(["part"])


def test_a_cascade_that_comes_later_is_noticed(source: Source, capture: str) -> None:
    source.run(ITEM, "CREATE TABLE part (id INT PRIMARY KEY, item INT)")
    adapter, start = source.prepared(capture, "part")
    source.run("ALTER TABLE part ADD FOREIGN KEY (item) REFERENCES item (id) ON DELETE CASCADE")
    with pytest.raises(SchemaChangedError, match="cascading foreign key"):
        entries(adapter, start)


def test_lost_triggers_are_noticed_and_mended(source: Source) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("trigger", "item")
    source.run("DROP TRIGGER _lockstep_1_update")
    with pytest.raises(SchemaChangedError, match="lost its triggers"):
        entries(adapter, start)
    adapter.prepare(["item"])
    after = position(adapter)
    source.run("INSERT INTO item VALUES (1, 'x')", "UPDATE item SET name = 'y'")
    assert ids(adapter, after) == [[1]]


def test_prepare_and_remove_can_be_taken_up_where_they_were_interrupted(source: Source, capture: str) -> None:
    source.run(ITEM)
    before = source.run("SHOW TABLES")
    adapter = source.adapter(capture)
    steps = adapter.prepare(["item"], dry_run=True)
    for done in range(1, len(steps), 5):
        source.run(*steps[:done])
        adapter.prepare(["item"])
        start = position(adapter)
        source.run(f"INSERT INTO item VALUES ({done}, 'x')")
        assert ids(adapter, start) == [[done]]
        removal = adapter.remove(dry_run=True)
        source.run(*removal[: done % len(removal)])
        adapter.remove()
        assert source.run("SHOW TABLES") == before
        assert source.run("SHOW TRIGGERS") == ()


def test_captures_are_not_mixed(source: Source) -> None:
    source.run(ITEM)
    source.prepared("trigger", "item")
    other = source.adapter("log")
    with pytest.raises(ConfigurationError, match="prepared for capture 'trigger'"):
        other.prepare(["item"])
    with pytest.raises(ConfigurationError, match="prepared for capture 'trigger'"):
        position(other)
    other.remove()
    other.prepare(["item"])
    position(other)
