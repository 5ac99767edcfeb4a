"""What tables of PostgreSQL do that the conformance kit does not know, in both captures."""

from __future__ import annotations

import psycopg
import pytest

from adapters.postgresql.tests.conftest import CAPTURES, MakeAdapter, Sql
from adapters.postgresql.tests.support import Follower
from adapters.servers.postgresql import PostgresServer
from algebra.errors import SchemaChangedError

pytestmark = pytest.mark.parametrize("capture", CAPTURES)

PARTITIONED = (
    "CREATE TABLE sale (id int, day date, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
    "CREATE TABLE sale_1 PARTITION OF sale FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')",
    "CREATE TABLE sale_2 PARTITION OF sale FOR VALUES FROM ('2025-01-01') TO ('2026-01-01') PARTITION"
    " BY LIST (id)",
    "CREATE TABLE sale_2a PARTITION OF sale_2 FOR VALUES IN (1, 2, 3)",
    "CREATE TABLE sale_2b PARTITION OF sale_2 DEFAULT",
)


def test_truncate_removes_every_row(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql(
        "CREATE TABLE item (id int PRIMARY KEY, name text)",
        "CREATE TABLE part (item int REFERENCES item, n int)",
    )
    sql(
        "INSERT INTO item SELECT i, 'it''s \"' || i FROM generate_series(1, 1200) i",
        "INSERT INTO part VALUES (1, 2)",
    )
    adapter = make(capture)
    adapter.prepare(["item", "part"])
    follower = Follower(adapter)
    sql("TRUNCATE item, part")
    sql(
        "BEGIN",
        "INSERT INTO part SELECT NULL, 7",
        "TRUNCATE part",
        "INSERT INTO part VALUES (NULL, 8)",
        "COMMIT",
    )
    sql(
        "BEGIN",
        "SAVEPOINT s",
        "TRUNCATE part",
        "ROLLBACK TO s",
        "INSERT INTO part VALUES (NULL, 9)",
        "COMMIT",
    )
    first, *_ = follower.follow()
    assert sum(first["item"].values()) == -1200
    assert len(follower.entries) == 3
    sql("TRUNCATE item, part", "TRUNCATE item, part")
    follower.follow()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_truncate_that_takes_rows_it_does_not_see_is_noticed(
    capture: str, level: str, sql: Sql, make: MakeAdapter, server: PostgresServer, database: str
) -> None:
    """Its transaction's snapshot may be older than its lock."""
    sql("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    adapter = make(capture)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    with server.connect(database) as other:
        other.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        assert other.execute("SELECT count(*) FROM item").fetchall() == [(1,)]
        sql("INSERT INTO item VALUES (2)")
        other.execute("TRUNCATE item")
        other.execute("COMMIT")
    for _ in range(2):
        with pytest.raises(SchemaChangedError, match="item"):
            follower.follow()
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (3)", "TRUNCATE item")
    assert len(follower.follow()) == 2


def test_a_database_in_another_encoding(capture: str, server: PostgresServer, make: MakeAdapter) -> None:
    """Of a TRUNCATE and of a mark, the log tells by messages, which are not converted."""
    database = "latin"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {database} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with server.connect(database) as connection:
            connection.execute("CREATE TABLE item (id int, name text)")
            adapter = make(capture, url=server.url(database))
            adapter.prepare(["item"])
            follower = Follower(adapter)
            start = follower.position
            connection.execute("INSERT INTO item VALUES (1, 'größe')")
            connection.execute("TRUNCATE item")
            connection.execute("INSERT INTO _lockstep_global VALUES ('é', 'shop')")
        assert follower.follow() == [
            {"item": {(1, "größe"): 1}},
            {"item": {(1, "größe"): -1}},
            {},
        ]
        with adapter.snapshot() as snapshot:
            marks = snapshot.changes(start).part_of.values()
        assert [mark.id for mark in marks] == ["é"]
        adapter.close()
    finally:
        server.drop_database(database)


def test_large_values_that_an_update_leaves_alone_are_kept(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql("CREATE TABLE doc (id int PRIMARY KEY, size int, body text, more bytea)")
    sql("ALTER TABLE doc ALTER body SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL")
    adapter = make(capture)
    adapter.prepare(["doc"])
    follower = Follower(adapter)
    large = (
        "SELECT i, 0, repeat(i || ' long ', 20000), decode(repeat('00ff', 9000), 'hex')"
        " FROM generate_series(1, 3) i"
    )
    sql(f"INSERT INTO doc {large}")
    sql(
        "UPDATE doc SET size = 5 WHERE id < 3",
        "UPDATE doc SET body = 'short' WHERE id = 1",
        "UPDATE doc SET more = NULL",
    )
    sql("DELETE FROM doc WHERE id = 2")
    follower.follow()
    assert len(follower.entries) == 5


def test_rows_of_partitions_are_the_roots(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql(*PARTITIONED)
    adapter = make(capture)
    assert set(adapter.catalog().relations) == {"sale"}
    adapter.prepare(["sale"])
    follower = Follower(adapter)
    sql("INSERT INTO sale VALUES (1, '2024-05-05', 'a'), (2, '2025-05-05', 'b'), (9, '2025-06-06', 'c')")
    sql("INSERT INTO sale_1 VALUES (5, '2024-07-07', 'direct')")
    sql(
        "UPDATE sale SET day = day + 366 WHERE id = 1", "UPDATE sale SET id = id + 1 WHERE day > '2025-01-01'"
    )
    sql("UPDATE sale_2 SET note = upper(note)", "DELETE FROM sale_2b WHERE note = 'C'")
    sql("TRUNCATE sale_1", "INSERT INTO sale_2a VALUES (1, '2025-02-02', 'again')", "TRUNCATE sale")
    assert len(follower.follow()) == 9


def test_partitions_with_their_columns_in_another_order(capture: str, sql: Sql, make: MakeAdapter) -> None:
    """What they log by themselves, and what TRUNCATE does, is told as rows of the root, too."""
    sql(
        "CREATE TABLE sale (id int, buyer text, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE middle (note text, id int, gone int, buyer text) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf (note text, buyer text, gone int, id int)",
        "ALTER TABLE middle DROP gone",
        "ALTER TABLE leaf DROP gone",
        "ALTER TABLE middle ATTACH PARTITION leaf FOR VALUES FROM (0) TO (100)",
        "ALTER TABLE sale ATTACH PARTITION middle FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE plain PARTITION OF sale FOR VALUES FROM (100) TO (200)",
    )
    adapter = make(capture)
    adapter.prepare(["sale"])
    follower = Follower(adapter)
    for place, table in enumerate(("sale", "middle", "leaf")):
        sql(f"INSERT INTO {table} (id, buyer, note) VALUES ({place}, 'Ann', NULL)")
    sql(
        "INSERT INTO plain VALUES (100, 'Bob', 'x')",
        "UPDATE leaf SET note = 'n'",
        "DELETE FROM middle WHERE id = 1",
    )
    sql("UPDATE leaf SET note = 'm' WHERE id = 99", "UPDATE sale SET id = id + 100 WHERE id = 0")
    assert len(follower.follow()) == 7
    sql("TRUNCATE leaf", "TRUNCATE sale")
    assert len(follower.follow()) == 2
    assert not follower.tables["sale"]


def test_a_partition_that_comes_or_goes_is_drift(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql(*PARTITIONED, "INSERT INTO sale VALUES (1, '2024-05-05', 'a')")
    adapter = make(capture)
    adapter.prepare(["sale"])
    follower = Follower(adapter)
    sql("ALTER TABLE sale DETACH PARTITION sale_1")
    with pytest.raises(SchemaChangedError, match=r"sale lost partition public\.sale_1"):
        follower.follow()
    adapter.prepare(["sale"])
    follower = Follower(adapter)
    sql("CREATE TABLE sale_3 PARTITION OF sale FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')")
    with pytest.raises(SchemaChangedError, match=r"sale got partition public\.sale_3"):
        follower.follow()
    adapter.prepare(["sale"])
    follower = Follower(adapter)
    sql("INSERT INTO sale VALUES (3, '2026-05-05', 'c')", "TRUNCATE sale_3")
    assert len(follower.follow()) == 2


def test_a_partition_that_is_no_longer_logged_is_noticed(capture: str, sql: Sql, make: MakeAdapter) -> None:
    """The log does not tell of its rows, and after a crash it is empty."""
    sql(*PARTITIONED, "INSERT INTO sale VALUES (1, '2024-05-05', 'a')")
    adapter = make(capture)
    adapter.prepare(["sale"])
    follower = Follower(adapter)
    if capture == "log":
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            sql("ALTER TABLE sale_1 SET UNLOGGED")
        sql("ALTER PUBLICATION _lockstep DROP TABLE sale_1")
    sql("ALTER TABLE sale_1 SET UNLOGGED", "INSERT INTO sale VALUES (2, '2024-05-05', 'b')")
    with adapter.snapshot() as snapshot, pytest.raises(SchemaChangedError, match=r"shop\.sale was dropped"):
        snapshot.changes(follower.position)


def test_copy_upserts_merge_and_cascades(capture: str, sql: Sql, make: MakeAdapter, owner: object) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, n int)")
    sql(
        "CREATE TABLE part (id int PRIMARY KEY, item int REFERENCES item ON DELETE CASCADE ON UPDATE CASCADE)"
    )
    adapter = make(capture)
    adapter.prepare(["item", "part"])
    follower = Follower(adapter)
    with owner.cursor().copy("COPY item FROM STDIN") as copy:  # type: ignore[attr-defined]
        for number in range(50):
            copy.write_row((number, number))
    sql("INSERT INTO part SELECT i, i / 2 FROM generate_series(0, 90) i")
    sql("INSERT INTO item VALUES (1, 0), (99, 0) ON CONFLICT (id) DO UPDATE SET n = item.n + 100")
    sql("INSERT INTO item VALUES (1, 0), (98, 0) ON CONFLICT DO NOTHING")
    sql(
        "MERGE INTO item USING (VALUES (1), (2), (200)) AS v(id) ON v.id = item.id"
        " WHEN MATCHED AND v.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET n = -1"
        " WHEN NOT MATCHED THEN INSERT VALUES (v.id, 7)"
    )
    sql("UPDATE item SET id = id + 1000 WHERE id < 10", "DELETE FROM item WHERE id > 1000")
    entries = follower.follow()
    assert len(entries) == 7
    assert set(entries[-1]) == {"item", "part"}


def test_schemas_and_dropped_columns(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql(
        "CREATE SCHEMA crm",
        'CREATE TABLE crm."odd table" (gone int, id int PRIMARY KEY, v text)',
        "CREATE TABLE v (a int)",
    )
    sql('ALTER TABLE crm."odd table" DROP gone')
    adapter = make(capture)
    adapter.prepare(["crm.odd table", "v"])
    follower = Follower(adapter)
    sql(
        "INSERT INTO crm.\"odd table\" VALUES (1, 'x')",
        "UPDATE crm.\"odd table\" SET v = 'y'",
        "INSERT INTO v VALUES (1)",
    )
    assert len(follower.follow()) == 3
    other = make(capture, schema="crm")
    assert set(other.catalog().relations) == {"odd table", "public.v"}


def test_inheritance_and_unlogged_tables_are_not_shown(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql(
        "CREATE TABLE parent (a int)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE UNLOGGED TABLE quick (a int)",
        "CREATE TABLE quick_too (a int) PARTITION BY LIST (a)",
        "CREATE UNLOGGED TABLE quick_too_1 PARTITION OF quick_too DEFAULT",
    )
    sql("CREATE TABLE plain (a int)", "CREATE VIEW seen AS SELECT * FROM plain")
    assert set(make(capture).catalog().relations) == {"plain"}


def test_an_open_snapshot_keeps_truncate_waiting(capture: str, sql: Sql, make: MakeAdapter) -> None:
    import psycopg

    sql("CREATE TABLE item (id int)", "INSERT INTO item VALUES (1)")
    adapter = make(capture)
    adapter.prepare(["item"])
    with adapter.snapshot():
        sql("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            sql("TRUNCATE item")
    sql("TRUNCATE item")


def test_settings_of_the_writer_do_not_change_what_is_logged(
    capture: str, sql: Sql, make: MakeAdapter
) -> None:
    sql("CREATE TABLE item (f float8, r float4, d date, t timestamptz, i interval, b bytea)")
    adapter = make(capture)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("SET extra_float_digits = -5; SET DateStyle = 'German'; SET TimeZone = 'Asia/Kolkata'")
    sql("SET IntervalStyle = 'iso_8601'; SET bytea_output = 'escape'")
    value = (
        "(0.1 + 0.2::float8, 1.1::float4 / 3, '2024-02-03', '2024-07-01 12:00:00.123456',"
        " '1 year 2 days', '\\x00ff41')"
    )
    sql(
        f"INSERT INTO item VALUES {value}, {value}",
        "DELETE FROM item",
        f"INSERT INTO item VALUES {value}",
        "TRUNCATE item",
    )
    assert len(follower.follow()) == 4
