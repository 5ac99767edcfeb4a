"""What is the SQLAlchemy adapter's own: cycles and their pace, isolation, drivers, time limits, schemas."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from adapters.conformance.check import check_source
from adapters.conformance.queries import select
from adapters.shadow.store import shadow_file
from adapters.spi import Level, SourceConfig
from adapters.sqlalchemy.adapter import SqlAlchemyAdapter
from adapters.sqlalchemy.tests.conftest import Clock, MakeAdapter, on_all, on_mariadb, on_postgresql
from adapters.sqlalchemy.tests.harnesses import SqlAlchemyHarness, SqliteHarness
from adapters.sqlalchemy.tests.support import deltas_after, position_of, rows_of
from algebra.errors import ConfigurationError, DataError, SchemaChangedError, SourceUnavailableError
from algebra.position import ORIGIN

T = "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, n INTEGER)"
U = "CREATE TABLE u (id INTEGER NOT NULL PRIMARY KEY, n INTEGER)"


# Pace


def test_snapshots_between_cycles_show_the_last_one_and_leave_the_source_alone(
    database: SqlAlchemyHarness, make: MakeAdapter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(T)
    adapter = make(poll_interval=10)
    adapter.prepare(["t"])
    before = position_of(adapter)
    query = select(adapter.catalog(), {"t": "t"}, [("t", "id")])
    database.execute("INSERT INTO t VALUES (1, 1)")
    monkeypatch.setattr(adapter._database, "_create", lambda: pytest.fail("the source was touched"))
    adapter._database._engine = None
    clock.now += 9
    with adapter.snapshot() as snapshot:
        assert snapshot.position == before
        assert len(snapshot.changes(before)) == 0
        assert snapshot.fetch(query).read_all().num_rows == 0
    monkeypatch.undo()
    clock.now += 1
    with adapter.snapshot() as snapshot:
        assert len(snapshot.changes(before)) == 1
        assert snapshot.fetch(query).read_all().num_rows == 1


def test_waiting_lasts_until_the_next_cycle_is_due(
    database: SqlAlchemyHarness, make: MakeAdapter, clock: Clock
) -> None:
    database.execute(T)
    adapter = make(poll_interval=3600)
    adapter.prepare(["t"])
    position_of(adapter)
    returned = threading.Event()

    def wait() -> None:
        adapter.wait(3600)
        returned.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not returned.wait(0.1)
    adapter.wake()
    assert returned.wait(30)
    thread.join()
    clock.now += 3600
    adapter.wait(3600)


def test_relations_prepared_later_are_shown_with_a_cycle_of_all(
    database: SqlAlchemyHarness, make: MakeAdapter
) -> None:
    """The rows of the new relation are newer than those of the others; nobody is shown both."""
    database.execute(T, U)
    adapter = make(poll_interval=3600)
    adapter.prepare(["t"])
    before = position_of(adapter)
    database.execute("INSERT INTO t VALUES (1, 1)", "INSERT INTO u VALUES (1, 1)")
    adapter.prepare(["u"])
    assert deltas_after(adapter, before) == [{"t": {(1, 1): 1}}]
    assert rows_of(adapter, "u") == {(1, 1): 1}


def test_a_relation_that_is_not_prepared_is_read_from_the_source(
    database: SqlAlchemyHarness, make: MakeAdapter
) -> None:
    database.execute(T, U, "INSERT INTO t VALUES (1, 1)", "INSERT INTO u VALUES (1, 2)")
    adapter = make(poll_interval=3600)
    joined = select(adapter.catalog(), {"t": "t", "u": "u"}, [("u", "n")], joins=[(("t", "id"), ("u", "id"))])
    with adapter.snapshot() as snapshot:
        assert snapshot.fetch(joined).read_all().num_rows == 1
        with pytest.raises(ConfigurationError, match="prepare it first"):
            _ = snapshot.position
    adapter.prepare(["t"])
    with adapter.snapshot() as snapshot:
        assert snapshot.fetch(joined).read_all().num_rows == 1
    # Between two cycles the one is older than the other.
    with adapter.snapshot() as snapshot, pytest.raises(SourceUnavailableError, match="prepare them"):
        snapshot.fetch(joined)


def test_a_source_can_be_looked_over_before_and_after_prepare(
    database: SqlAlchemyHarness, make: MakeAdapter
) -> None:
    database.execute(T, U, "INSERT INTO t VALUES (1, 1)", "INSERT INTO u VALUES (1, 2)")
    adapter = make(poll_interval=3600)
    for relations in ([], ["t"], ["u"]):
        if relations:
            adapter.prepare(relations)
        assert [result for result in check_source(adapter) if not result.ok] == []


def test_a_lost_shadow_starts_a_new_history(database: SqlAlchemyHarness, make: MakeAdapter) -> None:
    database.execute(T)
    adapter = make()
    adapter.prepare(["t"])
    old = position_of(adapter)
    shadow_file(database.shadow).unlink()
    database.execute("INSERT INTO t VALUES (1, 1)")
    now = position_of(adapter)
    assert now.token != old.token
    assert rows_of(adapter, "t") == {(1, 1): 1}


@on_all
def test_columns_that_trade_their_places_do_not_trade_their_values(
    database: SqlAlchemyHarness, make: MakeAdapter
) -> None:
    database.execute(
        "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, a INTEGER, b INTEGER)",
        "INSERT INTO t VALUES (1, 10, 20)",
    )
    adapter = make()
    adapter.prepare(["t"])
    before = position_of(adapter)
    database.execute(
        "DROP TABLE t",
        "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, b INTEGER, a INTEGER)",
        "INSERT INTO t (id, a, b) VALUES (1, 10, 20)",
    )
    with pytest.raises(SchemaChangedError, match="changed the order of its columns"):
        deltas_after(adapter, before)


# Isolation


@on_postgresql
@pytest.mark.parametrize(
    "swept",
    [
        "TRUNCATE TABLE u",
        "DROP TABLE u; " + U,
        "ALTER TABLE u RENAME TO old; " + U,
        "DROP TABLE part",
    ],
)
def test_a_table_that_is_swept_while_others_are_read_is_not_seen_empty(
    database: SqlAlchemyHarness, make: MakeAdapter, swept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's snapshots do not cover what is done to a table as a whole: the rows of before are gone,
    and those of after are too young."""
    database.execute(T, U)
    if "part" in swept:
        database.execute(
            "DROP TABLE u",
            U.replace("PRIMARY KEY", "") + " PARTITION BY LIST (id)",
            "CREATE TABLE part PARTITION OF u FOR VALUES IN (1)",
            "CREATE TABLE rest PARTITION OF u DEFAULT",
        )
    database.execute("INSERT INTO t VALUES (1, 1)", "INSERT INTO u VALUES (1, 1), (2, 2)")
    adapter = make(("t", "u"))
    adapter.prepare(["t", "u"])
    before = position_of(adapter)
    whole = f"{swept}; INSERT INTO u VALUES (3, 3); UPDATE t SET n = 3"
    held: list[str] = []
    spend = adapter._database.spend

    def sweep() -> None:
        spend()
        if not held:
            with pytest.raises(psycopg.errors.LockNotAvailable):
                database.execute(f"BEGIN; LOCK TABLE u NOWAIT; {whole}; COMMIT")
            held.append(whole)

    monkeypatch.setattr(adapter._database, "spend", sweep)
    assert deltas_after(adapter, before) == []
    assert held
    database.execute(f"BEGIN; {whole}; COMMIT")
    (entry,) = deltas_after(adapter, before)
    assert entry["t"] == {(1, 1): -1, (1, 3): 1}
    assert entry["u"][3, 3] == 1


