"""What trigger capture reports: each transaction once, whole, in commit order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from adapters.duckdb.tests.conftest import MakeAdapter
from adapters.duckdb.tests.owner import Owner, OwnerError
from adapters.duckdb.tests.views import changes_after, deltas, state
from adapters.spi import Boundaries
from algebra.delta import Delta
from algebra.position import ORIGIN

TABLES = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer VARCHAR)",
    "CREATE TABLE lines (ord INTEGER, qty INTEGER)",
)


@pytest.fixture
def prepared(owner: Owner, path: Path, make: MakeAdapter) -> MakeAdapter:
    owner.write(path, *TABLES)
    make().prepare(["orders", "lines"])
    return make


def test_several_statements_over_several_tables_are_one_entry(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    owner.write(
        path,
        "BEGIN",
        "INSERT INTO orders VALUES (1, 'ann')",
        "INSERT INTO lines VALUES (1, 5), (1, 5)",
        "UPDATE orders SET customer = 'bob' WHERE id = 1",
        "DELETE FROM lines WHERE qty > 100",
        "COMMIT",
        "INSERT INTO lines VALUES (1, NULL)",
    )
    adapter = prepared()
    changes, position = changes_after(adapter, ORIGIN)
    assert deltas(changes) == [
        {"orders": {(1, "bob"): 1}, "lines": {(1, 5): 2}},
        {"lines": {(1, None): 1}},
    ]
    assert changes.positions[-1] == position
    assert changes.batched == frozenset()
    assert adapter.capabilities.boundaries is Boundaries.EXACT


def test_rolled_back_and_empty_transactions_leave_nothing(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    owner.write(
        path,
        "BEGIN",
        "INSERT INTO orders VALUES (1, 'ann')",
        "ROLLBACK",
        "UPDATE orders SET customer = 'x' WHERE false",
        "BEGIN",
        "COMMIT",
    )
    changes, position = changes_after(prepared(), ORIGIN)
    assert len(changes) == 0
    assert position.ordinal == 0


def test_a_failed_statement_rolls_its_log_back_too(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    owner.open(path)
    owner.run("INSERT INTO orders VALUES (1, 'ann')")
    with pytest.raises(OwnerError, match="Constraint"):
        owner.run("INSERT INTO orders VALUES (2, 'bob'), (1, 'again')")
    owner.close()
    changes, _ = changes_after(prepared(), ORIGIN)
    assert deltas(changes) == [{"orders": {(1, "ann"): 1}}]


def test_copy_truncate_and_appender_are_captured(
    prepared: MakeAdapter, owner: Owner, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines.csv"
    file.write_text("ord,qty\n1,10\n1,10\n2,20\n")
    owner.open(path)
    owner.run(f"COPY lines FROM '{file}'")
    owner.append("lines", [[3, 30], [4, 40]])
    owner.run("TRUNCATE lines")
    owner.close()
    changes, _ = changes_after(prepared(), ORIGIN)
    assert deltas(changes) == [
        {"lines": {(1, 10): 2, (2, 20): 1}},
        {"lines": {(3, 30): 1, (4, 40): 1}},
        {"lines": {(1, 10): -2, (2, 20): -1, (3, 30): -1, (4, 40): -1}},
    ]


def test_updates_of_keys_and_of_one_of_several_duplicates(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    owner.write(
        path,
        "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
        "UPDATE orders SET id = id + 10",
        "INSERT INTO lines VALUES (7, NULL), (7, NULL), (7, NULL)",
        "DELETE FROM lines WHERE rowid = (SELECT min(rowid) FROM lines)",
        "UPDATE lines SET qty = 1 WHERE rowid = (SELECT min(rowid) FROM lines)",
    )
    changes, _ = changes_after(prepared(), ORIGIN)
    assert deltas(changes)[1:] == [
        {"orders": {(1, "a"): -1, (2, "b"): -1, (11, "a"): 1, (12, "b"): 1}},
        {"lines": {(7, None): 3}},
        {"lines": {(7, None): -1}},
        {"lines": {(7, None): -1, (7, 1): 1}},
    ]


def test_on_conflict_do_nothing_logs_only_what_was_inserted(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    owner.write(
        path,
        "INSERT INTO orders VALUES (1, 'a')",
        "INSERT INTO orders VALUES (1, 'z'), (2, 'b') ON CONFLICT DO NOTHING",
        "INSERT INTO orders VALUES (1, 'z') ON CONFLICT DO NOTHING",
    )
    changes, _ = changes_after(prepared(), ORIGIN)
    assert deltas(changes) == [{"orders": {(1, "a"): 1}}, {"orders": {(2, "b"): 1}}]


def test_prepared_statements_carry_the_transaction_they_run_in(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    owner.write(
        path,
        "PREPARE add AS INSERT INTO lines VALUES ($1, $2)",
        "EXECUTE add(1, 1)",
        "EXECUTE add(2, 2)",
        "BEGIN",
        "EXECUTE add(3, 3)",
        "EXECUTE add(4, 4)",
        "COMMIT",
    )
    changes, _ = changes_after(prepared(), ORIGIN)
    assert deltas(changes) == [
        {"lines": {(1, 1): 1}},
        {"lines": {(2, 2): 1}},
        {"lines": {(3, 3): 1, (4, 4): 1}},
    ]


def test_transaction_ids_that_come_again_after_a_restart_are_other_transactions(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    ids = []
    for n in range(4):
        owner.open(path)
        owner.run("BEGIN")
        owner.run(f"INSERT INTO lines VALUES ({n}, 0)")
        owner.run(f"INSERT INTO lines VALUES ({n}, 1)")
        ids += owner.run("SELECT txid_current()")
        owner.run("COMMIT")
        owner.close()
    assert len({tuple(row) for row in ids}) == 1, "the ids no longer restart: this test shows nothing"
    changes, _ = changes_after(prepared(), ORIGIN)
    assert deltas(changes) == [{"lines": {(n, 0): 1, (n, 1): 1}} for n in range(4)]


def test_what_a_crashed_writer_left_in_its_log_is_seen_and_what_it_did_not_commit_is_not(
    prepared: MakeAdapter, path: Path
) -> None:
    with Owner() as owner:
        owner.open(path)
        owner.run("INSERT INTO orders VALUES (1, 'a')", "INSERT INTO lines VALUES (1, 1)")
        owner.run("BEGIN", "INSERT INTO orders VALUES (2, 'lost')", connection=1)
        owner.crash()
        assert path.with_name(path.name + ".wal").exists()
        adapter = prepared()
        changes, position = changes_after(adapter, ORIGIN)
        assert deltas(changes) == [{"orders": {(1, "a"): 1}}, {"lines": {(1, 1): 1}}]
        # The next opening replays and checkpoints; the history goes on without a gap.
        owner.write(path, "INSERT INTO orders VALUES (3, 'c')")
        changes, _ = changes_after(adapter, position)
        assert deltas(changes) == [{"orders": {(3, "c"): 1}}]
        changes, _ = changes_after(adapter, ORIGIN)
        assert len(changes) == 3


def test_a_transaction_that_began_first_and_committed_last_comes_last(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    owner.open(path)
    owner.run("BEGIN", "INSERT INTO lines VALUES (1, 1)", connection=1)
    owner.run("BEGIN", "INSERT INTO lines VALUES (2, 2)", connection=2)
    owner.run("INSERT INTO lines VALUES (3, 3)", connection=0)
    owner.run("COMMIT", connection=2)
    owner.run("INSERT INTO lines VALUES (1, 9)", "COMMIT", connection=1)
    owner.close()
    changes, _ = changes_after(prepared(), ORIGIN)
    assert deltas(changes) == [
        {"lines": {(3, 3): 1}},
        {"lines": {(2, 2): 1}},
        {"lines": {(1, 1): 1, (1, 9): 1}},
    ]


@pytest.mark.parametrize("seed", range(3))
def test_concurrent_transactions_come_in_commit_order_over_restarts_crashes_and_trims(
    prepared: MakeAdapter, path: Path, seed: int
) -> None:
    """Several connections, interleaved step by step, so that the true order of commits is known."""
    rnd = random.Random(seed)
    adapter = prepared(trim_entries=1)
    committed: list[int] = []
    delivered: list[int] = []
    position = ORIGIN
    number = 0
    with Owner() as owner:
        for _ in range(4):
            owner.open(path)
            open_now: dict[int, int] = {}
            for _ in range(60):
                connection = rnd.randrange(1, 5)
                if connection not in open_now:
                    number += 1
                    open_now[connection] = number
                    owner.run("BEGIN", connection=connection)
                    if rnd.random() < 0.3:
                        continue
                step = rnd.random()
                mine = open_now[connection]
                if step < 0.6:
                    row = rnd.randrange(1000)
                    order = f"INSERT INTO orders VALUES ({mine} * 1000 + {row}, 'x') ON CONFLICT DO NOTHING"
                    line = f"INSERT INTO lines VALUES ({mine}, {row})"
                    owner.run(rnd.choice([order, line]), connection=connection)
                elif step < 0.7:
                    owner.run("ROLLBACK", connection=connection)
                    del open_now[connection]
                else:
                    # Every transaction has at least this row, which tells which one it is.
                    owner.run(f"INSERT INTO lines VALUES ({mine}, -1)", "COMMIT", connection=connection)
                    committed.append(open_now.pop(connection))
            if rnd.random() < 0.5:
                owner.crash()
            else:
                owner.close()
            changes, position = changes_after(adapter, position)
            for delta in deltas(changes):
                numbers = {row[0] for row in delta["lines"]} | {
                    row[0] // 1000 for row in delta.get("orders", ())
                }
                assert len(numbers) == 1, "an entry mixes transactions"
                delivered += numbers
            if rnd.random() < 0.5:
                adapter.acknowledge(position)
    assert len(delivered) > 30
    assert delivered == committed


@pytest.mark.parametrize("seed", range(3))
def test_replaying_the_changes_gives_the_state_of_every_snapshot(
    prepared: MakeAdapter, owner: Owner, path: Path, seed: int
) -> None:
    rnd = random.Random(100 + seed)
    owner.write(path, "INSERT INTO lines VALUES (1, 1), (1, 1), (2, NULL)")
    adapter = prepared(trim_entries=20)
    with adapter.snapshot() as snapshot:
        replica, position = state(adapter, snapshot), snapshot.position
    for _ in range(6):
        owner.open(path)
        for _ in range(rnd.randrange(0, 6)):
            owner.run("BEGIN")
            for _ in range(rnd.randrange(1, 4)):
                owner.run(
                    rnd.choice(
                        [
                            f"INSERT INTO lines SELECT {rnd.randrange(6)}, NULL FROM range(3)",
                            f"UPDATE lines SET qty = {rnd.randrange(3)} WHERE ord = {rnd.randrange(6)}",
                            f"DELETE FROM lines WHERE ord = {rnd.randrange(6)}",
                            f"INSERT INTO orders VALUES ({rnd.randrange(9)}, 'n') ON CONFLICT DO NOTHING",
                            "UPDATE orders SET id = id + 1000 + (SELECT max(id) FROM orders) WHERE id < 100",
                        ]
                    )
                )
            owner.run(rnd.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
        owner.close()
        with adapter.snapshot() as snapshot:
            for transaction in snapshot.changes(position).transactions():
                for name, delta in transaction.deltas.items():
                    replica[name] = replica[name].plus(delta)
                    assert min(replica[name].to_dict().values(), default=1) > 0, "a row was removed too often"
            position = snapshot.position
            assert replica == state(adapter, snapshot)
        adapter.acknowledge(position)


def test_a_large_transaction_is_one_entry(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    """Larger than a row group, so that DuckDB writes parts of it before it commits."""
    owner.write(
        path,
        "BEGIN",
        "INSERT INTO lines SELECT i, 0 FROM range(150000) r(i)",
        "INSERT INTO orders VALUES (1, 'small')",
        "UPDATE lines SET qty = 1",
        "COMMIT",
        "DELETE FROM lines",
    )
    changes, _ = changes_after(prepared(), ORIGIN)
    first, second = changes.transactions()
    assert set(first.deltas) == {"lines", "orders"}
    assert len(first.deltas["lines"]) == 150_000
    assert second.deltas["lines"] == Delta(first.deltas["lines"].negate().rows)
