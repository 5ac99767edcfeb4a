"""What is installed and taken away, what the slot holds back, and what happens when the server goes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from adapters.postgresql import log_capture
from adapters.postgresql.connection import translate
from adapters.postgresql.log_capture import LogCapture
from adapters.postgresql.stream import LogStream
from adapters.postgresql.tests.conftest import CAPTURES, MakeAdapter, Sql
from adapters.postgresql.tests.harnesses import OBJECTS
from adapters.postgresql.tests.support import Follower, table
from adapters.servers.postgresql import CRASH, PostgresServer
from adapters.spi import SourceConfig
from algebra.errors import (
    ConfigurationError,
    PositionTrimmedError,
    SchemaChangedError,
    SourceUnavailableError,
)

SLOT = (
    "SELECT confirmed_flush_lsn FROM pg_replication_slots"
    " WHERE database = current_database() AND NOT temporary"
)
FILLER = "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 3000)"


def test_a_slot_that_nobody_acknowledges_is_given_up(sql: Sql, make: MakeAdapter) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)", "CREATE TABLE filler (t text)")
    adapter = make("log", ("item",), wal_limit_mb=2)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (1)", FILLER)
    with adapter.snapshot() as snapshot:
        with pytest.raises(PositionTrimmedError, match="wal_limit_mb"):
            snapshot.changes(follower.position)
        assert table(snapshot, follower.catalog, "item").num_rows == 1  # answers need no history
    assert sql("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
    adapter.prepare(["item"])
    with adapter.snapshot() as snapshot, pytest.raises(PositionTrimmedError):
        snapshot.changes(follower.position)
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (2)")
    assert len(follower.follow()) == 1


def test_a_loss_stays_known_if_the_new_slot_cannot_be_made(
    server: PostgresServer, database: str, sql: Sql, make: MakeAdapter
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)", "CREATE TABLE filler (t text)")
    adapter = make("log")
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (1)")
    follower.follow()
    adapter.close()
    sql(
        "CREATE TABLE copy (id int PRIMARY KEY)",
        "DROP TABLE item",
        "ALTER TABLE copy RENAME TO item",
        "INSERT INTO item VALUES (2)",
    )
    with server.connect(database) as writer:
        # A new slot waits for the end of all that is being written.
        writer.execute("BEGIN")
        writer.execute("INSERT INTO filler VALUES ('open')")
        with pytest.raises(SourceUnavailableError):
            make("log", statement_timeout=1).prepare(["item"])
        with make("log").snapshot() as snapshot, pytest.raises(PositionTrimmedError):
            snapshot.changes(follower.position)
        writer.execute("ROLLBACK")
    adapter = make("log")
    assert len(adapter.prepare(["item"])) == 1, "the relations were mended, the slot was not made"
    with adapter.snapshot() as snapshot, pytest.raises(PositionTrimmedError):
        snapshot.changes(follower.position)
    assert adapter.prepare(["item"]) == []
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (3)")
    assert len(follower.follow()) == 1


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_table_that_was_gone_is_not_taken_for_the_one_of_before(
    sql: Sql, make: MakeAdapter, capture: str
) -> None:
    """Another relation is prepared meanwhile, by which the one that is gone is forgotten."""
    sql("CREATE TABLE item (id int PRIMARY KEY)", "CREATE TABLE other (id int)")
    adapter = make(capture)
    adapter.prepare(["item", "other"])
    sql("INSERT INTO item VALUES (1)")
    end = Follower(adapter).position
    sql("DROP TABLE item")
    other = make(capture)
    other.prepare(["other"])
    known = Follower(other)
    sql("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (2)")
    for again in ([], ["item"]):
        adapter.prepare(again)
        with adapter.snapshot() as snapshot, pytest.raises(PositionTrimmedError):
            snapshot.changes(end)
    # A relation that is new to everybody who is still there costs nobody the place.
    sql("INSERT INTO other VALUES (1)")
    assert known.follow() == [{"other": {(1,): 1}}]


def test_the_slot_passes_by_what_is_of_no_concern(sql: Sql, make: MakeAdapter) -> None:
    """Other tables are written, nothing is to be acknowledged: the slot moves, and the position does not."""
    sql("CREATE TABLE item (id int PRIMARY KEY)", "CREATE TABLE filler (t text)")
    adapter = make("log", ("item",), wal_limit_mb=6)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("INSERT INTO item VALUES (1)")
    follower.follow()
    adapter.acknowledge(follower.position)
    for _ in range(3):
        before = sql(SLOT)
        sql(FILLER)
        with adapter.snapshot() as snapshot:  # reads the log that far
            assert snapshot.position == follower.position
        adapter.acknowledge(follower.position)
        assert sql(SLOT) != before
    other = make("log", ("item",))
    with other.snapshot() as snapshot:
        assert snapshot.position == follower.position
        assert len(snapshot.changes(follower.position)) == 0
    sql("INSERT INTO item VALUES (2)")
    assert len(follower.follow()) == 1


class Racing:
    """A stream whose thread takes what `write` commits right after it was asked whether it is empty."""

    def __init__(self, stream: LogStream, write: Callable[[], int]) -> None:
        self._stream = stream
        self._write = write
        self.is_over = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stream, name)
        if name in ("entries", "passed") and not self.is_over:
            self.is_over = True
            self._stream.read_until(self._write(), 30)
        return found


def test_the_slot_does_not_pass_by_what_comes_while_it_is_moved(
    sql: Sql, make: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_capture, "IDLE_BYTES", 1)
    sql("CREATE TABLE item (id int PRIMARY KEY)", "CREATE TABLE filler (t text)")
    adapter = make("log", ("item",))
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql(FILLER)
    follower.follow()

    def write() -> int:
        sql("INSERT INTO item VALUES (1)")
        return int(sql("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")[0][0])

    capture = adapter._capture
    assert isinstance(capture, LogCapture)
    racing = Racing(capture._stream, write)
    before = sql(SLOT)
    with monkeypatch.context() as patched:
        patched.setattr(capture, "_stream", racing)
        capture._tend(0)
    assert racing.is_over
    assert sql(SLOT) != before, "it passes by what was read before"
    adapter.close()
    with make("log", ("item",)).snapshot() as snapshot:
        assert len(snapshot.changes(follower.position)) == 1


def test_only_acknowledgement_moves_the_slot(sql: Sql, make: MakeAdapter) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    adapter = make("log")
    adapter.prepare(["item"])
    follower, before = Follower(adapter), sql(SLOT)
    for number in range(3):
        sql(f"INSERT INTO item VALUES ({number})")
        follower.follow()
        adapter.wait(0)
    assert sql(SLOT) == before
    adapter.acknowledge(follower.position)
    assert sql(SLOT) != before


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_crash_in_mid_stream(
    capture: str, make: MakeAdapter, sql: Sql, server: PostgresServer, database: str
) -> None:
    """What was reported is still there after a crash, asynchronous commits included; what follows,
    follows."""
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    adapter = make(capture)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("SET synchronous_commit = off", "INSERT INTO item VALUES (1)")
    assert len(follower.follow()) == 1
    server.restart(CRASH)
    with server.connect(database) as connection:
        connection.execute("INSERT INTO item VALUES (2)")
    for _ in range(100):
        try:
            assert len(follower.follow()) == 1
            break
        except SourceUnavailableError:
            continue
    assert set(follower.tables["item"]) == {(1,), (2,)}


@pytest.mark.parametrize("capture", CAPTURES)
def test_dry_runs_list_what_is_done_and_remove_restores(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql(
        "CREATE TABLE item (id int PRIMARY KEY, code text NOT NULL UNIQUE)",
        "ALTER TABLE item REPLICA IDENTITY USING INDEX item_code_key",
        "CREATE TABLE note (t text)",
        "ALTER TABLE note REPLICA IDENTITY NOTHING",
        "CREATE TABLE sale (id int) PARTITION BY LIST (id)",
        "CREATE TABLE sale_1 PARTITION OF sale DEFAULT",
    )
    before = set(sql(OBJECTS))
    adapter = make(capture)
    planned = adapter.prepare(["item", "note", "sale"], dry_run=True)
    assert set(sql(OBJECTS)) == before
    done = adapter.prepare(["item", "note", "sale"])
    assert len(done) == len(planned)
    assert adapter.prepare(["item", "note", "sale"]) == []
    assert adapter.prepare(["item"], dry_run=True) == []
    sql("INSERT INTO sale VALUES (1)", "INSERT INTO _lockstep_global VALUES ('1', 'shop')")
    adapter.remove()
    assert set(sql(OBJECTS)) == before
    assert adapter.remove() == []


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_other_capture_is_not_mixed_in(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql("CREATE TABLE item (id int)")
    make(capture).prepare(["item"])
    (other,) = set(CAPTURES) - {capture}
    with pytest.raises(ConfigurationError, match=f"has capture '{capture}' installed"):
        make(other).prepare(["item"])


@pytest.mark.parametrize("capture", CAPTURES)
def test_capture_that_was_tampered_with_is_noticed(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    adapter = make(capture)
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql(
        "ALTER TABLE item DISABLE TRIGGER USER"
        if capture == "trigger"
        else "ALTER TABLE item REPLICA IDENTITY DEFAULT"
    )
    with pytest.raises(SchemaChangedError, match=r"shop\.item lost its"):
        follower.follow()


@pytest.mark.parametrize("capture", CAPTURES)
def test_dropped_columns_do_not_break_writers(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, a int, b int)")
    make(capture).prepare(["item"])
    sql("ALTER TABLE item DROP a", "INSERT INTO item VALUES (1, 2)", "UPDATE item SET b = 3", "TRUNCATE item")
    sql("ALTER TABLE item ALTER b TYPE text", "INSERT INTO item VALUES (1, 'x')", "DROP TABLE item")


def test_a_notification_ends_a_wait(sql: Sql, make: MakeAdapter) -> None:
    sql("CREATE TABLE item (id int)")
    adapter = make("trigger", notify=True)
    adapter.prepare(["item"])
    Follower(adapter)
    done = threading.Event()

    def wait() -> None:
        adapter.wait(3600)
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    sql("INSERT INTO item VALUES (1)")
    assert done.wait(30)


def test_statements_that_take_too_long_are_ended(sql: Sql, make: MakeAdapter) -> None:
    sql("CREATE TABLE item (id int)", "INSERT INTO item SELECT generate_series(1, 2000)")
    adapter = make("trigger", statement_timeout=0.2)
    adapter.prepare(["item"])
    from adapters.conformance.queries import select

    slow = dict.fromkeys("abcd", "item")
    query = select(adapter.catalog(), slow, [("a", "id")])
    with adapter.snapshot() as snapshot, pytest.raises(SourceUnavailableError, match="statement_timeout"):
        snapshot.fetch(query).read_all()
    with adapter.snapshot() as snapshot:
        assert snapshot.position.ordinal == 0


def test_a_locked_table_is_waited_for_and_then_unavailable(
    sql: Sql, make: MakeAdapter, server: PostgresServer, database: str
) -> None:
    sql("CREATE TABLE item (id int)")
    adapter = make("trigger", lock_timeout=0.1)
    adapter.prepare(["item"])
    Follower(adapter)
    with server.connect(database) as owner:
        owner.execute("BEGIN; LOCK TABLE item IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceUnavailableError, match="lock_timeout"), adapter.snapshot():
            pass
    with adapter.snapshot():
        pass


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_table_that_is_dropped_while_tables_are_read_is_no_error(
    capture: str, sql: Sql, make: MakeAdapter, server: PostgresServer, database: str
) -> None:
    """It is dropped when the tables are known, and before their columns are, which have collations."""
    sql("CREATE TABLE item (id int PRIMARY KEY)", "CREATE TABLE staging (id int)")
    adapter = make(capture)
    for read in (adapter.catalog, lambda: adapter.prepare(["item"])):
        with ThreadPoolExecutor(1) as pool, server.connect(database) as other:
            other.execute("BEGIN")
            other.execute("LOCK TABLE pg_collation IN ACCESS EXCLUSIVE MODE")
            reading = pool.submit(read)
            while not (reading.done() or sql("SELECT 1 FROM pg_locks WHERE NOT granted")):
                pass
            other.execute("DROP TABLE staging")
            other.execute("COMMIT")
            assert reading.result()
        sql("CREATE TABLE staging (id int)")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"url": "mysql://x"}, "the url is not postgresql"),
        ({"capture": "diff"}, "capture 'diff' is not log or trigger"),
        ({"options": {"wal_limit": 3}}, "unknown option 'wal_limit'"),
        ({"options": {"numeric_scale": 99}}, "numeric_scale is 99"),
        ({"options": {"statement_timeout": "x"}}, "statement_timeout is 'x'"),
    ],
)
def test_a_wrong_configuration_is_one_line(changed: dict[str, object], says: str) -> None:
    from adapters.postgresql.adapter import PostgresAdapter

    given: dict[str, object] = {
        "name": "shop",
        "adapter": "postgresql",
        "url": "postgresql://u:secret@h/d",
        **changed,
    }
    with pytest.raises(ConfigurationError, match=says) as caught:
        PostgresAdapter(SourceConfig(**given))  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "said",
    [
        "consuming input failed: SSL error: unexpected eof while reading",
        "consuming input failed: SSL connection has been closed unexpectedly",
        "consuming input failed: SSL SYSCALL error: EOF detected",
        "sending query failed: SSL SYSCALL error: Connection reset by peer",
        "could not receive data from server: SSL SYSCALL error: Connection timed out",
    ],
)
def test_an_encrypted_connection_that_breaks_comes_back_by_itself(said: str) -> None:
    assert isinstance(translate("shop", said, None), SourceUnavailableError)


@pytest.mark.parametrize(
    "said",
    [
        'connection to server at "db" failed: server does not support SSL, but SSL was required',
        'connection to server at "db" failed: SSL error: certificate verify failed',
        'connection to server at "db" failed: root certificate file "ca.pem" does not exist',
        'connection to server at "db" failed: SSL error: tlsv1 alert unknown ca',
        'server certificate for "other" does not match host name "db"',
    ],
)
def test_how_tls_is_set_up_only_a_person_can_mend(said: str) -> None:
    assert isinstance(translate("shop", said, None), ConfigurationError)


def test_what_only_a_person_can_mend(make: MakeAdapter, server: PostgresServer) -> None:
    from adapters.postgresql.adapter import PostgresAdapter

    with pytest.raises(ConfigurationError, match='role "nobody_here" does not exist'):
        make("log", user="nobody_here").catalog()
    gone = SourceConfig("shop", "postgresql", "postgresql://u:secret@127.0.0.1:1/d")
    with pytest.raises(SourceUnavailableError) as caught:
        PostgresAdapter(gone).catalog()
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
