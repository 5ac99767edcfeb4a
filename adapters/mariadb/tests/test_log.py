"""Log capture: what else is in a binlog, and what happens to one."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from adapters.mariadb import binlog, images, wire
from adapters.mariadb.binlog import Place
from adapters.mariadb.tests.conftest import Source, entries, position
from adapters.servers.mariadb import MariaDBServer, why_not
from algebra.errors import (
    ConfigurationError,
    PositionTrimmedError,
    ResyncRequiredError,
    SchemaChangedError,
)

ITEM = "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(30))"


def test_entries_go_on_over_the_files_of_the_binlog(source: Source) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("log", "item")
    seen = [start]
    for number in range(3):
        source.run(f"INSERT INTO item VALUES ({number}, 'x')", "FLUSH BINARY LOGS")
        seen.append(position(adapter))
    assert seen == sorted(seen)
    for skipped, after in enumerate(seen):
        found = entries(adapter, after)
        assert [list(t.deltas["item"].to_dict()) for t in found] == [[(n, "x")] for n in range(skipped, 3)]
    again = source.adapter("log")
    assert len(entries(again, entries(adapter, start)[0].position)) == 2


def test_a_file_that_is_longer_than_its_events_can_tell_is_refused(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 4 GiB; made shorter here."""
    source.run(ITEM, "FLUSH BINARY LOGS")
    adapter, start = source.prepared("log", "item")
    monkeypatch.setattr(binlog, "MOST_OFFSET", Place.of(start.ordinal).offset + 2000)
    source.run("INSERT INTO item SELECT seq, REPEAT('x', 30) FROM seq_1_to_100")
    for _ in range(2):
        with pytest.raises(ResyncRequiredError, match="longer than 4 GiB"):
            entries(adapter, start)
        source.run("FLUSH BINARY LOGS")
    refreshed = position(adapter)
    source.run("INSERT INTO item VALUES (1000, 'y')", "FLUSH BINARY LOGS")
    assert len(entries(adapter, refreshed)) == 1