@on_postgresql
def test_a_table_that_was_dropped_cannot_be_held_and_is_told_of(
    database: SqlAlchemyHarness, make: MakeAdapter
) -> None:
    database.execute(T, "CREATE SCHEMA sales", "CREATE TABLE sales.u (id INTEGER NOT NULL PRIMARY KEY)")
    database.execute("GRANT USAGE ON SCHEMA sales TO reader", "GRANT SELECT ON sales.u TO reader")
    adapter = make(schemas=["sales"])
    adapter.prepare(["t", "sales.u"])
    before = position_of(adapter)
    assert deltas_after(adapter, before) == []
    database.execute("DROP TABLE sales.u")
    with pytest.raises(SchemaChangedError, match=r"sales\.u was dropped"):
        deltas_after(adapter, before)


@on_postgresql
@pytest.mark.usefixtures("database")
def test_the_read_transaction_cannot_write_and_reads_one_state(make: MakeAdapter) -> None:
    adapter = make()
    with adapter._database.reading() as connection:
        shown = connection.exec_driver_sql(
            "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')"
        ).one()
    assert tuple(shown) == ("repeatable read", "on")


def test_without_isolation_the_guarantee_is_lower_and_must_be_asked_for(
    database: SqlAlchemyHarness, make: MakeAdapter
) -> None:
    database.execute(T, "INSERT INTO t VALUES (1, 1)")
    assert make().capabilities.level is Level.STRONG
    adapter = make(isolation="none")
    assert adapter.capabilities.level is Level.CONVERGENT
    adapter.prepare(["t"])
    assert rows_of(adapter, "t") == {(1, 1): 1}


