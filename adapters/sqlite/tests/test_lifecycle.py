"""Preparing, drifting, trimming, removing, waiting, closing, and what goes wrong."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from adapters.registry import create
from adapters.spi import Boundaries, SourceConfig
from adapters.sqlite.adapter import SqliteAdapter
from adapters.sqlite.tests.support import (
    Backup,
    WriteError,
    Writer,
    adapter_on,
    bag,
    captured,
    changes,
    config,
    contents,
    deltas,
    net,
    position,
    view_of,
)
from adapters.sqlite.trim import trim
from algebra.errors import (
    ConfigurationError,
    PositionTrimmedError,
    SchemaChangedError,
    SourceUnavailableError,
)
from algebra.position import ORIGIN, Position

T = "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)"


def schema_of(writer: Writer) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in writer("SELECT type, name, tbl_name, sql FROM sqlite_schema"))


def test_the_catalog_shows_base_tables_with_types_and_keys(path: Path, writer: Writer) -> None:
    schema = (
        T,
        "CREATE TABLE nullable_key (k TEXT PRIMARY KEY, v INT)",
        "CREATE TABLE strict_key (k TEXT PRIMARY KEY, v INT) STRICT",
        "CREATE TABLE no_rowid (x INT, y INT, PRIMARY KEY (y, x)) WITHOUT ROWID",
        "CREATE TABLE by_index (k TEXT NOT NULL, v INT)",
        "CREATE UNIQUE INDEX i ON by_index (k)",
        "CREATE TABLE partly (k TEXT NOT NULL)",
        "CREATE UNIQUE INDEX p ON partly (k) WHERE k > 'a'",
        "CREATE TABLE by_time (at TIMESTAMP PRIMARY KEY NOT NULL)",
        "CREATE TABLE sequenced (i INTEGER PRIMARY KEY AUTOINCREMENT)",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE VIRTUAL TABLE search USING fts5(body)",
        "INSERT INTO t VALUES (7, 'x')",
    )
    with captured(path, writer, *schema) as adapter:
        catalog = adapter.catalog()
        keys = {relation.name: relation.key for relation in catalog}
        assert keys == {
            "t": ("a",),
            "nullable_key": (),
            "strict_key": ("k",),
            "no_rowid": ("y", "x"),
            "by_index": ("k",),
            "partly": (),
            "by_time": (),
            "sequenced": ("i",),
        }
        assert catalog.relation("t").row_estimate == 7
        assert not catalog.relation("t").column("a").nullable
        assert catalog.relation("t").column("b").nullable
        writer("ANALYZE")
        assert adapter.catalog().relation("t").row_estimate == 1


def test_configured_relations_restrict_the_catalog(path: Path, writer: Writer) -> None:
    writer(T, "CREATE TABLE u (x INT)")
    with adapter_on(path, ("u",)) as adapter:
        assert list(adapter.catalog().relations) == ["u"]
    with adapter_on(path, ("nothing",)) as adapter:
        with pytest.raises(ConfigurationError, match="no relation 'nothing'; it has: t, u"):
            adapter.catalog()
        with pytest.raises(ConfigurationError, match="no relation 'x'; it has: t, u"):
            adapter.prepare(["x"])


def test_preparing_twice_changes_nothing(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        before = schema_of(writer)
        writer("INSERT INTO t VALUES (1, 'x')")
        at = position(adapter)
        assert adapter.prepare(["t"]) == []
        assert schema_of(writer) == before
        assert position(adapter).token == at.token
        assert len(changes(adapter, ORIGIN)) == 1


def test_a_dry_run_says_what_would_be_done_and_does_nothing(path: Path, writer: Writer) -> None:
    writer(T)
    with adapter_on(path) as adapter:
        before = schema_of(writer)
        planned = adapter.prepare(["t"], dry_run=True)
        assert planned[0] == "PRAGMA journal_mode = WAL"
        assert any("CREATE TRIGGER" in step for step in planned)
        assert schema_of(writer) == before
        assert writer("PRAGMA journal_mode") == [["delete"]]
        assert adapter.prepare(["t"]) == planned
        removal = adapter.remove(dry_run=True)
        assert removal
        assert schema_of(writer) != before
        assert adapter.remove() == removal


@pytest.mark.parametrize("journal", ["wal", "keep"])
def test_removal_leaves_no_trace(path: Path, writer: Writer, journal: str) -> None:
    writer(T, "CREATE TABLE u (x TEXT UNIQUE)", "INSERT INTO t VALUES (1, 'x')")
    before = schema_of(writer)
    with adapter_on(path, journal=journal) as adapter:
        adapter.prepare(["t", "u"])
        writer("REPLACE INTO t VALUES (1, 'y')", "INSERT OR IGNORE INTO u VALUES ('x'), ('x')")
        assert len(changes(adapter, ORIGIN)) > 0
        writer.open(":memory:")  # the journal mode can only be restored while nobody else is there
        adapter.remove()
        assert adapter.remove() == []
    writer.open(path)
    assert schema_of(writer) == before
    assert writer("PRAGMA journal_mode") == [["delete"]]
    assert writer("PRAGMA integrity_check") == [["ok"]]
    with adapter_on(path) as adapter, pytest.raises(ConfigurationError, match="not prepared"):
        changes(adapter, ORIGIN)


def test_a_wider_relation_can_join_later(path: Path, writer: Writer) -> None:
    columns = ", ".join(f"x{i} INT" for i in range(30))
    with captured(path, writer, T, f"CREATE TABLE wide ({columns})", relations=("t",)) as adapter:
        writer("INSERT INTO t VALUES (1, 'x')", "INSERT INTO wide (x0) VALUES (0)")
        at = position(adapter)
        adapter.prepare(["wide"])
        writer("BEGIN", "INSERT INTO wide (x29) VALUES (9)", "INSERT INTO t VALUES (2, 'y')", "COMMIT")
        assert deltas(changes(adapter, at)) == [
            {"t": {(2, "y"): 1}, "wide": {(*[None] * 29, 9): 1}},
        ]
        assert len(changes(adapter, ORIGIN)) == 2


def test_a_changed_relation_is_named_and_can_be_prepared_again(path: Path, writer: Writer) -> None:
    with captured(path, writer, T, "CREATE TABLE u (x INT)") as adapter:
        writer("INSERT INTO t VALUES (1, 'x')", "INSERT INTO u VALUES (1)")
        at = position(adapter)
        writer("ALTER TABLE t ADD COLUMN c INT")
        with pytest.raises(
            SchemaChangedError, match=r"shop\.t has to be prepared again: its columns changed"
        ):
            changes(adapter, at)
        writer("INSERT INTO t VALUES (2, 'y', 3)")
        newest = position(adapter)
        adapter.prepare(["u"])
        resumed = position(adapter)
        writer("INSERT INTO t VALUES (3, 'z', 4)")
        for lost in (at, newest):
            with pytest.raises(SchemaChangedError, match="prepared anew"):
                changes(adapter, lost)
        with adapter.snapshot() as snapshot:
            assert snapshot.position.ordinal == at.ordinal + 2
        assert resumed.ordinal == newest.ordinal == at.ordinal + 1
        assert deltas(changes(adapter, resumed)) == [{"t": {(3, "z", 4): 1}}]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("DROP TABLE t", "no longer exists"),
        ("ALTER TABLE t RENAME TO other", "no longer exists"),
        ("ALTER TABLE t RENAME COLUMN b TO bb", "its columns changed"),
        ("CREATE UNIQUE INDEX late ON t (b)", "no longer match its constraints"),
        ('DROP TRIGGER "_lockstep_delete: t"', "or are gone"),
    ],
)
def test_drift_of_every_kind_is_noticed(path: Path, writer: Writer, change: str, what: str) -> None:
    with captured(path, writer, T, "CREATE TABLE u (x INT)") as adapter:
        at = position(adapter)
        writer(change)
        with pytest.raises(SchemaChangedError, match=f"t has to be prepared again: .*{what}"):
            changes(adapter, at)
        adapter.prepare(["u"])
        at = position(adapter)
        writer("INSERT INTO u VALUES (1)")
        assert deltas(changes(adapter, at)) == [{"u": {(1,): 1}}]


REBUILT = (
    "CREATE TABLE t2 (a INTEGER PRIMARY KEY, b TEXT)",
    "INSERT INTO t2 SELECT * FROM t",
    "DROP TABLE t",
    "ALTER TABLE t2 RENAME TO t",
    "INSERT INTO t VALUES (9, 'in no log')",
)


@pytest.mark.parametrize("logged", [0, 1])
def test_what_a_rebuilt_table_lost_is_lost_also_to_a_reader_at_the_end(
    path: Path, writer: Writer, logged: int
) -> None:
    """Prepare mends it, also when nobody has noticed it before."""
    with captured(path, writer, T, "CREATE TABLE u (x INT)") as adapter:
        for _ in range(logged):
            writer("INSERT INTO t VALUES (1, 'x')")
        at = position(adapter)
        assert len(changes(adapter, at)) == 0
    writer(*REBUILT)
    with adapter_on(path) as adapter:
        assert adapter.prepare(["u"])
        with pytest.raises(SchemaChangedError, match=f"t was prepared anew at position {logged}"):
            changes(adapter, at)
        again = position(adapter)
        assert adapter.prepare(["t", "u"]) == []
        writer("DELETE FROM t WHERE a = 9")
        assert deltas(changes(adapter, again)) == [{"t": {(9, "in no log"): -1}}]


BY_SQLITES_OWN_STEPS = (
    "CREATE TABLE t2 (a INTEGER PRIMARY KEY, b TEXT)",
    "INSERT INTO t2 SELECT a, b || '!' FROM t WHERE a <> 1",
    "DROP TABLE t",
    "ALTER TABLE t2 RENAME TO t",
)


@pytest.mark.parametrize("vacuum", [False, True])
@pytest.mark.parametrize("triggers", ["of the table", "all"])
@pytest.mark.parametrize(
    "meanwhile", [BY_SQLITES_OWN_STEPS, ("DELETE FROM t WHERE a = 1",)], ids=["remade", "triggers away"]
)
def test_triggers_that_were_made_again_from_their_text_are_no_capture(
    path: Path, writer: Writer, meanwhile: tuple[str, ...], triggers: str, vacuum: bool
) -> None:
    with captured(path, writer, T, "CREATE TABLE u (x INT)") as adapter:
        writer("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
        at = position(adapter)
        which = "" if triggers == "all" else "AND tbl_name = 't'"
        saved = writer(f"SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' {which} ORDER BY rowid")
        drops = [f'DROP TRIGGER "{name}"' for name, _ in saved]
        writer("BEGIN", *drops, *meanwhile, *(sql for _, sql in saved), "COMMIT")
        if vacuum:
            writer("VACUUM")
        with pytest.raises(SchemaChangedError, match=r"t has to be prepared again: .* gone for a while"):
            changes(adapter, at)
        assert adapter.prepare(["t"])
        with pytest.raises(SchemaChangedError, match="prepared anew"):
            changes(adapter, at)
        again = position(adapter)
        assert adapter.prepare(["t", "u"]) == []
        writer("INSERT INTO t VALUES (3, 'z')")
        assert deltas(changes(adapter, again)) == [{"t": {(3, "z"): 1}}]


def test_vacuum_and_what_others_add_to_the_schema_is_no_drift(path: Path, writer: Writer) -> None:
    schema = (T, "CREATE TABLE gone (x INT)", "PRAGMA auto_vacuum = FULL", "VACUUM")
    with captured(path, writer, *schema, relations=("t",)) as adapter:
        start = position(adapter)
        writer("DROP TABLE gone", "CREATE TABLE u (x INT)", "CREATE VIEW v AS SELECT * FROM t", "VACUUM")
        writer("CREATE TRIGGER theirs AFTER INSERT ON t BEGIN INSERT INTO u VALUES (NEW.a); END")
        writer("INSERT INTO t VALUES (1, 'x')", "VACUUM", "INSERT INTO t VALUES (2, 'y')")
        assert deltas(changes(adapter, start)) == [{"t": {(1, "x"): 1}}, {"t": {(2, "y"): 1}}]
    with adapter_on(path) as adapter:
        adapter.prepare(["u"])
        at = position(adapter)
        writer("VACUUM", "INSERT INTO t VALUES (3, 'z')")
        assert deltas(changes(adapter, at)) == [{"t": {(3, "z"): 1}, "u": {(3,): 1}}]
        assert net(changes(adapter, start), "t") == {(1, "x"): 1, (2, "y"): 1, (3, "z"): 1}


def test_a_capture_of_an_older_version_is_installed_anew(path: Path, writer: Writer) -> None:
    """It has neither the table nor the view by which rows and triggers that were made anew are known."""
    with captured(path, writer, T) as adapter:
        before = schema_of(writer)
        writer("INSERT INTO t VALUES (1, 'x')", "DROP VIEW _lockstep_prepared", "DROP TABLE _lockstep_rowids")
        at = position(adapter)
        with pytest.raises(SchemaChangedError, match="t has to be prepared again"):
            changes(adapter, at)
        adapter.prepare(["t"])
        assert {row[:2] for row in before} == {row[:2] for row in schema_of(writer)}
        with pytest.raises(SchemaChangedError, match="t was prepared anew at position 1"):
            changes(adapter, at)
        again = position(adapter)
        writer("INSERT INTO t VALUES (2, 'y')")
        assert deltas(changes(adapter, again)) == [{"t": {(2, "y"): 1}}]


def test_a_table_that_was_gone_is_not_taken_for_the_one_of_before(path: Path, writer: Writer) -> None:
    """Another relation is prepared meanwhile, by which the one that is gone is forgotten."""
    with captured(path, writer, T, "CREATE TABLE u (x INT)") as follower:
        writer("INSERT INTO t VALUES (1, 'x')")
        at = position(follower)
        writer("DROP TABLE t")
        with adapter_on(path) as other:
            other.prepare(["u"])
            known = position(other)
        writer("INSERT INTO u VALUES (1)", T)
        for again in ([], ["t"]):
            follower.prepare(again)
            with pytest.raises(PositionTrimmedError, match="a relation was lost and prepared again"):
                changes(follower, at)
            with pytest.raises(PositionTrimmedError):
                changes(follower, ORIGIN)
        # A relation that is new to everybody who is still there costs nobody the place.
        writer("INSERT INTO t VALUES (2, 'y')")
        assert deltas(changes(follower, known)) == [{"u": {(1,): 1}}, {"t": {(2, "y"): 1}}]


def test_an_index_or_a_new_table_is_no_drift(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        writer("CREATE INDEX i ON t (b)", "CREATE TABLE later (x INT)", "INSERT INTO t VALUES (1, 'x')")
        assert len(changes(adapter, ORIGIN)) == 1


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_acknowledged_history_is_trimmed_and_the_rest_kept(path: Path, writer: Writer) -> None:
    writer(T)
    clock = Clock()
    adapter = SqliteAdapter(config(path), clock)
    try:
        adapter.prepare(["t"])
        for i in range(10):
            writer(f"INSERT INTO t VALUES ({2 * i}, 'x'), ({2 * i + 1}, 'y')")
        run = changes(adapter, ORIGIN)
        middle, end = run.positions[4], run.positions[-1]
        adapter.acknowledge(middle)
        assert writer("SELECT count(*) FROM _lockstep_log") == [[21]]  # too soon, and too few
        clock.now += 2
        adapter.acknowledge(middle)
        assert writer("SELECT min(seq), max(seq) FROM _lockstep_log") == [[11, 20]]
        writer("INSERT INTO t VALUES (100, 'z')")
        with pytest.raises(PositionTrimmedError, match="history up to 10 was trimmed, position 8"):
            changes(adapter, run.positions[3])
        with pytest.raises(PositionTrimmedError):
            changes(adapter, ORIGIN)
        rest = changes(adapter, middle)
        assert rest.positions == (*run.positions[5:], Position(21))
        assert rest.batched == frozenset()
        clock.now += 2
        adapter.acknowledge(end)
        adapter.acknowledge(middle)  # never goes back
        clock.now += 2
        adapter.acknowledge(position(adapter))
        assert writer("SELECT count(*), max(seq) FROM _lockstep_log") == [[1, 21]]  # the newest row stays
        writer("INSERT INTO t VALUES (101, 'z')")
        assert deltas(changes(adapter, rest.positions[-1])) == [{"t": {(101, "z"): 1}}]
    finally:
        adapter.close()


def test_trimming_does_not_disturb_the_boundaries(path: Path, writer: Writer) -> None:
    writer(T)
    clock = Clock()
    adapter = SqliteAdapter(config(path), clock)
    try:
        adapter.prepare(["t"])
        at = position(adapter)
        for i in range(40):
            rows = ", ".join(f"({100 * i + n}, hex(randomblob(300)))" for n in range(30))
            writer(f"INSERT INTO t VALUES {rows}")
            writer(f"DELETE FROM t WHERE a = {100 * i}")
            run = changes(adapter, at)
            assert [p.ordinal for p in run.positions] == [at.ordinal + 30, at.ordinal + 31]
            assert run.batched == frozenset()
            at = run.positions[-1]
            clock.now += 2
            adapter.acknowledge(run.positions[i % 2])
    finally:
        adapter.close()


def test_a_new_history_is_trimmed_from_its_start(path: Path, writer: Writer) -> None:
    writer(T)
    clock = Clock()
    adapter = SqliteAdapter(config(path, journal="keep"), clock)
    try:
        for rows in (9, 3):
            adapter.prepare(["t"])
            writer(*[f"REPLACE INTO t VALUES ({i + 100 * rows}, 'x')" for i in range(rows)])
            clock.now += 2
            adapter.acknowledge(position(adapter))
            assert writer("SELECT count(*), max(seq) FROM _lockstep_log") == [[1, rows]]
            clock.now += 2
            adapter.acknowledge(Position(10**6, "another"))
            assert writer("SELECT count(*), max(seq) FROM _lockstep_log") == [[1, rows]]
            adapter.remove()
    finally:
        adapter.close()


def test_a_history_that_was_restored_is_trimmed_from_there(path: Path, writer: Writer) -> None:
    """What was acknowledged before is further on, and of the history that was given up."""
    writer(T)
    clock = Clock()
    adapter = SqliteAdapter(config(path), clock)
    try:
        adapter.prepare(["t"])
        writer("INSERT INTO t VALUES (1, 'x')")
        backup = Backup(path)
        writer(*[f"INSERT INTO t VALUES ({i}, 'x')" for i in range(2, 10)])
        clock.now += 2
        adapter.acknowledge(position(adapter))
        backup.restore()
        for end in (4, 6):
            writer(*[f"INSERT INTO t VALUES ({i}, 'y')" for i in range(end - 2, end)])
            clock.now += 2
            adapter.acknowledge(position(adapter))
        assert writer("SELECT count(*), max(seq) FROM _lockstep_log") == [[1, 5]]
    finally:
        adapter.close()


def test_a_locked_source_is_trimmed_later(path: Path, writer: Writer) -> None:
    writer(T)
    clock = Clock()
    adapter = SqliteAdapter(config(path), clock)
    try:
        adapter.prepare(["t"])
        writer("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
        at = position(adapter)
        writer("BEGIN IMMEDIATE")
        clock.now += 2
        adapter.acknowledge(at)
        writer("COMMIT")
        assert writer("SELECT count(*) FROM _lockstep_log") == [[3]]
        clock.now += 2
        adapter.acknowledge(at)
        assert writer("SELECT count(*) FROM _lockstep_log") == [[1]]
    finally:
        adapter.close()


def test_positions_of_another_history_are_refused(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        writer("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
        at = position(adapter)
        with pytest.raises(PositionTrimmedError, match="beyond the end of its history"):
            changes(adapter, Position(9, at.token))
        with pytest.raises(PositionTrimmedError, match="another history"):
            changes(adapter, Position(1, "someone else's"))
        with pytest.raises(PositionTrimmedError, match="another history"):
            changes(adapter, Position(1))


def test_a_hand_edited_log_is_noticed(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        writer(*[f"INSERT INTO t VALUES ({i}, 'x')" for i in range(5)])
        writer("DELETE FROM _lockstep_log WHERE seq = 3")
        with pytest.raises(PositionTrimmedError, match="1 rows are missing"):
            changes(adapter, ORIGIN)


def test_a_database_replaced_by_a_backup_is_noticed(path: Path, writer: Writer, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    with captured(path, writer, T) as adapter:
        writer("INSERT INTO t VALUES (1, 'x')", f"VACUUM INTO '{backup}'", "INSERT INTO t VALUES (2, 'y')")
        at = position(adapter)
        assert contents(adapter, "t") == Counter([(1, "x"), (2, "y")])
        writer.open(":memory:")
        for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            file.unlink(missing_ok=True)
        backup.rename(path)
        assert contents(adapter, "t") == Counter([(1, "x")])
        with pytest.raises(PositionTrimmedError, match="restored from a backup"):
            changes(adapter, at)
        assert net(changes(adapter, ORIGIN), "t") == {(1, "x"): 1}


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_backup_that_was_written_further_is_noticed(
    path: Path, writer: Writer, tmp_path: Path, acknowledged: bool
) -> None:
    """The numbers alone would fit: only the rows behind them are others."""
    backup = tmp_path / "backup.db"
    with captured(path, writer, T) as adapter:
        writer("INSERT INTO t VALUES (1, 'x')", f"VACUUM INTO '{backup}'", "INSERT INTO t VALUES (2, 'y')")
        at = position(adapter)
        writer.open(":memory:")
        for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            file.unlink(missing_ok=True)
        backup.rename(path)
        writer.open(path)
        writer("INSERT INTO t VALUES (2, 'y')", "INSERT INTO t VALUES (3, 'z')")
        if acknowledged:  # of the lost history: this one must not be trimmed by it
            adapter.acknowledge(at)
        assert position(adapter).ordinal > at.ordinal
        with pytest.raises(PositionTrimmedError, match="of another history"):
            changes(adapter, at)
        assert len(changes(adapter, ORIGIN)) >= 1


def test_a_position_is_still_known_when_everything_up_to_it_was_trimmed(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        writer("INSERT INTO t VALUES (1, 'x')", "INSERT INTO t VALUES (2, 'y')")
        at = position(adapter)
        writer("INSERT INTO t VALUES (3, 'z')")
        adapter.acknowledge(at)
        trim(adapter._session.writer, at, "nonce")  # type: ignore[union-attr]
        assert writer("SELECT min(seq) FROM _lockstep_log") == [[3]]
        assert deltas(changes(adapter, at)) == [{"t": {(3, "z"): 1}}]


def test_a_snapshot_does_not_move(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        writer("INSERT INTO t VALUES (1, 'x')")
        query = view_of(adapter, {"t": "t"})
        with adapter.snapshot() as snapshot:
            at = snapshot.position
            writer("INSERT INTO t VALUES (2, 'y')")
            assert snapshot.position == at
            assert len(snapshot.changes(ORIGIN)) == 1
            assert bag(snapshot.fetch(query).read_all()) == Counter([(1, "x")])
        with adapter.snapshot() as snapshot:
            assert len(snapshot.changes(at)) == 1


def test_waiting_ends_with_a_commit_and_not_before(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        adapter.wait(60)  # nothing was read yet, so anything may have changed
        at = position(adapter)
        adapter.wait(0.01)
        assert position(adapter) == at
        writer("INSERT INTO t VALUES (1, 'x')")
        adapter.wait(60)
        assert len(changes(adapter, at)) == 1


def test_waiting_ends_when_woken(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        position(adapter)
        adapter.wake()
        adapter.wait(60)
        woken = threading.Timer(0.05, adapter.wake)
        woken.start()
        adapter.wait(60)
        woken.join()


def test_trims_of_our_own_do_not_wake_us(path: Path, writer: Writer) -> None:
    writer(T)
    clock = Clock()
    adapter = SqliteAdapter(config(path), clock)
    try:
        adapter.prepare(["t"])
        writer("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
        at = position(adapter)
        clock.now += 2
        adapter.acknowledge(at)
        assert writer("SELECT count(*) FROM _lockstep_log") == [[1]]
        waiting = threading.Thread(target=adapter.wait, args=(60,))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        adapter.wake()
        waiting.join()
    finally:
        adapter.close()


def test_closing_ends_a_wait(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        position(adapter)
        waiting = threading.Thread(target=adapter.wait, args=(60,))
        waiting.start()
        adapter.close()
        waiting.join()


def test_checkpoints_of_others_get_through(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        writer("INSERT INTO t VALUES (1, 'x')")
        position(adapter)
        done = threading.Event()

        def truncate() -> None:
            # Blocks until no reader needs the log any more.
            assert writer("PRAGMA wal_checkpoint(TRUNCATE)")[0][0] == 0
            done.set()

        thread = threading.Thread(target=truncate)
        thread.start()
        while not done.is_set():
            adapter.wait(1)
        thread.join()
        assert Path(f"{path}-wal").stat().st_size == 0


def test_a_closed_adapter_refuses_and_lets_go(path: Path, writer: Writer) -> None:
    writer(T)
    adapter = SqliteAdapter(config(path))
    adapter.prepare(["t"])
    with adapter.snapshot() as snapshot:
        adapter.close()
        assert snapshot.position.ordinal == 0  # what is open may be finished
    with pytest.raises(ConfigurationError, match="closed"):
        adapter.catalog()
    adapter.close()
    # No connection is left, so the journal mode can be changed.
    assert writer("PRAGMA journal_mode = DELETE") == [["delete"]]


def test_constructing_does_not_connect(tmp_path: Path) -> None:
    SqliteAdapter(config(tmp_path / "none.db")).close()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    with (
        adapter_on(tmp_path / "none.db") as adapter,
        pytest.raises(SourceUnavailableError, match="No such file"),
    ):
        adapter.catalog()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello " * 1000)
    with adapter_on(file) as adapter, pytest.raises(ConfigurationError, match="not a database"):
        adapter.catalog()
    with adapter_on(tmp_path) as adapter, pytest.raises(ConfigurationError, match="not a file"):
        adapter.catalog()


def test_a_locked_database_is_retryable(path: Path, writer: Writer) -> None:
    writer(T)
    with adapter_on(path) as adapter:
        adapter.catalog()
        writer("BEGIN EXCLUSIVE")
        with pytest.raises(SourceUnavailableError, match="locked"):
            adapter.catalog()
        writer("COMMIT")
        assert list(adapter.catalog().relations) == ["t"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "sqlite://x.db"},
        {"url": "sqlite:///"},
        {"capture": "log"},
        {"options": {"journal": "off"}},
        {"options": {"replace": "maybe"}},
        {"options": {"wal_limit_mb": 0}},
        {"options": {"speed": 11}},
    ],
)
def test_wrong_configuration_is_refused(wrong: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"name": "s", "adapter": "sqlite", "url": "sqlite:///x.db", **wrong}
    with pytest.raises(ConfigurationError):
        SqliteAdapter(SourceConfig(**settings))


def test_the_registry_knows_it(path: Path, writer: Writer) -> None:
    writer(T)
    adapter = create(config(path))
    try:
        assert isinstance(adapter, SqliteAdapter)
        assert adapter.capabilities.boundaries is Boundaries.WHERE_KNOWN
    finally:
        adapter.close()


def test_writers_are_never_kept_from_writing(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        writer("PRAGMA busy_timeout = 0")
        with adapter.snapshot():
            writer("INSERT INTO t VALUES (1, 'x')")
        writer("INSERT INTO t VALUES (2, 'y')")
        with pytest.raises(WriteError):
            writer("INSERT INTO t VALUES (2, 'y')")