def test_images_of_any_size_are_taken_apart_in_portions(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One binary array ends at 2 GiB."""
    monkeypatch.setattr(images, "PORTION_BYTES", 100)
    source.run(
        "CREATE TABLE doc (id INT PRIMARY KEY, t TEXT, l VARCHAR(60) CHARACTER SET latin1, b BINARY(5))"
    )
    adapter, start = source.prepared("log", "doc")
    rows = [
        (n, None if n % 7 == 3 else "ü" * (n * 13 % 200), "é" * (n % 50), b"x" * (n % 5)) for n in range(60)
    ]
    connection = source.connect(autocommit=False)
    connection.cursor().executemany("INSERT INTO doc VALUES (%s, %s, %s, %s)", rows)
    connection.commit()
    (entry,) = entries(adapter, start)
    assert entry.deltas["doc"].to_dict() == {(*row[:3], row[3].ljust(5, b"\0")): 1 for row in rows}


def test_values_are_found_however_far_they_lie_in_a_buffer() -> None:
    far = 1 << 31
    found = wire.slices(bytes(far + 7), np.array([far, far + 3]), np.array([3, 4]), None)
    assert found.to_pylist() == [bytes(3), bytes(4)]


def test_what_other_tables_and_databases_do_is_not_reported(source: Source) -> None:
    other = source.server.create_database()
    source.run(ITEM, "CREATE TABLE loud (id INT)", f"CREATE TABLE `{other}`.item (id INT)")
    adapter, start = source.prepared("log", "item")
    source.run("INSERT INTO loud VALUES (1)", f"INSERT INTO `{other}`.item VALUES (1)")
    source.run(f"TRUNCATE TABLE `{other}`.item", f"DROP TABLE `{other}`.item", "TRUNCATE TABLE loud")
    assert position(adapter) > start
    assert entries(adapter, start) == []


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX by_name ON item (name)",
        "ALTER TABLE item ADD INDEX by_name (name)",
        "CREATE TABLE copy LIKE item",
        "CREATE TABLE item_too AS SELECT * FROM item",
        "ANALYZE TABLE item",
        "ALTER TABLE `item` ADD UNIQUE INDEX by_name (name) COMMENT 'a, b' -- , DROP name",
        "ALTER TABLE item COMMENT 'it''s -- no, DROP TABLE item'",
    ],
)
def test_statements_that_change_no_row_and_no_column_are_no_matter(source: Source, statement: str) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("log", "item")
    source.run("INSERT INTO item VALUES (1, 'x')", statement, "INSERT INTO item VALUES (2, 'y')")
    assert len(entries(adapter, start)) == 2


def test_truncate_is_told_and_over_once_the_relation_is_read_again(source: Source) -> None:
    source.run(ITEM, "INSERT INTO item VALUES (1, 'x')")
    adapter, start = source.prepared("log", "item")
    source.run("TRUNCATE TABLE item")
    for _ in range(2):
        with pytest.raises(ResyncRequiredError, match=r"shop\.item was truncated"):
            entries(adapter, start)
    after = position(adapter)
    source.run("INSERT INTO item VALUES (2, 'y')")
    assert [t.deltas["item"].to_dict() for t in entries(adapter, after)] == [{(2, "y"): 1}]


EMPTYING = (
    "TRUNCATE TABLE {}",
    "TRUNCATE /* a # b */ TABLE {} -- `c",
    "/*!50000 TRUNCATE */ /*M! TABLE */ {}",
    "SET STATEMENT max_statement_time = LOCATE(' FOR ', 'x') + 9 FOR TRUNCATE TABLE {}",
)


@pytest.mark.parametrize("statement", EMPTYING)
@pytest.mark.parametrize("name", ["item", "it#em", "order items", "a -- b", "/*c*/", "it's", 'say "x', "b\\"])
def test_truncate_is_told_whatever_the_name_and_the_text(source: Source, name: str, statement: str) -> None:
    source.run(ITEM.replace("item", f"`{name}`"), f"INSERT INTO `{name}` VALUES (1, 'x')")
    adapter, start = source.prepared("log", name)
    for mode, quote in (("", "`"), ("ANSI_QUOTES", '"')):
        quoted = name.replace(quote, quote * 2)
        source.run(f"SET sql_mode = '{mode}'", statement.format(f"{quote}{quoted}{quote}"))
        with pytest.raises(ResyncRequiredError, match="was truncated"):
            entries(adapter, start)
        start = position(adapter)


@pytest.mark.parametrize("name", ["preis€", "e\u0301te\u0301", "a·b", "“q”", "a\u00a0b", "日本"])
def test_truncate_is_told_of_names_without_quotes(source: Source, name: str) -> None:
    source.run(ITEM.replace("item", name), f"INSERT INTO {name} VALUES (1, 'x')")
    adapter, start = source.prepared("log", name)
    source.run(f"TRUNCATE {name}")
    with pytest.raises(ResyncRequiredError, match="was truncated"):
        entries(adapter, start)


@pytest.mark.parametrize("written", ["tä", "`tä`"])
def test_truncate_is_told_in_whatever_character_set(source: Source, written: str) -> None:
    source.run(ITEM.replace("item", "tä"), "CREATE TABLE other (id INT)", "INSERT INTO tä VALUES (1, 'x')")
    adapter, start = source.prepared("log", "tä")
    connection = source.connect()
    connection.set_character_set("latin1")
    writer = connection.cursor()
    writer.execute("TRUNCATE TABLE other")
    assert entries(adapter, start) == []
    writer.execute(f"TRUNCATE TABLE {written}")
    with pytest.raises(ResyncRequiredError, match="was truncated"):
        entries(adapter, start)


def test_rows_that_an_index_takes_away_are_noticed(source: Source) -> None:
    source.run(ITEM, "INSERT INTO item VALUES (1, 'x'), (2, 'x')")
    adapter, start = source.prepared("log", "item")
    source.run("ALTER IGNORE TABLE item ADD UNIQUE INDEX by_name (name)")
    assert source.run("SELECT COUNT(*) FROM item") == ((1,),)
    with pytest.raises(SchemaChangedError, match=r"shop\.item was altered"):
        entries(adapter, start)


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE item MODIFY name VARCHAR(10)", "ALTER TABLE item MODIFY name VARCHAR(30)"],
        ["DROP TABLE item", ITEM],
        ["RENAME TABLE item TO gone", "RENAME TABLE gone TO item"],
    ],
)
def test_a_shape_that_changed_and_changed_back_is_noticed(source: Source, statements: list[str]) -> None:
    source.run(ITEM, "INSERT INTO item VALUES (1, 'longer than ten letters')")
    adapter, start = source.prepared("log", "item")
    source.run("SET sql_mode = ''", *[s.replace("VARCHAR(10)", "VARCHAR(40)") for s in statements])
    with pytest.raises(SchemaChangedError, match=r"shop\.item was altered, renamed or dropped"):
        entries(adapter, start)


def test_changes_that_are_logged_as_text_are_noticed(source: Source) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("log", "item")
    source.run("SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO item VALUES (1, 'x')")
    with pytest.raises(ResyncRequiredError, match="logged as text"):
        entries(adapter, start)


def test_rows_that_are_loaded_from_a_file_as_text_are_noticed(source: Source, tmp_path: Path) -> None:
    source.run(ITEM, "CREATE TABLE other (id INT, name TEXT)")
    adapter, start = source.prepared("log", "item")
    (tmp_path / "rows").write_text("1\tx\n")
    with source.connect(local_infile=True).cursor() as writer:
        writer.execute("SET SESSION binlog_format = 'STATEMENT'")
        load = f"LOAD DATA LOCAL INFILE '{tmp_path}/rows' INTO TABLE"
        writer.execute(f"{load} other")
        assert entries(adapter, start) == []
        writer.execute(f"{load} item")
    with pytest.raises(ResyncRequiredError, match=r"shop\.item was changed .* logged as text"):
        entries(adapter, start)


def test_incomplete_row_images_are_noticed(source: Source) -> None:
    source.run(ITEM, "INSERT INTO item VALUES (1, 'x')")
    adapter, start = source.prepared("log", "item")
    source.run("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE item SET name = 'y'")
    with pytest.raises(ResyncRequiredError, match="binlog_row_image is not FULL"):
        entries(adapter, start)


def test_transactions_of_two_phases_are_refused(source: Source) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("log", "item")
    source.run(
        "XA START 'a'", "INSERT INTO item VALUES (1, 'x')", "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'"
    )
    with pytest.raises(ResyncRequiredError, match=r"two phases \(XA\)"):
        entries(adapter, start)


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("binlog_format", "'MIXED'", "binlog_format = ROW"),
        ("binlog_row_image", "'MINIMAL'", "binlog_row_image = FULL"),
        ("log_bin_compress", "1", "log_bin_compress = OFF"),
    ],
)
def test_settings_that_hide_changes_are_refused(
    source: Source, setting: str, value: str, remedy: str
) -> None:
    source.run(ITEM)
    (before,) = source.run(f"SELECT @@global.{setting}")[0]
    source.run(f"SET GLOBAL {setting} = {value}")
    try:
        with pytest.raises(ConfigurationError, match=remedy):
            source.adapter("log").prepare(["item"])
    finally:
        source.run(f"SET GLOBAL {setting} = {before if isinstance(before, int) else repr(before)}")
    assert not [name for (name,) in source.run("SHOW TABLES") if name.startswith("_lockstep")]


@pytest.mark.parametrize("setting", ["--skip-log-bin", "--binlog-ignore-db=shop", "--binlog-do-db=other"])
def test_what_was_kept_out_of_the_binlog_for_a_while_is_lost(setting: str) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with MariaDBServer.started() as server:
        source = Source(server, "shop")
        source.run(ITEM)
        _, start = source.prepared("log", "item")
        usual, server.settings = server.settings, (setting,)
        server.restart()
        source.run("INSERT INTO item VALUES (1, 'unseen')")
        with pytest.raises(ConfigurationError, match="binlog"):
            entries(source.adapter("log"), start)
        with pytest.raises(ConfigurationError, match=r"binlog|log_bin"):
            source.adapter("log").prepare(["item"])
        server.settings = usual
        server.restart()
        with pytest.raises(PositionTrimmedError):
            entries(source.adapter("log"), start)
        source.close()


def test_columns_that_the_binlog_obscures_are_refused(source: Source) -> None:
    source.run("CREATE TABLE item (id INT PRIMARY KEY, mark UUID, kanji TEXT CHARACTER SET sjis)")
    with pytest.raises(ConfigurationError, match=r"item\.mark has type uuid"):
        source.adapter("log").prepare(["item"])
    with pytest.raises(ConfigurationError, match=r"item\.kanji has the character set sjis"):
        source.adapter("log", exclude=["item.mark"]).prepare(["item"])
    adapter, start = source.prepared("log", "item", exclude=["item.mark", "item.kanji"])
    source.run("INSERT INTO item VALUES (1, UUID(), 'x')")
    assert [t.deltas["item"].to_dict() for t in entries(adapter, start)] == [{(1,): 1}]


def test_marks_do_not_pile_up(source: Source) -> None:
    source.run(ITEM)
    adapter, start = source.prepared("log", "item")
    open_one = source.connect(autocommit=False)
    open_one.cursor().execute("INSERT INTO _lockstep_global (id, participants) VALUES ('b', 'shop')")
    source.run("INSERT INTO _lockstep_global (id, participants) VALUES ('a', 'shop')")
    before = position(adapter)
    adapter.acknowledge(before)
    assert source.run("SELECT COUNT(*) FROM _lockstep_global") == ((0,),)
    open_one.commit()
    found = entries(adapter, start)
    assert [t.part_of.id for t in found if t.part_of is not None] == ["a", "b"]
    assert [t.part_of.id for t in entries(adapter, before) if t.part_of is not None] == ["b"]


def test_other_tables_after_a_crash_are_not_taken_for_ours(own_server: MariaDBServer) -> None:
    """A server numbers the tables in its binlog anew from each start, and a crash leaves no mark of it."""
    source = Source(own_server)
    try:
        source.run(ITEM)
        others = [f"other_{number}" for number in range(60)]
        source.run(*(f"CREATE TABLE {other} LIKE item" for other in others))
        _, start = source.prepared("log", "item")
        source.run("INSERT INTO item VALUES (1, 'x')")
        own_server.kill()
        own_server.start()
        source.run(*(f"INSERT INTO {other} VALUES (7, 'not ours')" for other in others))
        source.run("INSERT INTO item VALUES (2, 'y')")
        found = entries(source.adapter("log"), start)
        assert [list(t.deltas["item"].to_dict()) for t in found] == [[(1, "x")], [(2, "y")]]
    finally:
        source.close()


@pytest.mark.parametrize("asked", [False, True])
def test_after_a_reset_positions_are_of_the_new_binlog(own_server: MariaDBServer, asked: bool) -> None:
    """Also those of an adapter that knew the old one, whether it was asked for changes meanwhile or not."""
    source = Source(own_server)
    try:
        source.run(ITEM)
        adapter, start = source.prepared("log", "item")
        source.run("INSERT INTO item VALUES (1, 'x')")
        (entry,) = entries(adapter, start)
        time.sleep(1.1)  # files are told apart by the second in which they were made
        source.run("RESET MASTER", "INSERT INTO item VALUES (2, 'y')")
        if asked:
            for _ in range(2):
                with pytest.raises(PositionTrimmedError):
                    entries(adapter, entry.position)
        refreshed = position(adapter)
        assert refreshed == position(source.adapter("log"))
        assert entries(adapter, refreshed) == []
        source.run("INSERT INTO item VALUES (3, 'z')")
        assert len(entries(adapter, refreshed)) == 1
    finally:
        source.close()


def test_a_binlog_that_was_purged_reset_or_survived_a_crash(own_server: MariaDBServer) -> None:
    source = Source(own_server)
    try:
        source.run(ITEM)
        _, start = source.prepared("log", "item")
        source.run("INSERT INTO item VALUES (1, 'x')")
        own_server.kill()
        own_server.start()
        source.run("INSERT INTO item VALUES (2, 'y')")
        found = entries(source.adapter("log"), start)
        assert [list(t.deltas["item"].to_dict()) for t in found] == [[(1, "x")], [(2, "y")]]

        ((file, *_),) = source.run("SHOW MASTER STATUS")
        source.run(f"PURGE BINARY LOGS TO '{file}'")
        fresh = source.adapter("log")
        with pytest.raises(PositionTrimmedError, match="binlog"):
            entries(fresh, start)
        now = position(fresh)
        source.run("INSERT INTO item VALUES (3, 'z')")
        assert len(entries(fresh, now)) == 1

        own_server.kill()
        own_server.start()
        source.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        with pytest.raises(ResyncRequiredError, match="sync_binlog = 1"):
            entries(source.adapter("log"), now)
        fresh = source.adapter("log")

        now = position(fresh)
        source.run("RESET MASTER", *(f"INSERT INTO item VALUES ({n}, '{'x' * 30}')" for n in range(10, 30)))
        source.run(*(["FLUSH BINARY LOGS"] * 4), "INSERT INTO item VALUES (99, 'x')")
        with pytest.raises(PositionTrimmedError):
            entries(source.adapter("log"), now)
    finally:
        source.close()