def test_a_dialect_without_known_isolation_is_refused(
    database: SqlAlchemyHarness, make: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adapters.sqlalchemy import dialects

    database.execute(T)
    monkeypatch.delitem(dialects.RULES, "sqlite")
    with pytest.raises(ConfigurationError, match="name it in option `isolation`") as caught:
        make().catalog()
    assert "\n" not in str(caught.value)
    assert list(make(isolation="SERIALIZABLE").catalog().relations) == ["t"]


@on_mariadb
def test_tables_without_snapshots_are_refused(database: SqlAlchemyHarness, make: MakeAdapter) -> None:
    database.execute(f"{T} ENGINE = InnoDB", f"{U} ENGINE = Aria")
    with pytest.raises(ConfigurationError, match="stored by Aria, which has no snapshots"):
        make().prepare(["u"])
    make(("t",)).prepare(["t"])
    assert make(isolation="none").prepare(["u"])


# Drivers and urls


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("oracle+oracledb://scott:tiger@host/x", "driver of 'oracle\\+oracledb' is not installed"),
        ("mssql+pyodbc://sa:tiger@host/x", "driver of 'mssql\\+pyodbc' is not installed"),
        ("nonsense://sa:tiger@host/x", "no SQLAlchemy dialect 'nonsense'"),
        ("sa:tiger@host", "the url is not of the form"),
    ],
)
def test_what_is_missing_is_named_without_the_password(url: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        SqlAlchemyAdapter(SourceConfig("shop", "sqlalchemy", url)).catalog()
    assert "\n" not in str(caught.value)
    assert "tiger" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"capture": "log"}, "capture 'log' is not diff"),
        ({"options": {"pol_interval": 1}}, "unknown option 'pol_interval'"),
        ({"options": {"poll_interval": -1}}, "poll_interval is -1"),
        ({"options": {"chunk_rows": 0}}, "chunk_rows is 0"),
        ({"options": {"memory_limit": "much"}}, "memory_limit is 'much', not a size"),
        ({"options": {"exclude": "t.n"}}, "exclude is 't.n'"),
        ({"options": {"statement_timeout": "x"}}, "statement_timeout is 'x'"),
    ],
)
def test_wrong_configuration_is_one_clear_line(changed: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"name": "shop", "adapter": "sqlalchemy", "url": "sqlite:///x.db", **changed}
    with pytest.raises(ConfigurationError, match=message) as caught:
        SqlAlchemyAdapter(SourceConfig(**values))
    assert "\n" not in str(caught.value)


