"""Snapshots and order: what is shown is a prefix of one order, whatever writers do, and however they
commit."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg
import pytest

from adapters.postgresql import trigger_capture
from adapters.postgresql.commit_order import commit_order
from adapters.postgresql.tests.conftest import CAPTURES, MakeAdapter, Sql
from adapters.postgresql.tests.support import Follower, changes_by_relation, rows
from adapters.postgresql.visibility import Visibility
from adapters.servers.postgresql import PostgresServer
from algebra.errors import PositionTrimmedError, SourceUnavailableError
from algebra.position import Position

BANK = (
    "CREATE TABLE account (id int PRIMARY KEY, amount int)",
    "INSERT INTO account SELECT i, 100 FROM generate_series(1, 5) i",
)


def _transfers(url: str, seed: int, count: int, failed: list[BaseException]) -> Callable[[], None]:
    """A writer that moves amounts between five accounts that all writers share; half of it is not flushed."""
    chance = random.Random(seed)

    def run() -> None:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                for _ in range(count):
                    first, second = sorted(chance.sample(range(1, 6), 2))
                    with connection.transaction():
                        mode = chance.choice(("on", "off"))
                        connection.execute(f"SET LOCAL synchronous_commit = {mode}")
                        connection.execute("UPDATE account SET amount = amount - 1 WHERE id = %s", [first])
                        connection.execute("UPDATE account SET amount = amount + 1 WHERE id = %s", [second])
        except BaseException as error:
            failed.append(error)

    return run


@pytest.mark.parametrize("capture", CAPTURES)
def test_every_prefix_under_contending_asynchronous_writers(
    capture: str, sql: Sql, make: MakeAdapter, server: PostgresServer, database: str
) -> None:
    sql(*BANK)
    adapter = make(capture)
    adapter.prepare(["account"])
    follower = Follower(adapter)
    start = follower.position
    failed: list[BaseException] = []
    writers = [
        threading.Thread(target=_transfers(server.url(database), seed, 40, failed)) for seed in range(4)
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        follower.follow()
    for writer in writers:
        writer.join()
    assert not failed, failed
    follower.follow()
    assert len(follower.entries) == 160
    for entry in follower.entries:
        assert sum(amount * count for (_, amount), count in entry["account"].items()) == 0
    # Read again from the start, by another adapter: the same entries in the same order.
    with make(capture).snapshot() as snapshot:
        assert changes_by_relation(snapshot.changes(start)) == follower.entries


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_row_taken_over_from_a_younger_transaction(
    capture: str, sql: Sql, make: MakeAdapter, server: PostgresServer, database: str
) -> None:
    """The transaction with the smaller id commits last, on top of what the other one left."""
    sql("CREATE TABLE item (id int PRIMARY KEY, v text)", "INSERT INTO item VALUES (1, 'old')")
    adapter = make(capture)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    with server.connect(database) as early, server.connect(database) as late:
        early.execute("BEGIN")
        early.execute("INSERT INTO item VALUES (2, 'early')")
        late.execute("BEGIN")
        late.execute("UPDATE item SET v = 'late' WHERE id = 1")
        late.execute("COMMIT")
        early.execute("UPDATE item SET v = v || ' then early' WHERE id = 1")
        early.execute("COMMIT")
    entries = follower.follow()
    assert [rows(entry["item"]).get((1, "late")) for entry in entries] == [1, -1]


LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@pytest.mark.parametrize("giver", LEVELS)
@pytest.mark.parametrize("taker", LEVELS)
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_key_taken_over_from_a_transaction_that_is_not_seen(
    capture: str, taker: str, giver: str, sql: Sql, make: MakeAdapter, server: PostgresServer, database: str
) -> None:
    """The taker has the smaller id, and a snapshot from before the giver, whose key it uses again."""
    sql("CREATE TABLE item (id int PRIMARY KEY, v text)", "INSERT INTO item VALUES (5, 'old')")
    adapter = make(capture)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    with server.connect(database) as takes, server.connect(database) as gives:
        for connection, level in ((takes, taker), (gives, giver)):
            connection.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        takes.execute("INSERT INTO item VALUES (1, 'taker')")
        gives.execute("DELETE FROM item WHERE id = 5")
        gives.execute("COMMIT")
        takes.execute("INSERT INTO item VALUES (5, 'taker')")
        takes.execute("COMMIT")
    assert [rows(entry["item"]) for entry in follower.follow()] == [
        {(5, "old"): -1},
        {(1, "taker"): 1, (5, "taker"): 1},
    ]


TAKE = "INSERT INTO item VALUES (%s) ON CONFLICT DO NOTHING"


def _takers(url: str, seed: int, count: int, failed: list[BaseException]) -> Callable[[], None]:
    """A writer at every level of isolation that takes keys which others gave up, and gives up others."""
    chance = random.Random(seed)

    def run() -> None:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                for number in range(count):
                    with suppress(psycopg.errors.SerializationFailure), connection.transaction():
                        connection.execute(
                            f"SET TRANSACTION ISOLATION LEVEL {chance.choice(LEVELS)}".encode()
                        )
                        connection.execute("INSERT INTO item VALUES (%s)", [1000 * (seed + 1) + number])
                        for key in sorted(chance.sample(range(6), 3)):
                            gives = chance.random() < 0.5
                            statement = "DELETE FROM item WHERE id = %s" if gives else TAKE
                            connection.execute(statement.encode(), [key])
        except BaseException as error:
            failed.append(error)

    return run


@pytest.mark.parametrize("capture", CAPTURES)
def test_no_key_is_there_twice_at_any_version_whatever_the_levels_of_isolation(
    capture: str, sql: Sql, make: MakeAdapter, server: PostgresServer, database: str
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    adapter = make(capture)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    failed: list[BaseException] = []
    writers = [threading.Thread(target=_takers(server.url(database), seed, 150, failed)) for seed in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failed, failed
    there: Counter[object] = Counter()
    for entry in follower.follow():
        for row, count in rows(entry["item"]).items():
            there[row] += count
            assert there[row] in (0, 1), row
    assert sum(there.values()) == int(sql("SELECT count(*) FROM item")[0][0])


@pytest.mark.parametrize("capture", CAPTURES)
def test_two_adapters_that_look_at_different_moments_agree(
    capture: str, sql: Sql, make: MakeAdapter, server: PostgresServer, database: str
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower, other = make(capture), make(capture)
    follower.prepare(["item"])
    with follower.snapshot() as snapshot:
        start = snapshot.position
    with server.connect(database) as early, server.connect(database) as late:
        early.execute("BEGIN; INSERT INTO item VALUES (1)")
        late.execute("INSERT INTO item VALUES (2)")
        with other.snapshot() as snapshot:
            between = snapshot.position
            assert len(snapshot.changes(start)) == 1
        early.execute("COMMIT")
    with follower.snapshot() as snapshot:
        changes = snapshot.changes(start)
        assert changes.positions[0] == between
        assert changes.positions[0].token == between.token
        assert [rows(entry["item"]) for entry in changes_by_relation(changes)] == [{(2,): 1}, {(1,): 1}]
        assert [rows(e["item"]) for e in changes_by_relation(snapshot.changes(between))] == [{(1,): 1}]


@pytest.mark.parametrize("capture", CAPTURES)
def test_prepared_transactions_show_when_they_are_committed(
    capture: str, sql: Sql, make: MakeAdapter
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    adapter = make(capture)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("BEGIN", "INSERT INTO item VALUES (1)", "PREPARE TRANSACTION 'one'", "INSERT INTO item VALUES (2)")
    assert [rows(entry["item"]) for entry in follower.follow()] == [{(2,): 1}]
    sql("COMMIT PREPARED 'one'")
    assert [rows(entry["item"]) for entry in follower.follow()] == [{(1,): 1}]


@pytest.fixture
def no_standby(sql: Sql) -> Iterator[Callable[[], None]]:
    """Commits wait for a standby that is not there, unless they say otherwise; call it to end that."""

    def end() -> None:
        sql("SET synchronous_commit = local", "ALTER SYSTEM RESET synchronous_standby_names")
        sql("SELECT pg_reload_conf()")

    sql("SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    sql("SELECT pg_reload_conf()")
    yield end
    end()


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_commit_that_is_in_the_log_and_not_yet_visible(
    capture: str,
    sql: Sql,
    make: MakeAdapter,
    server: PostgresServer,
    database: str,
    request: pytest.FixtureRequest,
) -> None:
    """The first commit waits for a standby, the second does not: a snapshot shows the second alone."""
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    adapter = make(capture, lock_timeout=0.3)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    end = request.getfixturevalue("no_standby")

    def commit_first() -> None:
        with server.connect(database) as connection:
            connection.execute("INSERT INTO item VALUES (1)")

    waiting = threading.Thread(target=commit_first)
    waiting.start()
    state = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    while sql(state) != [(1,)]:
        pass
    sql("INSERT INTO item VALUES (2)")
    if capture == "log":
        with pytest.raises(SourceUnavailableError, match="standby"):
            follower.follow()
        order = [{(1,): 1}, {(2,): 1}]
    else:
        follower.follow()
        order = [{(2,): 1}, {(1,): 1}]
    end()
    waiting.join()
    follower.follow()
    assert [rows(entry["item"]) for entry in follower.entries] == order


def test_what_waits_to_be_numbered_is_not_held(sql: Sql, make: MakeAdapter) -> None:
    """A source may have gone on for long while no wrapper looked."""
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    adapter = make("trigger", notify=False)
    adapter.prepare(["item"])
    with adapter.snapshot() as snapshot:
        start = snapshot.position
    count = 100_000
    sql(
        "INSERT INTO _lockstep.statements SELECT i, 1, format('%s:%s:%s', i, i + 20, i + 10)"
        f" FROM generate_series(1, {count}) AS s(i)"
    )
    tracemalloc.start()
    try:
        with adapter.snapshot() as snapshot:
            assert snapshot.position.ordinal == start.ordinal + count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20


def test_lots_do_not_matter_to_the_order(
    sql: Sql, make: MakeAdapter, server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger_capture, "LOT", 2)
    sql("CREATE TABLE item (id int PRIMARY KEY, v int)", "INSERT INTO item VALUES (0, 0)")
    adapter = make("trigger")
    adapter.prepare(["item"])
    follower = Follower(adapter)
    with server.connect(database) as early, server.connect(database) as late:
        for number in range(1, 8):
            early.execute(b"BEGIN")
            early.execute(f"INSERT INTO item VALUES ({number}, 0)".encode())
            late.execute(b"UPDATE item SET v = v + 1 WHERE id = 0")
            early.execute(b"UPDATE item SET v = v + 1 WHERE id = 0")
            early.execute(b"COMMIT")
    assert len(follower.follow()) == 14


def test_cuts_order_what_overlaps() -> None:
    cuts = [Visibility.of(text) for text in ("5:9:5,6,8", "5:9:5,8", "5:10:5", "10:10:")]
    assert list(commit_order([(xid, 0) for xid in (5, 6, 7, 8, 9)], cuts)) == [7, 6, 8, 9, 5]


def test_what_saw_too_little_comes_last_between_two_cuts_by_its_place_in_the_log() -> None:
    cuts = [Visibility.of(text) for text in ("5:9:5,6,7,8:300", "9:9:", "9:13:9,10,11,12:700")]
    committed = [(5, 300), (6, 200), (7, 0), (8, 0), (9, 700), (10, 0), (11, 600), (12, 0)]
    assert list(commit_order(committed, cuts)) == [7, 8, 6, 5, 10, 12, 11, 9]


@pytest.mark.parametrize("capture", CAPTURES)
def test_positions_of_another_history_are_refused(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    adapter = make(capture)
    adapter.prepare(["item"])
    sql("INSERT INTO item VALUES (1)", "INSERT INTO item VALUES (2)")
    with adapter.snapshot() as snapshot:
        epoch = snapshot.position.token.partition(":")[0]
        # As after a restore: another transaction at the same place.
        for position in (
            Position(snapshot.position.ordinal, f"{epoch}:1.2"),
            Position(snapshot.position.ordinal, "elsewhere:"),
            Position(snapshot.position.ordinal + 8, snapshot.position.token),
        ):
            with pytest.raises(PositionTrimmedError):
                snapshot.changes(position)
