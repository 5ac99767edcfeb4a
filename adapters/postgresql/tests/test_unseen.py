"""What changes rows past every log and trigger is noticed; what only looks like it costs nobody the place."""

from __future__ import annotations

import subprocess

import pytest

from adapters.postgresql.tests.conftest import CAPTURES, MakeAdapter, Sql
from adapters.postgresql.tests.harnesses import OBJECTS
from adapters.postgresql.tests.support import Follower
from adapters.servers.postgresql import PostgresServer
from algebra.errors import ConfigurationError, PositionTrimmedError, SchemaChangedError

ITEM = (
    "CREATE TABLE item (id int CONSTRAINT item_key PRIMARY KEY, v int, w int)",
    "INSERT INTO item VALUES (1, 10, 1), (2, 20, 2)",
)
SALE = (
    "CREATE TABLE sale (id int, v int) PARTITION BY LIST (id)",
    "CREATE TABLE sale_1 PARTITION OF sale DEFAULT",
    "INSERT INTO sale VALUES (1, 10)",
)
UNSEEN = {
    "computed": ["ALTER TABLE item ALTER v TYPE int USING v * 100"],
    "made again": ["ALTER TABLE item DROP w", "ALTER TABLE item ADD w int DEFAULT 5"],
    "exchanged": [
        "ALTER TABLE item RENAME v TO x",
        "ALTER TABLE item RENAME w TO v",
        "ALTER TABLE item RENAME x TO w",
    ],
    "computed in a partition": ["ALTER TABLE sale ALTER v TYPE int USING v + 1"],
    "detached for a while": [
        "ALTER TABLE sale DETACH PARTITION sale_1",
        "UPDATE sale_1 SET v = 2",
        "ALTER TABLE sale ATTACH PARTITION sale_1 DEFAULT",
    ],
}


@pytest.mark.parametrize("story", UNSEEN)
@pytest.mark.parametrize("capture", CAPTURES)
def test_rows_that_were_changed_past_capture_are_noticed(
    sql: Sql, make: MakeAdapter, capture: str, story: str
) -> None:
    sql(*ITEM, *SALE)
    adapter = make(capture)
    adapter.prepare(["item", "sale"])
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (3, 30, 3)")
    assert len(follower.follow()) == 1
    sql(*UNSEEN[story])
    for again in (adapter, make(capture)):
        with again.snapshot() as snapshot, pytest.raises(SchemaChangedError, match=r"shop\.(item|sale)"):
            snapshot.changes(follower.position)
    adapter.prepare(["item", "sale"])
    with adapter.snapshot() as snapshot, pytest.raises(PositionTrimmedError):
        snapshot.changes(follower.position)
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (4, 40, 4)", "INSERT INTO sale VALUES (7)")
    assert len(follower.follow()) == 2


ORDINARY = (
    "ALTER TABLE item ALTER v SET STATISTICS 10",
    "VACUUM FULL item",
    "ALTER TABLE item ALTER v SET DEFAULT 4",
    "CLUSTER item USING item_key",
    "GRANT SELECT (v) ON item TO PUBLIC",
    "BEGIN; TRUNCATE item; INSERT INTO item VALUES (1, 1, 1); COMMIT",
    "CREATE INDEX ON item (v)",
    "ALTER TABLE item ALTER v SET NOT NULL",
    "REINDEX TABLE item",
    "ANALYZE item",
    "VACUUM FULL pg_attribute",
    "VACUUM FULL item",
)


@pytest.mark.parametrize("restarting", [False, True])
@pytest.mark.parametrize("capture", CAPTURES)
def test_ordinary_work_costs_nobody_the_place(
    sql: Sql, make: MakeAdapter, capture: str, restarting: bool
) -> None:
    """Neither step by step, nor what has come together since capture was prepared."""
    sql(*ITEM)
    adapter = make(capture)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    for number, statement in enumerate(ORDINARY, 10):
        sql(statement, f"INSERT INTO item VALUES ({number}, 0, 0)")
        if restarting:
            follower.adapter.close()
            follower.adapter = make(capture)
        assert follower.follow()
    assert make(capture).prepare(["item"]) == []


def test_who_may_not_note_what_was_done_goes_on(
    sql: Sql, make: MakeAdapter, server: PostgresServer, database: str
) -> None:
    """Another role has prepared: the state stays that of then."""
    sql(*ITEM)
    make("log").prepare(["item"])
    sql(
        "DROP ROLE IF EXISTS plain_reader",
        "CREATE ROLE plain_reader LOGIN REPLICATION",
        "GRANT USAGE ON SCHEMA _lockstep TO plain_reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA _lockstep TO plain_reader",
        "GRANT SELECT ON item TO plain_reader",
    )
    follower = Follower(make("log", ("item",), user="plain_reader"))
    for number, statement in enumerate(("VACUUM FULL item", "CREATE INDEX ON item (v)"), 10):
        sql(statement, f"INSERT INTO item VALUES ({number}, 0, 0)")
        assert len(follower.follow()) == 1
    sql("ALTER TABLE item ALTER v TYPE int USING v + 1")
    with pytest.raises(SchemaChangedError, match=r"shop\.item"):
        follower.follow()