def test_the_shadow_is_in_the_working_directory_unless_configured(
    database: SqlAlchemyHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    database.execute(T)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    adapter = SqlAlchemyAdapter(SourceConfig("my shop", "sqlalchemy", database.url))
    adapter.prepare(["t"])
    assert [file.name for file in elsewhere.iterdir()] == ["my_shop.lockstep-shadow"]
    adapter.remove()
    assert list(elsewhere.iterdir()) == []
    adapter.close()


def test_a_shadow_is_of_one_database_whoever_else_comes_to_its_folder(
    database: SqlAlchemyHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    database.execute(T, "INSERT INTO t VALUES (1, 1)")
    other = tmp_path / "other"
    other.mkdir()
    SqliteHarness(other).execute(T, "INSERT INTO t VALUES (2, 2)")
    config = SourceConfig("shop", "sqlalchemy", database.url, options={"poll_interval": 0})
    adapter = SqlAlchemyAdapter(config)
    foreign = SqlAlchemyAdapter(replace(config, url=SqliteHarness(other).url))
    adapter.prepare(["t"])
    before = position_of(adapter)
    with pytest.raises(ConfigurationError, match=r"shop\.lockstep-shadow is the shadow of another database"):
        foreign.prepare(["t"])
    with pytest.raises(ConfigurationError, match="name another folder in option `shadow`"):
        position_of(foreign)
    assert deltas_after(adapter, before) == []
    again = SqlAlchemyAdapter(replace(config, url="sqlite:///shop.db"))
    assert position_of(again) == before, "the same file, named otherwise"
    for made in (adapter, foreign, again):
        made.close()


# Time limits


@on_postgresql
def test_a_statement_that_takes_too_long_is_ended_by_the_source(
    database: SqlAlchemyHarness, make: MakeAdapter
) -> None:
    database.execute(
        "CREATE VIEW slow AS SELECT 1 AS n FROM pg_sleep(3600)",
    )
    adapter = make(("slow",), statement_timeout=0.3)
    with pytest.raises(SourceUnavailableError, match="statement timeout"):
        adapter.prepare(["slow"])
    assert not database.shadow.exists()


@on_mariadb
def test_a_statement_that_takes_too_long_is_ended_by_mariadb(
    database: SqlAlchemyHarness, make: MakeAdapter
) -> None:
    database.execute("CREATE TABLE one (n INTEGER)", "INSERT INTO one VALUES (1), (2), (3)")
    # For views, MariaDB asks for a right of its own.
    database.execute("CREATE VIEW slow AS SELECT SLEEP(3600 * n) AS n FROM one")
    with pytest.raises(ConfigurationError, match="SHOW VIEW"):
        make(("slow",)).prepare(["slow"])
    database.execute("GRANT SHOW VIEW ON slow TO reader@'%'")
    adapter = make(("slow",), statement_timeout=0.3)
    with pytest.raises(SourceUnavailableError, match="max_statement_time"):
        adapter.prepare(["slow"])


def test_a_time_limit_that_the_database_cannot_keep_is_refused(
    database: SqlAlchemyHarness, make: MakeAdapter
) -> None:
    database.execute(T)
    with pytest.raises(ConfigurationError, match="cannot end statements by time"):
        make(statement_timeout=5).catalog()


def test_statements_are_counted_against_the_rate_limit(
    database: SqlAlchemyHarness, make: MakeAdapter
) -> None:
    database.execute(T, "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
    adapter = make(rate_limit=1000, chunk_rows=1)
    spent: list[float] = []
    adapter._database._limit.spend = lambda statements=1.0: spent.append(statements)  # type: ignore[method-assign]
    adapter.prepare(["t"])
    assert sum(spent) == 5, "one statement for each page, and one that finds no more"


# Reading


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 1000])
def test_pages_by_key_miss_and_repeat_nothing(
    database: SqlAlchemyHarness, make: MakeAdapter, chunk_rows: int
) -> None:
    database.execute("CREATE TABLE t (a INTEGER NOT NULL, b INTEGER NOT NULL, n TEXT, PRIMARY KEY (a, b))")
    rows = [(a, b, f"{a}.{b}") for a in (-2, 0, 7) for b in (-1, 3, 2**40)]
    database.execute(f"INSERT INTO t VALUES {', '.join(map(str, rows))}")
    adapter = make(chunk_rows=chunk_rows)
    adapter.prepare(["t"])
    assert rows_of(adapter, "t") == dict.fromkeys(rows, 1)


@on_postgresql
def test_further_schemas_views_and_excluded_columns(database: SqlAlchemyHarness, make: MakeAdapter) -> None:
    database.execute(
        T,
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.t (id INTEGER PRIMARY KEY, secret TEXT, place POINT)",
        "CREATE VIEW doubled AS SELECT id, 2 * n AS n FROM t",
        "GRANT USAGE ON SCHEMA sales TO reader",
        "GRANT SELECT ON sales.t TO reader",
        "INSERT INTO t VALUES (1, 1)",
        "INSERT INTO sales.t VALUES (1, 'x', NULL)",
    )
    assert set(make().catalog().relations) == {"t"}
    with pytest.raises(ConfigurationError, match="shows no column"):
        make(exclude=["t.id", "t.n"]).prepare(["t"])
    shown = ("t", "sales.t", "doubled")
    adapter = make(shown, schemas=["sales"], exclude=["sales.t.secret", "sales.t.place"])
    catalog = adapter.catalog()
    assert [column.name for column in catalog.relation("sales.t").columns] == ["id"]
    adapter.prepare(shown)
    assert rows_of(adapter, "doubled") == {(1, 2): 1}
    database.execute("UPDATE t SET n = 5", "INSERT INTO sales.t VALUES (2, 'y', NULL)")
    (entry,) = deltas_after(adapter, ORIGIN)
    assert entry == {
        "t": {(1, 1): -1, (1, 5): 1},
        "doubled": {(1, 2): -1, (1, 10): 1},
        "sales.t": {(2,): 1},
    }


def test_a_value_that_does_not_fit_is_named(database: SqlAlchemyHarness, make: MakeAdapter) -> None:
    database.execute("CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, n INTEGER, d DATE, b BOOLEAN)")
    database.execute("INSERT INTO t VALUES (1, 1, '2024-01-01', 1)")
    adapter = make()
    adapter.prepare(["t"])
    before = position_of(adapter)
    for column, value in (("n", "'many'"), ("d", "'yesterday'"), ("b", "7")):
        database.execute(f"UPDATE t SET {column} = {value}")
        with pytest.raises(DataError, match=rf"shop\.t(\.{column})? has a value that") as caught:
            position_of(adapter)
        assert "\n" not in str(caught.value)
        assert value.strip("'") not in caught.value.message, "others are told the column alone"
        database.execute("DELETE FROM t", "INSERT INTO t VALUES (1, 1, '2024-01-01', 1)")
    assert position_of(adapter) == before
