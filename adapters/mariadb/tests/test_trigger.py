"""Trigger capture: the order that snapshots give, and what triggers do not see."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from adapters.mariadb.adapter import MariaDBAdapter
from adapters.mariadb.catalog import SourceTables
from adapters.mariadb.connection import Connection
from adapters.mariadb.tests.conftest import Source, entries, position, rows
from adapters.servers.mariadb import MariaDBServer
from algebra.errors import ConfigurationError, PositionTrimmedError, ResyncRequiredError, SchemaChangedError
from algebra.position import Position

ITEM = "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(30))"
OTHER = "CREATE TABLE other (id INT PRIMARY KEY)"
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


@pytest.mark.parametrize("name", ["plain", "tä b-表@x", "it's #P# a"])
def test_truncate_is_noticed_whatever_the_name(source: Source, name: str) -> None:
    source.run(f"CREATE TABLE `{name}` (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2")
    adapter, start = source.prepared("trigger", name)
    source.run(f"TRUNCATE TABLE `{name}`")
    with pytest.raises(SchemaChangedError, match="was truncated"):
        entries(adapter, start)


ALTERED = {
    "made again": ["ALTER TABLE item DROP COLUMN name, ADD COLUMN name VARCHAR(30) DEFAULT 'x' AFTER id"],
    "made again in two steps": [
        "ALTER TABLE item DROP COLUMN name",
        "ALTER TABLE item ADD COLUMN name VARCHAR(30) AFTER id",
    ],
    "exchanged": [
        "ALTER TABLE item RENAME COLUMN name TO more, RENAME COLUMN more TO name",
        "ALTER TABLE item MODIFY name VARCHAR(30) AFTER id",
    ],
    "rebuilt": ["ALTER TABLE item DROP COLUMN name, ADD COLUMN name VARCHAR(30) AFTER id, ALGORITHM = COPY"],
}
OTHER_INSTANT = "ALTER TABLE other ADD COLUMN more_{} INT, ALGORITHM = INSTANT"


@pytest.mark.parametrize("partitioned", ["", " PARTITION BY HASH (id) PARTITIONS 2"])
@pytest.mark.parametrize("story", ALTERED)
def test_columns_that_are_others_under_the_same_names_are_noticed(
    source: Source, story: str, partitioned: str
) -> None:
    source.run(
        f"CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(30), more VARCHAR(30)){partitioned}",
        "INSERT INTO item VALUES (1, 'a', 'b')",
    )
    adapter, start = source.prepared("trigger", "item")
    source.run(*ALTERED[story])
    for again in (adapter, source.adapter("trigger")):
        with pytest.raises(
            SchemaChangedError, match=r"shop\.item was (altered without|truncated or rebuilt)"
        ):
            entries(again, start)
    adapter.prepare(["item"])
    with pytest.raises(ResyncRequiredError):
        entries(adapter, start)
    after = position(adapter)
    source.run("INSERT INTO item VALUES (2, 'seen', NULL)")
    assert ids(adapter, after) == [[2]]


@pytest.mark.parametrize("kind", ["VIRTUAL", "STORED"])
def test_generated_columns_that_are_computed_anew_are_noticed(source: Source, kind: str) -> None:
    """A virtual one without the table being rebuilt, or altered instantly."""
    source.run(
        f"CREATE TABLE item (id INT PRIMARY KEY, twice INT AS (id * 2) {kind})",
        "INSERT INTO item (id) VALUES (1)",
    )
    adapter, start = source.prepared("trigger", "item")
    source.run("ALTER TABLE item COMMENT 'x'", "INSERT INTO item (id) VALUES (2)")
    assert ids(adapter, start) == [[2]]
    source.run(f"ALTER TABLE item MODIFY twice INT AS (id + id + 1) {kind}")
    for again in (adapter, source.adapter("trigger")):
        with pytest.raises(SchemaChangedError, match=r"shop\.item"):
            entries(again, start)
    adapter.prepare(["item"])
    with pytest.raises(ResyncRequiredError):
        entries(adapter, start)
    after = position(adapter)
    source.run("INSERT INTO item (id) VALUES (3)")
    assert ids(adapter, after) == [[3]]


def test_alterations_that_leave_the_values_alone_cost_nobody_the_place(source: Source) -> None:
    """Also where other tables are altered instantly meanwhile; of these, the server keeps one count."""
    source.run(ITEM, OTHER)
    time.sleep(3.1)  # definitions are told apart by the second in which they were written
    adapter, start = source.prepared("trigger", "item")
    ordinary = (
        "ALTER TABLE item ADD INDEX by_name (name)",
        "ALTER TABLE item COMMENT 'x'",
        "ALTER TABLE item ALTER COLUMN name SET DEFAULT 'y', DROP INDEX by_name",
    )
    for number, statement in enumerate(ordinary):
        source.run(OTHER_INSTANT.format(number), f"INSERT INTO item VALUES ({2 * number}, 'x')")
        assert len(ids(adapter, start)) == 2 * number + 1
        source.run(statement, f"INSERT INTO item VALUES ({2 * number + 1}, 'x')")
        assert len(ids(source.adapter("trigger"), start)) == 2 * number + 2
        time.sleep(3.1)
        position(adapter)
    source.run(*ALTERED["made again"])
    with pytest.raises(SchemaChangedError, match=r"shop\.item was altered without"):
        entries(adapter, start)


def test_an_alteration_is_noticed_that_comes_while_tables_are_read(source: Source) -> None:
    """After alterations were counted, and long before the tables are read, as on a slow server."""
    source.run(ITEM.replace("name", "name VARCHAR(30), more"))
    time.sleep(3.1)
    adapter, start = source.prepared("trigger", "item")
    read = adapter._capture._read_tables

    def slowly(connection: Connection) -> SourceTables:
        source.run(*ALTERED["made again"])
        time.sleep(3.1)
        return read(connection)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(adapter._capture, "_read_tables", slowly)
        position(adapter)
    for again in (adapter, source.adapter("trigger")):
        with pytest.raises(SchemaChangedError, match=r"shop\.item was altered without"):
            entries(again, start)


def test_a_restart_of_the_server_is_no_alteration(own_server: MariaDBServer) -> None:
    """Its count begins anew, also for a table that had just been made."""
    source = Source(own_server)
    try:
        source.run(ITEM, OTHER, OTHER_INSTANT.format(0))
        _, start = source.prepared("trigger", "item")
        time.sleep(1.1)  # runs are told apart by the second in which they began
        own_server.restart()
        source.run("INSERT INTO item VALUES (1, 'x')")
        assert ids(source.adapter("trigger"), start) == [[1]]
        time.sleep(1.1)
        source.run(*ALTERED["made again"])
        own_server.restart()
        with pytest.raises(SchemaChangedError, match=r"shop\.item was altered without"):
            entries(source.adapter("trigger"), start)
    finally:
        source.close()


def test_what_an_earlier_version_noted_of_a_table_is_completed(source: Source) -> None:
    source.run(ITEM)
    time.sleep(3.1)
    adapter, start = source.prepared("trigger", "item")
    source.run("UPDATE _lockstep_relations SET identity = SUBSTRING_INDEX(identity, '|', 1)")
    assert entries(adapter, start) == []
    source.run(*ALTERED["made again"])
    with pytest.raises(SchemaChangedError, match=r"shop\.item was altered without"):
        entries(adapter, start)


def plain_user(source: Source) -> None:
    """A user that has every right but PROCESS."""
    source.run(
        f"CREATE OR REPLACE USER plain@'%' IDENTIFIED BY '{SECRET}'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, TRIGGER ON `{source.database}`.* TO plain@'%'",
    )


def test_where_truncate_would_go_unnoticed_prepare_is_refused(source: Source) -> None:
    source.run(ITEM)
    plain_user(source)
    with pytest.raises(ConfigurationError, match="without the right PROCESS no TRUNCATE is noticed"):
        source.adapter("trigger", "plain", SECRET).prepare(["item"])
    source.adapter("trigger", "plain", SECRET, truncate="never").prepare(["item"])
    # With the right, what was not known when it was prepared is noted from then on.
    adapter = source.adapter("trigger")
    assert len(adapter.prepare(["item"])) == 1
    assert adapter.prepare(["item"]) == []
    start = position(adapter)
    source.run("TRUNCATE TABLE item")
    with pytest.raises(SchemaChangedError, match="was truncated"):
        entries(adapter, start)


def test_a_right_that_is_withdrawn_is_missed(source: Source) -> None:
    source.run(ITEM)
    plain_user(source)
    source.run("GRANT PROCESS ON *.* TO plain@'%'")
    adapter = source.adapter("trigger", "plain", SECRET)
    adapter.prepare(["item"])
    start = position(adapter)
    source.run("REVOKE PROCESS ON *.* FROM plain@'%'")
    adapter = source.adapter("trigger", "plain", SECRET)
    with pytest.raises(SchemaChangedError, match="without the right PROCESS"):
        entries(adapter, start)
    with pytest.raises(ConfigurationError, match="without the right PROCESS"):
        adapter.prepare(["item"])
    source.run("GRANT PROCESS ON *.* TO plain@'%'")
    assert entries(source.adapter("trigger", "plain", SECRET), start) == []


def test_a_promise_not_to_truncate_that_is_broken_is_noticed_by_the_counter(source: Source) -> None:
    source.run(COUNTED, "INSERT INTO item (name) VALUES ('x'), ('y')")
    plain_user(source)
    adapter = source.adapter("trigger", "plain", SECRET, truncate="never")
    adapter.prepare(["item"])
    start = position(adapter)
    source.run("TRUNCATE TABLE item")
    with pytest.raises(SchemaChangedError, match="was truncated"):
        entries(adapter, start)
    # Noted in the source: an adapter that never saw the counter knows it, too.
    with pytest.raises(SchemaChangedError, match="was truncated"):
        entries(source.adapter("trigger", "plain", SECRET, truncate="never"), start)


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


def test_triggers_that_were_dropped_for_a_while_are_noticed_and_mended(source: Source) -> None:
    """Triggers cannot be disabled: who loads rows without them makes them again."""
    source.run(ITEM)
    adapter, start = source.prepared("trigger", "item")
    source.run("INSERT INTO item VALUES (1, 'x')")
    assert ids(adapter, start) == [[1]]
    ((*_, made, _, _, _, _),) = source.run("SHOW CREATE TRIGGER _lockstep_1_insert")
    source.run("DROP TRIGGER _lockstep_1_insert", "INSERT INTO item VALUES (2, 'unseen')", made)
    for again in (adapter, source.adapter("trigger")):
        with pytest.raises(SchemaChangedError, match="had its triggers made again"):
            entries(again, start)
    adapter.prepare(["item"])
    with pytest.raises(SchemaChangedError, match="was prepared anew"):
        entries(adapter, start)
    after = position(adapter)
    source.run("INSERT INTO item VALUES (3, 'x')")
    assert ids(adapter, after) == [[3]]
    assert adapter.prepare(["item"]) == []


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


UNSEEN = {
    "truncated": ("TRUNCATE TABLE item", "INSERT INTO item VALUES (7, 'new')"),
    "rebuilt": (
        "CREATE TABLE copy LIKE item",
        "INSERT INTO copy SELECT * FROM item WHERE id > 1",
        "DROP TABLE item",
        "RENAME TABLE copy TO item",
        "INSERT INTO item VALUES (7, 'new')",
    ),
}


@pytest.mark.parametrize("story", UNSEEN)
def test_what_no_trigger_saw_is_lost_also_to_a_reader_at_the_end(
    source: Source, capture: str, story: str
) -> None:
    """Prepare mends it, also when nobody has noticed it before."""
    source.run(ITEM, OTHER)
    adapter, _ = source.prepared(capture, "item", "other")
    source.run("INSERT INTO item VALUES (1, 'x'), (2, 'y')")
    end = position(adapter)
    assert entries(adapter, end) == []
    adapter.close()
    source.run(*UNSEEN[story])
    adapter = source.adapter(capture)
    adapter.prepare(["other"])
    with pytest.raises(ResyncRequiredError, match=r"shop\.item"):
        entries(adapter, end)
    again = position(adapter)
    assert adapter.prepare(["item", "other"]) == []
    source.run("DELETE FROM item WHERE id = 7")
    assert ids(adapter, again) == [[7]]


def test_a_table_that_was_gone_is_not_taken_for_the_one_of_before(source: Source, capture: str) -> None:
    """Another relation is prepared meanwhile, by which the one that is gone is forgotten."""
    source.run(ITEM, OTHER)
    adapter, _ = source.prepared(capture, "item", "other")
    source.run("INSERT INTO item VALUES (1, 'x')")
    end = position(adapter)
    source.run("DROP TABLE item")
    other = source.adapter(capture)
    other.prepare(["other"])
    known = position(other)
    source.run(ITEM, "INSERT INTO item VALUES (2, 'in no log')")
    for again in ((), ("item",)):
        adapter.prepare(again)
        with pytest.raises(PositionTrimmedError, match="a relation was lost and prepared again"):
            entries(adapter, end)
    # A relation that is new to everybody who is still there costs nobody the place.
    source.run("INSERT INTO item VALUES (3, 'z')")
    assert ids(adapter, known) == [[3]]


def test_wherever_mending_is_interrupted_the_loss_stays_known(source: Source, capture: str) -> None:
    source.run(ITEM, OTHER)
    adapter, _ = source.prepared(capture, "item", "other")
    for done in itertools.count():
        source.run(f"INSERT INTO item (id) VALUES ({done})")
        end = position(adapter)
        source.run(f"ALTER TABLE item ADD COLUMN more_{done} INT")
        steps = adapter.prepare(["other"], dry_run=True)
        if done > len(steps):
            break
        # The connection ends with them: what was not committed is rolled back.
        source.run(*steps[:done])
        adapter.prepare(["other"])
        with pytest.raises(ResyncRequiredError):
            entries(adapter, end)
        start = position(adapter)
        source.run(f"DELETE FROM item WHERE id = {done}")
        assert ids(adapter, start) == [[done]]
        assert adapter.prepare(["item", "other"]) == []


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