@pytest.mark.parametrize("follows", [False, True])
def test_who_may_not_ask_for_the_server_knows_the_database(
    sql: Sql, make: MakeAdapter, database: str, *, follows: bool
) -> None:
    """On a server that was hardened, one role prepares and another follows; only one of them may ask."""
    sql(
        *ITEM,
        "DROP ROLE IF EXISTS plain_peer",
        "CREATE ROLE plain_peer LOGIN REPLICATION",
        f"GRANT CREATE ON DATABASE {database} TO plain_peer",
        "GRANT USAGE, CREATE ON SCHEMA public TO plain_peer",
        "ALTER TABLE item OWNER TO plain_peer",
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
    )
    users = ("postgres", "plain_peer") if follows else ("plain_peer", "postgres")
    make("log", user=users[0]).prepare(["item"])
    sql(
        "GRANT USAGE ON SCHEMA _lockstep TO plain_peer",
        "GRANT SELECT ON ALL TABLES IN SCHEMA _lockstep TO plain_peer",
    )
    follower = Follower(make("log", user=users[1]))
    sql("INSERT INTO item VALUES (3, 30, 3)")
    assert len(follower.follow()) == 1


@pytest.mark.parametrize("capture", CAPTURES)
def test_what_was_done_is_noted_where_the_default_is_to_write_nothing(
    sql: Sql, make: MakeAdapter, database: str, capture: str
) -> None:
    sql(*ITEM, f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    adapter = make(capture)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("VACUUM FULL item", "INSERT INTO item VALUES (3, 30, 3)")
    assert len(follower.follow()) == 1
    adapter.acknowledge(follower.position)
    sql("CREATE INDEX ON item (v)", "INSERT INTO item VALUES (4, 40, 4)")
    assert len(follower.follow()) == 1


@pytest.mark.parametrize("word", ["ALL", "USER", "_lockstep_insert"])
def test_triggers_that_were_disabled_for_a_while_are_noticed(sql: Sql, make: MakeAdapter, word: str) -> None:
    sql(*ITEM)
    adapter = make("trigger")
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql(
        f"ALTER TABLE item DISABLE TRIGGER {word}",
        "INSERT INTO item VALUES (3, 30, 3)",
        f"ALTER TABLE item ENABLE TRIGGER {word}",
    )
    for again in (adapter, make("trigger")):
        with again.snapshot() as snapshot, pytest.raises(SchemaChangedError, match="triggers disabled"):
            snapshot.changes(follower.position)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (4, 40, 4)")
    assert len(follower.follow()) == 1


def test_log_capture_sees_rows_that_fire_no_triggers(sql: Sql, make: MakeAdapter) -> None:
    sql(*ITEM)
    adapter = make("log")
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql(
        "ALTER TABLE item DISABLE TRIGGER ALL",
        "INSERT INTO item VALUES (3, 30, 3)",
        "ALTER TABLE item ENABLE TRIGGER ALL",
        "SET session_replication_role = replica",
        "DELETE FROM item",
        "SET session_replication_role = origin",
    )
    assert len(follower.follow()) == 2


UNPUBLISHED = {
    "taken off": [
        "ALTER PUBLICATION _lockstep DROP TABLE item",
        "ALTER PUBLICATION _lockstep ADD TABLE item",
    ],
    "without deletes": [
        "ALTER PUBLICATION _lockstep SET (publish = 'insert')",
        "ALTER PUBLICATION _lockstep SET (publish = 'insert, update, delete, truncate')",
    ],
    "filtered": [
        "ALTER PUBLICATION _lockstep SET TABLE item WHERE (id > 5)",
        "ALTER PUBLICATION _lockstep SET TABLE item",
    ],
}


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("story", UNPUBLISHED)
def test_what_was_not_published_for_a_while_is_noticed(
    sql: Sql, make: MakeAdapter, story: str, stays: bool
) -> None:
    sql(*ITEM)
    adapter = make("log")
    adapter.prepare(["item"])
    follower = Follower(adapter)
    first, last = UNPUBLISHED[story]
    sql(first, "DELETE FROM item", *([] if stays else [last]))
    for again in (adapter, make("log")):
        with again.snapshot() as snapshot, pytest.raises(SchemaChangedError, match="published"):
            snapshot.changes(follower.position)
    adapter.prepare(["item"])
    with adapter.snapshot() as snapshot, pytest.raises(PositionTrimmedError):
        snapshot.changes(follower.position)
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (1, 10, 1)", "UPDATE item SET v = 11", "DELETE FROM item", "TRUNCATE item")
    assert len(follower.follow()) == 4


def test_a_publication_that_was_dropped_is_made_again(sql: Sql, make: MakeAdapter) -> None:
    sql(*ITEM)
    adapter = make("log")
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("DROP PUBLICATION _lockstep", "DELETE FROM item")
    adapter.prepare(["item"])
    with adapter.snapshot() as snapshot, pytest.raises(PositionTrimmedError):
        snapshot.changes(follower.position)
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (1, 10, 1)")
    assert len(follower.follow()) == 1


@pytest.mark.parametrize("table", ["sale", "sale_1"])
def test_log_capture_sees_what_replicas_truncate(sql: Sql, make: MakeAdapter, table: str) -> None:
    """Also after another TRUNCATE of the same transaction; of a partition, the log itself tells nothing."""
    sql(*ITEM, *SALE)
    adapter = make("log")
    adapter.prepare(["item", "sale"])
    follower = Follower(adapter)
    sql(f"BEGIN; TRUNCATE item; SET LOCAL session_replication_role = replica; TRUNCATE {table}; COMMIT")
    assert len(follower.follow()) == 1


@pytest.mark.parametrize("table", ["sale", "sale_1"])
def test_a_truncate_while_its_trigger_was_disabled_is_noticed(
    sql: Sql, make: MakeAdapter, table: str
) -> None:
    sql(*SALE)
    adapter = make("log")
    adapter.prepare(["sale"])
    follower = Follower(adapter)
    sql(
        "ALTER TABLE sale_1 DISABLE TRIGGER ALL",
        "ALTER TABLE sale DISABLE TRIGGER ALL",
        f"TRUNCATE {table}",
        "ALTER TABLE sale_1 ENABLE TRIGGER ALL",
        "ALTER TABLE sale ENABLE TRIGGER ALL",
    )
    with pytest.raises(SchemaChangedError, match=r"shop\.sale may have been truncated"):
        follower.follow()
    adapter.prepare(["sale"])
    follower = Follower(adapter)
    sql("INSERT INTO sale VALUES (1, 10)", "TRUNCATE sale_1")
    assert len(follower.follow()) == 2


def test_the_owner_captures_what_replicas_write(sql: Sql, make: MakeAdapter) -> None:
    sql(*ITEM, *SALE)
    adapter = make("trigger")
    adapter.prepare(["item", "sale"])
    follower = Follower(adapter)
    sql(
        "SET session_replication_role = replica",
        "UPDATE item SET v = 0",
        "TRUNCATE item",
        "INSERT INTO sale_1 VALUES (5)",
        "SET session_replication_role = origin",
    )
    assert len(follower.follow()) == 3


def test_who_does_not_own_the_tables_prepares_without_replicas(
    sql: Sql, make: MakeAdapter, database: str
) -> None:
    sql(
        *ITEM,
        "DROP ROLE IF EXISTS plain_guest",
        "CREATE ROLE plain_guest LOGIN",
        f"GRANT CREATE ON DATABASE {database} TO plain_guest",
        "GRANT USAGE, CREATE ON SCHEMA public TO plain_guest",
        "GRANT SELECT, TRIGGER ON item TO plain_guest",
        # What a hardened server may have revoked.
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
    )
    adapter = make("trigger", ("item",), user="plain_guest")
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (3, 30, 3)", "VACUUM FULL item", "TRUNCATE item")
    assert len(follower.follow()) == 2
    adapter.remove()


@pytest.mark.parametrize("table", ["item", "sale_1"])
def test_a_subscription_that_feeds_a_captured_table_is_noticed(
    sql: Sql, make: MakeAdapter, server: PostgresServer, table: str
) -> None:
    """Its rows fire no statement triggers, those that it brings to a partition neither."""
    sql(*ITEM, *SALE)
    adapter = make("trigger")
    adapter.prepare(["item", "sale"])
    follower = Follower(adapter)
    publisher = server.create_database()
    with server.connect(publisher) as there:
        there.execute(f"CREATE TABLE {table} (id int, v int)")
        there.execute(f"CREATE PUBLICATION feed FOR TABLE {table}")
    sql(
        f"CREATE SUBSCRIPTION feed CONNECTION '{server.url(publisher)}' PUBLICATION feed"
        " WITH (enabled = false, create_slot = false, slot_name = NONE)"
    )
    for again in (adapter, make("trigger")):
        with again.snapshot() as snapshot, pytest.raises(SchemaChangedError, match="subscription"):
            snapshot.changes(follower.position)
    with pytest.raises(ConfigurationError, match="is fed by a subscription"):
        adapter.prepare(["item"])
    sql("DROP SUBSCRIPTION feed")
    server.drop_database(publisher)


def copy_of(server: PostgresServer, database: str, target: PostgresServer) -> str:
    """A new database of the target with what is in this one, as an owner would move it."""

    def at(one: PostgresServer) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(one.port), "-U", "postgres"]

    copy = target.create_database(f"copy_of_{database}")
    dump = subprocess.run(["pg_dump", *at(server), database], capture_output=True, check=True).stdout
    load = ["psql", "-q", "-v", "ON_ERROR_STOP=1", *at(target), copy]
    subprocess.run(load, input=dump, capture_output=True, check=True)
    return copy


