"""Diff capture: what MERGE and upserts do, found by comparison, kept until acknowledged."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adapters.duckdb.adapter import DuckDBAdapter
from adapters.duckdb.tests.conftest import MakeAdapter
from adapters.duckdb.tests.owner import Owner, OwnerError
from adapters.duckdb.tests.views import changes_after, deltas, state
from adapters.shadow.store import shadow_file
from adapters.spi import Boundaries, Changes, SourceConfig
from algebra.errors import ConfigurationError, PositionTrimmedError, SchemaChangedError
from algebra.position import ORIGIN


@pytest.fixture
def prepared(owner: Owner, path: Path, make: MakeAdapter) -> MakeAdapter:
    owner.write(
        path,
        "CREATE TABLE stock (id INTEGER PRIMARY KEY, qty INTEGER)",
        "CREATE TABLE bag (s VARCHAR, d DOUBLE)",
        "INSERT INTO stock VALUES (1, 10), (2, 20)",
        "INSERT INTO bag VALUES ('x', 'nan'), ('x', 'nan'), (NULL, NULL), (NULL, NULL)",
    )
    make("diff").prepare(["stock", "bag"])
    return make


def shadow_of(path: Path) -> Path:
    return path.with_name(path.name + ".lockstep-shadow")


def test_capabilities_are_honest(make: MakeAdapter) -> None:
    capabilities = make("diff").capabilities
    assert (capabilities.boundaries, capabilities.needs_write) == (Boundaries.BATCHED, False)


def test_merge_and_upsert_are_found(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    owner.write(
        path,
        "INSERT INTO stock VALUES (1, 11), (3, 30) ON CONFLICT DO UPDATE SET qty = excluded.qty",
        "MERGE INTO stock USING (SELECT 2 AS id, 21 AS qty) AS n ON stock.id = n.id "
        "WHEN MATCHED THEN UPDATE SET qty = n.qty",
    )
    changes, position = changes_after(prepared("diff"), ORIGIN)
    assert deltas(changes) == [{"stock": {(1, 10): -1, (1, 11): 1, (2, 20): -1, (2, 21): 1, (3, 30): 1}}]
    assert changes.batched == {0}
    assert changes.positions == (position,)


def test_a_shadow_of_another_file_is_refused(
    prepared: MakeAdapter, owner: Owner, path: Path, tmp_path: Path
) -> None:
    before = changes_after(prepared("diff"), ORIGIN)[1]
    other = tmp_path / "other.duckdb"
    owner.write(other, "CREATE TABLE stock (id INTEGER PRIMARY KEY, qty INTEGER)")
    shadow = {"shadow": str(shadow_of(path))}
    foreign = DuckDBAdapter(SourceConfig("shop", "duckdb", f"duckdb:///{other}", None, "diff", shadow))
    with pytest.raises(ConfigurationError, match=f"the shadow of another database, {path}; "):
        foreign.prepare(["stock"])
    with pytest.raises(ConfigurationError, match="the shadow of another database"):
        changes_after(foreign, before)
    foreign.close()
    assert changes_after(prepared("diff"), before)[1] == before


def test_triggers_would_refuse_those_writes(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)")
    make().prepare(["t"])
    owner.open(path)
    with pytest.raises(OwnerError, match="ON CONFLICT"):
        owner.run("INSERT INTO t VALUES (1, 1) ON CONFLICT DO UPDATE SET n = 2")
    with pytest.raises(OwnerError, match="MERGE"):
        owner.run("MERGE INTO t USING (SELECT 1 AS id) AS n ON t.id = n.id WHEN MATCHED THEN DELETE")
    owner.close()


def test_duplicates_nulls_and_nans_are_counted(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    owner.write(
        path,
        "DELETE FROM bag WHERE rowid = (SELECT min(rowid) FROM bag WHERE s = 'x')",
        "INSERT INTO bag VALUES (NULL, NULL), (NULL, 1.5)",
    )
    adapter = prepared("diff")
    changes, position = changes_after(adapter, ORIGIN)
    (delta,) = changes.transactions()
    counts = sorted(delta.deltas["bag"].to_dict().values())
    assert counts == [-1, 1, 1]
    assert len(changes_after(adapter, position)[0]) == 0


def test_nothing_changed_is_no_entry(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    adapter = prepared("diff")
    first = changes_after(adapter, ORIGIN)
    owner.write(path, "CREATE TABLE other (n INTEGER)", "UPDATE stock SET qty = qty")
    second = changes_after(adapter, ORIGIN)
    assert len(first[0]) == len(second[0]) == 0
    assert second[1].ordinal == 0


def test_a_write_between_looking_at_the_file_and_opening_it_is_not_missed(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    waiting = threading.Event()

    def clock() -> float:
        # Asked when the adapter has looked at the file and is about to open it.
        waiting.set()
        return time.monotonic()

    config = SourceConfig("shop", "duckdb", f"duckdb:///{path}", capture="diff")
    adapter = DuckDBAdapter(config, clock=clock)
    _, position = changes_after(adapter, ORIGIN)
    owner.open(path)
    waiting.clear()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(changes_after, adapter, position)
        assert waiting.wait(20)
        owner.run("INSERT INTO stock VALUES (3, 0)")
        owner.close()
        changes, _ = answer.result()
    adapter.close()
    assert deltas(changes) == [{"stock": {(3, 0): 1}}]


def test_the_sign_of_zero_is_kept(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    adapter = prepared("diff")
    owner.write(path, "INSERT INTO bag VALUES ('z', 0.0), ('z', '-0.0'), ('z', '-0.0')")
    first, position = changes_after(adapter, ORIGIN)
    owner.write(path, "DELETE FROM bag WHERE s = 'z' AND signbit(d)")
    second, _ = changes_after(adapter, position)
    assert _signed_zeros(first) == {("0.0", 1), ("-0.0", 2)}
    assert _signed_zeros(second) == {("-0.0", -2)}


def _signed_zeros(changes: Changes) -> set[tuple[str, int]]:
    table = changes.tables["bag"]
    return {(str(d), n) for d, n in zip(table["d"].to_pylist(), table["_count"].to_pylist(), strict=True)}


def test_a_refused_prepare_leaves_no_file(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(path, "CREATE TABLE t (n INTEGER)")
    with pytest.raises(ConfigurationError, match="no relation 'nope'"):
        make("diff").prepare(["t", "nope"])
    assert not shadow_of(path).exists()


def test_every_cycle_can_be_resumed_after_a_restart_of_the_wrapper(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    positions = []
    for n in range(3, 6):
        owner.write(path, f"INSERT INTO stock VALUES ({n}, 0)")
        adapter = prepared("diff")
        with adapter.snapshot() as snapshot:
            positions.append(snapshot.position)
        adapter.close()
    for index, position in enumerate([ORIGIN, *positions]):
        changes, _ = changes_after(prepared("diff"), position)
        assert deltas(changes) == [{"stock": {(n, 0): 1}} for n in range(3 + index, 6)]
        assert changes.positions == tuple(positions[index:])


def test_acknowledged_cycles_are_trimmed(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    adapter = prepared("diff", trim_entries=1)
    owner.write(path, "INSERT INTO stock VALUES (3, 0)")
    _, first = changes_after(adapter, ORIGIN)
    owner.write(path, "INSERT INTO stock VALUES (4, 0)")
    _, second = changes_after(adapter, ORIGIN)
    adapter.acknowledge(first)
    with pytest.raises(PositionTrimmedError):
        changes_after(adapter, ORIGIN)
    assert deltas(changes_after(adapter, first)[0]) == [{"stock": {(4, 0): 1}}]
    adapter.acknowledge(second)
    assert len(changes_after(adapter, second)[0]) == 0
    owner.write(path, "DELETE FROM stock")
    assert deltas(changes_after(adapter, second)[0]) == [
        {"stock": {(1, 10): -1, (2, 20): -1, (3, 0): -1, (4, 0): -1}}
    ]


@pytest.mark.parametrize("restart", [True, False])
def test_a_lost_shadow_is_a_new_history(
    prepared: MakeAdapter, owner: Owner, path: Path, restart: bool
) -> None:
    adapter = prepared("diff")
    adapter.prepare(["stock", "bag"])
    owner.write(path, "INSERT INTO stock VALUES (3, 0)")
    _, position = changes_after(adapter, ORIGIN)
    shadow_file(shadow_of(path)).unlink()
    if restart:
        adapter = prepared("diff")
        adapter.prepare(["stock", "bag"])
    with pytest.raises(PositionTrimmedError, match="not of this history"):
        changes_after(adapter, position)
    with adapter.snapshot() as snapshot:
        again = snapshot.position
    owner.write(path, "INSERT INTO stock VALUES (4, 0)")
    assert deltas(changes_after(adapter, again)[0]) == [{"stock": {(4, 0): 1}}]


def test_drift_is_named_and_mended_by_prepare(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    adapter = prepared("diff")
    _, old = changes_after(adapter, ORIGIN)
    owner.write(path, "ALTER TABLE stock ADD COLUMN note VARCHAR")
    with pytest.raises(SchemaChangedError, match=r"shop\.stock got column 'note'"):
        changes_after(adapter, old)
    adapter.prepare(["stock"])
    with pytest.raises(PositionTrimmedError):
        changes_after(adapter, old)
    with adapter.snapshot() as snapshot:
        now = snapshot.position
    owner.write(path, "UPDATE stock SET note = 'n' WHERE id = 1")
    assert deltas(changes_after(adapter, now)[0]) == [{"stock": {(1, 10, None): -1, (1, 10, "n"): 1}}]


def test_columns_that_trade_their_places_do_not_trade_their_values(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    adapter = prepared("diff")
    _, old = changes_after(adapter, ORIGIN)
    owner.write(
        path,
        "CREATE TABLE anew (qty INTEGER, id INTEGER PRIMARY KEY)",
        "INSERT INTO anew BY NAME FROM stock",
        "DROP TABLE stock",
        "ALTER TABLE anew RENAME TO stock",
    )
    with pytest.raises(SchemaChangedError, match=r"shop\.stock changed the order of its columns"):
        changes_after(adapter, old)


def test_prepare_and_remove_leave_the_source_alone(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(path, "CREATE TABLE t (n INTEGER)")
    before = path.read_bytes()
    adapter = make("diff")
    planned = adapter.prepare(["t"], dry_run=True)
    assert planned[0].startswith("create ")
    assert not shadow_of(path).exists()
    assert len(adapter.prepare(["t"])) == len(planned)
    assert adapter.prepare(["t"]) == []
    changes_after(adapter, ORIGIN)
    assert path.read_bytes() == before
    assert adapter.remove(dry_run=True) == [f"delete {shadow_of(path)}"]
    adapter.remove()
    assert adapter.remove() == []
    with make("diff").snapshot() as snapshot, pytest.raises(ConfigurationError, match="prepare it first"):
        _ = snapshot.position
    assert {file.name for file in path.parent.iterdir()} == {path.name}


def test_a_comparison_keeps_within_the_memory_that_it_is_given(
    owner: Owner, path: Path, make: MakeAdapter
) -> None:
    owner.write(
        path, "CREATE TABLE t AS SELECT i AS id, repeat('x', 99) || i AS s FROM range(300_000) AS r(i)"
    )
    adapter = make("diff", memory_limit="60MiB")
    adapter.prepare(["t"])
    _, start = changes_after(adapter, ORIGIN)
    owner.write(path, "UPDATE t SET s = 'y' WHERE id = 7")
    (entry,) = deltas(changes_after(adapter, start)[0])
    assert entry == {"t": {(7, "x" * 99 + "7"): -1, (7, "y"): 1}}
    most = adapter._session.connection.execute("SELECT current_setting('memory_limit')").fetchone()
    assert most == ("60.0 MiB",)


def test_collation_does_not_hide_a_change(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(path, "CREATE TABLE t (s VARCHAR COLLATE NOCASE)", "INSERT INTO t VALUES ('a')")
    adapter = make("diff")
    adapter.prepare(["t"])
    owner.write(path, "UPDATE t SET s = 'A'")
    assert deltas(changes_after(adapter, ORIGIN)[0]) == [{"t": {("a",): -1, ("A",): 1}}]


@pytest.mark.parametrize("seed", range(2))
def test_replaying_the_differences_gives_the_state_of_every_snapshot(
    prepared: MakeAdapter, owner: Owner, path: Path, seed: int
) -> None:
    rnd = random.Random(seed)
    adapter = prepared("diff", trim_entries=3)
    with adapter.snapshot() as snapshot:
        replica, position = state(adapter, snapshot), snapshot.position
    for _ in range(8):
        owner.open(path)
        for _ in range(rnd.randrange(4)):
            owner.run(
                rnd.choice(
                    [
                        f"INSERT OR REPLACE INTO stock VALUES ({rnd.randrange(5)}, {rnd.randrange(3)})",
                        f"DELETE FROM stock WHERE id = {rnd.randrange(5)}",
                        f"INSERT INTO bag SELECT NULL, {rnd.randrange(2)} FROM range({rnd.randrange(3)})",
                        "DELETE FROM bag WHERE rowid = (SELECT max(rowid) FROM bag)",
                    ]
                )
            )
        owner.close()
        with adapter.snapshot() as snapshot:
            for transaction in snapshot.changes(position).transactions():
                for name, delta in transaction.deltas.items():
                    replica[name] = replica[name].plus(delta)
            position = snapshot.position
            assert replica == state(adapter, snapshot)
        adapter.acknowledge(position)
