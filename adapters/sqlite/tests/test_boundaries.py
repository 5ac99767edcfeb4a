"""Transactions come out as they went in, whatever else goes on in the write-ahead log."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapters.spi import Boundaries
from adapters.sqlite.adapter import SqliteAdapter
from adapters.sqlite.tests.support import (
    HERE,
    Backup,
    Writer,
    adapter_on,
    captured,
    changes,
    contents,
    deltas,
    net,
    position,
)
from algebra.position import ORIGIN, Position

Truth = list[tuple[int, dict[str, Counter[tuple[Any, ...]]]]]

SCHEMA = (
    "CREATE TABLE narrow (a INTEGER PRIMARY KEY, b TEXT)",
    "CREATE TABLE wide (a INTEGER PRIMARY KEY, b TEXT, " + ", ".join(f"c{i} INT" for i in range(38)) + ")",
    "CREATE TABLE uncaptured (n INT)",
)
CAPTURED = ("narrow", "wide")


@dataclass(frozen=True)
class RandomWriter:
    process: subprocess.Popen[bytes]
    truth_file: Path


def start_writer(path: Path, seed: int, transactions: int, checkpoint: str = "") -> RandomWriter:
    truth_file = path.with_suffix(".truth")
    arguments = [str(path), str(truth_file), str(seed), str(transactions), checkpoint]
    process = subprocess.Popen([sys.executable, str(HERE / "random_writer.py"), *arguments])
    return RandomWriter(process, truth_file)


def truth_of(random_writer: RandomWriter) -> Truth:
    assert random_writer.process.wait() == 0
    truth = []
    for last, rows in json.loads(random_writer.truth_file.read_text()):
        effect: dict[str, Counter[tuple[Any, ...]]] = {}
        for relation, sign, row in rows:
            effect.setdefault(relation, Counter())[tuple(row)] += sign
        truth.append((last, effect))
    return truth


def follow(adapter: SqliteAdapter, random_writer: RandomWriter, start: Position) -> list[Any]:
    """Every entry while the writer runs, as (position, batched, deltas), read in many small runs."""
    entries: list[Any] = []
    at = start
    running = True
    while running:
        running = random_writer.process.poll() is None
        adapter.wait(0.1)
        run = changes(adapter, at)
        for transaction in run.transactions():
            effect = {relation: delta.to_dict() for relation, delta in transaction.deltas.items()}
            entries.append((transaction.position.ordinal, transaction.batched, effect))
        at = run.positions[-1] if len(run) else at
    return entries


def without_zeros(effect: dict[str, Any]) -> dict[str, dict[tuple[Any, ...], int]]:
    kept = {
        relation: {row: count for row, count in rows.items() if count} for relation, rows in effect.items()
    }
    return {relation: rows for relation, rows in kept.items() if rows}


def merged(parts: Truth) -> dict[str, dict[tuple[Any, ...], int]]:
    total: dict[str, Counter[tuple[Any, ...]]] = {}
    for _, effect in parts:
        for relation, rows in effect.items():
            for row, count in rows.items():
                total.setdefault(relation, Counter())[row] += count
    return without_zeros(total)


def assert_faithful(entries: list[Any], truth: Truth) -> None:
    """Exact entries are single transactions; batched ones are whole numbers of them; nothing is missing."""
    ends = [last for last, _ in truth]
    assert {end for end, _, _ in entries} <= set(ends)
    at = 0
    for end, batched, effect in entries:
        upto = ends.index(end) + 1
        assert batched or upto - at == 1, f"entry {end} claims to be one transaction of {upto - at}"
        assert without_zeros(effect) == merged(truth[at:upto])
        at = upto
    assert at == len(truth)


@pytest.mark.parametrize(("page_size", "transactions"), [(512, 250), (4096, 400), (65536, 120)])
def test_every_transaction_is_one_entry_under_a_busy_writer(
    path: Path, writer: Writer, page_size: int, transactions: int
) -> None:
    with captured(path, writer, f"PRAGMA page_size = {page_size}", *SCHEMA, relations=CAPTURED) as adapter:
        assert writer("PRAGMA page_size") == [[page_size]]
        start = position(adapter)
        process = start_writer(path, seed=page_size, transactions=transactions)
        entries = follow(adapter, process, start)
        truth = truth_of(process)
        assert len(truth) > transactions // 2
        assert [end for end, batched, _ in entries if batched] == []
        assert_faithful(entries, truth)


@pytest.mark.parametrize("checkpoint", ["PASSIVE", "RESTART", "TRUNCATE"])
def test_resets_of_the_write_ahead_log_are_followed(path: Path, writer: Writer, checkpoint: str) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        start = position(adapter)
        for seed in range(3):
            # Between the runs everything is copied and the log starts over while we look on.
            process = start_writer(path, seed=seed, transactions=30, checkpoint=checkpoint)
            entries = follow(adapter, process, start)
            truth = truth_of(process)
            assert [end for end, batched, _ in entries if batched] == []
            assert_faithful(entries, truth)
            writer(f"PRAGMA wal_checkpoint({checkpoint})")
            start = position(adapter)
            writer(f"PRAGMA wal_checkpoint({checkpoint})")


def test_a_reset_that_nobody_saw_gives_batches_never_wrong_entries(path: Path, writer: Writer) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        start = position(adapter)
    truth: Truth = []
    for seed in range(3):
        process = start_writer(path, seed=seed, transactions=40, checkpoint="TRUNCATE")
        truth += truth_of(process)
    with adapter_on(path, CAPTURED) as adapter:
        run = changes(adapter, start)
        entries = [
            (t.position.ordinal, t.batched, {name: d.to_dict() for name, d in t.deltas.items()})
            for t in run.transactions()
        ]
        assert run.batched == frozenset({0})
        assert_faithful(entries, truth)


def test_a_new_adapter_reads_what_the_write_ahead_log_still_holds(path: Path, writer: Writer) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        writer("INSERT INTO narrow VALUES (1, 'a')", "INSERT INTO narrow VALUES (2, 'b'), (3, 'c')")
        first = changes(adapter, ORIGIN)
        assert len(first) == 2
    with adapter_on(path, CAPTURED) as adapter:
        writer("INSERT INTO narrow VALUES (4, 'd')")
        again = changes(adapter, ORIGIN)
        assert [p.ordinal for p in again.positions] == [1, 3, 4]
        assert again.batched == frozenset()


def test_any_position_can_be_resumed_from(path: Path, writer: Writer) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        assert position(adapter) == ORIGIN
        truth_of(start_writer(path, seed=5, transactions=30))
        run = changes(adapter, ORIGIN)
        whole = deltas(run)
        assert run.batched == frozenset()
        for index, resumed in enumerate(run.positions):
            rest = changes(adapter, resumed)
            assert rest.positions == run.positions[index + 1 :]
            assert rest.batched == frozenset()
            assert deltas(rest) == whole[index + 1 :]


def test_transactions_without_captured_rows_have_no_entry(path: Path, writer: Writer) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        at = position(adapter)
        writer("INSERT INTO uncaptured VALUES (1)", "BEGIN", "INSERT INTO narrow VALUES (1, 'x')", "ROLLBACK")
        adapter.wait(5)
        assert len(changes(adapter, at)) == 0
        assert position(adapter) == at


def test_a_transaction_that_undoes_itself_still_has_an_entry(path: Path, writer: Writer) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        writer("BEGIN", "INSERT INTO narrow VALUES (1, 'x')", "DELETE FROM narrow", "COMMIT")
        run = changes(adapter, ORIGIN)
        assert len(run) == 1
        assert net(run, "narrow") == {}
        assert run.tables["narrow"].num_rows == 2


def test_relations_changed_together_are_one_entry(path: Path, writer: Writer) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        writer(
            "BEGIN",
            "INSERT INTO narrow VALUES (1, 'x')",
            "INSERT INTO wide (a) VALUES (7)",
            "INSERT INTO narrow VALUES (2, 'y')",
            "COMMIT",
        )
        (effect,) = deltas(changes(adapter, ORIGIN))
        assert effect["narrow"] == {(1, "x"): 1, (2, "y"): 1}
        assert effect["wide"] == {(7, *[None] * 39): 1}


def test_an_open_transaction_is_not_seen_until_it_commits(path: Path, writer: Writer) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        # The tiny cache makes the transaction spill its pages into the log long before it commits.
        insert = [f"INSERT INTO narrow VALUES ({i}, hex(randomblob(400)))" for i in range(300)]
        writer("PRAGMA cache_size = 5", "BEGIN", *insert)
        assert len(changes(adapter, ORIGIN)) == 0
        writer("SAVEPOINT s", "UPDATE narrow SET b = hex(randomblob(400))", "ROLLBACK TO s", "COMMIT")
        run = changes(adapter, ORIGIN)
        assert [p.ordinal for p in run.positions] == [300]
        assert run.batched == frozenset()
        writer("DELETE FROM narrow WHERE a > 3", "DELETE FROM narrow")
        assert [p.ordinal for p in changes(adapter, run.positions[-1]).positions] == [596, 600]


def test_a_spilled_and_rolled_back_transaction_leaves_nothing(path: Path, writer: Writer) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        insert = [f"INSERT INTO narrow VALUES ({i}, hex(randomblob(400)))" for i in range(300)]
        writer("PRAGMA cache_size = 5", "BEGIN", *insert)
        assert len(changes(adapter, ORIGIN)) == 0
        writer("ROLLBACK", "INSERT INTO narrow VALUES (1, 'only')")
        writer("INSERT INTO narrow VALUES (2, 'more')")
        run = changes(adapter, ORIGIN)
        assert deltas(run) == [{"narrow": {(1, "only"): 1}}, {"narrow": {(2, "more"): 1}}]
        assert run.batched == frozenset()


def test_a_rollback_journal_gives_one_batch_per_snapshot(path: Path, writer: Writer) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED, journal="keep") as adapter:
        assert writer("PRAGMA journal_mode") == [["delete"]]
        assert adapter.capabilities.boundaries is Boundaries.BATCHED
        writer("INSERT INTO narrow VALUES (1, 'a')", "INSERT INTO narrow VALUES (2, 'b')")
        run = changes(adapter, ORIGIN)
        assert run.batched == frozenset({0})
        assert deltas(run) == [{"narrow": {(1, "a"): 1, (2, "b"): 1}}]
        # No lock is kept between snapshots, so writers go on.
        writer("INSERT INTO narrow VALUES (3, 'c')")
        assert deltas(changes(adapter, run.positions[-1])) == [{"narrow": {(3, "c"): 1}}]
        assert contents(adapter, "narrow") == Counter([(1, "a"), (2, "b"), (3, "c")])


def test_vacuum_changes_nothing(path: Path, writer: Writer) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        writer("INSERT INTO narrow VALUES (1, 'a')", "INSERT INTO narrow VALUES (2, 'b')")
        writer("DELETE FROM narrow WHERE a = 1")
        writer("VACUUM")
        writer("INSERT INTO narrow VALUES (3, 'c')")
        run = changes(adapter, ORIGIN)
        assert [p.ordinal for p in run.positions] == [1, 2, 3, 4]
        assert run.batched == frozenset()


def test_capture_that_was_removed_and_installed_again_starts_a_new_history(
    path: Path, writer: Writer
) -> None:
    with captured(path, writer, *SCHEMA, relations=CAPTURED) as adapter:
        writer(*[f"INSERT INTO narrow VALUES ({i}, 'old')" for i in range(5)])
        assert len(changes(adapter, ORIGIN)) == 5
        adapter.remove()
        adapter.prepare(CAPTURED)
        # Three rows in one transaction: the ends of the old history would cut through it.
        writer("INSERT INTO narrow VALUES (10, 'new'), (11, 'new'), (12, 'new')")
        run = changes(adapter, ORIGIN)
        assert [p.ordinal for p in run.positions] == [3]
        assert run.batched == frozenset()
    with adapter_on(path, CAPTURED) as adapter:
        assert [p.ordinal for p in changes(adapter, ORIGIN).positions] == [3]


def test_the_write_ahead_log_starts_over_while_it_is_followed(path: Path, writer: Writer) -> None:
    """A reader that never lets go would keep it growing; with a limit it is let go without a gap."""

    def salts() -> bytes:
        return Path(f"{path}-wal").read_bytes()[16:24]

    with captured(path, writer, *SCHEMA, relations=CAPTURED, wal_limit_mb=5) as adapter:
        at, generations = position(adapter), set()
        for seed in range(4):
            process = start_writer(path, seed=seed, transactions=100)
            entries = follow(adapter, process, at)
            assert_faithful(entries, truth_of(process))
            assert not any(batched for _, batched, _ in entries)
            generations.add(salts())
            at = position(adapter)
            adapter.acknowledge(at)
        assert len(generations) > 1


@pytest.mark.parametrize("watched", ["each", "lost", "none"])
@pytest.mark.parametrize("journal", ["wal", "keep"])
@pytest.mark.parametrize("written_to_backup", [0, 15, 20, 40])
def test_a_backup_that_was_restored_into_the_live_file_cuts_no_transaction(
    path: Path, writer: Writer, watched: str, journal: str, written_to_backup: int
) -> None:
    """The ends of transactions of the history that was given up say nothing about the other one."""

    def insert(first: int, rows: int) -> str:
        return f"INSERT INTO narrow (a) VALUES {', '.join(f'({first + i})' for i in range(rows))}"

    with captured(path, writer, *SCHEMA, relations=CAPTURED, journal=journal) as adapter:
        writer(insert(0, 2), insert(2, 3))
        parked = position(adapter)
        backup = Backup(path)
        for number in range(20):
            writer(insert(100 + number, 1))
            if watched == "each":
                position(adapter)
        if watched == "lost":
            position(adapter)
        if written_to_backup:
            writer.open(backup.copy)
            writer(insert(200, written_to_backup))
            writer.open(path)
        backup.restore()
        restored = position(adapter) if watched == "each" else parked
        if watched == "each":
            assert restored.ordinal == parked.ordinal + written_to_backup
        writer(insert(300, 10), insert(400, 30))
        ends = [parked.ordinal + written_to_backup + n for n in (0, 10, 40)]
        for start in (parked, restored):
            run = changes(adapter, start)
            assert {p.ordinal for p in run.positions} <= set(ends)
            exact = [p.ordinal for i, p in enumerate(run.positions) if i not in run.batched]
            before = dict(zip([p.ordinal for p in run.positions], [start, *run.positions], strict=False))
            assert all(before[end].ordinal in (*ends, start.ordinal) for end in exact)
            assert sum(len(effect["narrow"]) for effect in deltas(run)) == ends[-1] - start.ordinal
        at = position(adapter)
        writer(insert(500, 4), insert(600, 5))
        run = changes(adapter, at)
        assert [p.ordinal - at.ordinal for p in run.positions][-1] == 9
        if journal == "wal":
            writer(insert(700, 6), insert(800, 7))
            last = changes(adapter, run.positions[-1])
            assert [p.ordinal - at.ordinal for p in last.positions] == [15, 22]
            assert last.batched == frozenset()


def test_a_restore_that_is_the_first_in_the_log_is_batched(path: Path, writer: Writer) -> None:
    """Of what the backup had been written before, nobody knows in how many transactions."""
    with captured(path, writer, *SCHEMA, relations=CAPTURED):
        writer("INSERT INTO narrow (a) VALUES (1), (2)")
        backup = Backup(path)
    writer.open(backup.copy)
    writer("INSERT INTO narrow (a) VALUES (3)", "INSERT INTO narrow (a) VALUES (4)")
    writer.open(path)
    with adapter_on(path, CAPTURED) as adapter:
        start = position(adapter)
        backup.restore()
        restored = changes(adapter, start)
        assert [p.ordinal for p in restored.positions] == [4]
        assert restored.batched == {0}
        assert deltas(restored) == [{"narrow": {(3, None): 1, (4, None): 1}}]


@pytest.mark.parametrize("page_size", [1024, 4096, 65536])
@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
def test_vacuum_cuts_and_joins_no_transactions(
    path: Path, writer: Writer, page_size: int, wide: bool
) -> None:
    table, row = ("wide", "1, hex(zeroblob(40000))" + ", 1" * 38) if wide else ("narrow", "1, 'x'")
    schema = (f"PRAGMA page_size = {page_size}", *SCHEMA)
    with captured(path, writer, *schema, relations=CAPTURED) as adapter:
        position(adapter)
        writer(f"INSERT INTO {table} VALUES ({row})")
        start = position(adapter)
        writer("DELETE FROM narrow", "DELETE FROM wide", "VACUUM", f"INSERT INTO {table} VALUES ({row})")
        run = changes(adapter, start)
        assert [p.ordinal - start.ordinal for p in run.positions] == [1, 2]
        assert run.batched == frozenset()