def test_a_dump_restored_beside_it_is_another_history(
    sql: Sql, make: MakeAdapter, server: PostgresServer, database: str
) -> None:
    """Into another database of the same server: transaction ids go on, ids of tables do not."""
    sql(*ITEM)
    adapter = make("trigger")
    adapter.prepare(["item"])
    sql("INSERT INTO item VALUES (3, 30, 3)")
    position = Follower(adapter).position
    moved = make("trigger", url=server.url(copy_of(server, database, server)))
    with moved.snapshot() as snapshot, pytest.raises(PositionTrimmedError, match="another database"):
        snapshot.changes(position)
    moved.close()


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_dump_restored_elsewhere_is_another_history(
    sql: Sql, make: MakeAdapter, server: PostgresServer, database: str, capture: str
) -> None:
    """Into a server with lower transaction ids, whose transactions all lie below the horizon of before."""
    sql(*ITEM, "CREATE TABLE note (t text)")
    adapter = make(capture)
    adapter.prepare(["item", "note"])
    with PostgresServer.started() as younger:
        sql("INSERT INTO item VALUES (3, 30, 3)")
        sql("DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM txid_current(); COMMIT; END LOOP; END $$")
        sql("INSERT INTO item VALUES (4, 40, 4)")
        position = Follower(adapter).position
        copy = copy_of(server, database, younger)
        moved = make(capture, url=younger.url(copy))
        with younger.connect(copy) as owner:
            owner.execute("INSERT INTO item VALUES (5, 50, 5)")
            with moved.snapshot() as snapshot, pytest.raises(PositionTrimmedError, match="prepare again"):
                snapshot.changes(position)
            moved.prepare(["item"])
            assert moved.prepare(["item", "note"]) == []
            with moved.snapshot() as snapshot, pytest.raises(PositionTrimmedError):
                snapshot.changes(position)
            follower = Follower(moved)
            owner.execute("INSERT INTO item VALUES (6, 60, 6)")
            owner.execute("INSERT INTO note VALUES ('x')")
            assert len(follower.follow()) == 2
        moved.close()
    assert Follower(adapter).position == position, "nothing happened to the one of before"


def test_a_horizon_that_lies_ahead_is_of_another_history(sql: Sql, make: MakeAdapter) -> None:
    """As after the server's counter of transactions was set back."""
    sql(*ITEM)
    adapter = make("trigger")
    adapter.prepare(["item"])
    sql("INSERT INTO item VALUES (3, 30, 3)")
    position = Follower(adapter).position
    sql("UPDATE _lockstep.commits SET horizon = horizon + 1000000", "INSERT INTO item VALUES (4, 40, 4)")
    with adapter.snapshot() as snapshot, pytest.raises(PositionTrimmedError, match="another database"):
        snapshot.changes(position)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (5, 50, 5)")
    assert len(follower.follow()) == 1


@pytest.mark.parametrize("capture", CAPTURES)
def test_what_an_earlier_version_installed_is_installed_anew(
    sql: Sql, make: MakeAdapter, capture: str
) -> None:
    sql(*ITEM)
    before = sql(OBJECTS)
    make(capture).prepare(["item"])
    sql("INSERT INTO item VALUES (3, 30, 3)")
    position = Follower(make(capture)).position
    sql(
        "ALTER TABLE _lockstep.meta DROP home",
        "ALTER TABLE _lockstep.relations DROP state",
        'UPDATE _lockstep.relations SET shape = \'[["id", "integer"], ["v", "integer"], ["w", "integer"]]\'',
    )
    adapter = make(capture)
    with adapter.snapshot() as snapshot, pytest.raises(PositionTrimmedError, match="by an earlier version"):
        snapshot.changes(position)
    adapter.prepare([])
    with adapter.snapshot() as snapshot, pytest.raises(PositionTrimmedError):
        snapshot.changes(position)
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (4, 40, 4)")
    assert len(follower.follow()) == 1
    adapter.remove()
    assert set(sql(OBJECTS)) == set(before)
