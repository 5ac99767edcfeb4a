"""Writers that are killed while they commit: what they leave behind never cuts a transaction in two."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapters.sqlite.adapter import SqliteAdapter
from adapters.sqlite.tests.support import HERE, Writer, captured, changes, deltas, position
from algebra.position import ORIGIN, Position

SCHEMA = (
    "CREATE TABLE t (a INT, b TEXT)",
    *(f"CREATE TABLE uncaptured{i} (n INT)" for i in range(6)),
)


def killed(path: Path, published: str, *statements: str) -> None:
    """A writer that died in the middle of committing these statements."""
    program = [sys.executable, str(HERE / "killed_writer.py"), str(path), published, *statements]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL


def transaction(rnd: random.Random, number: int) -> list[str]:
    """Some rows, and pages of tables that nobody captures before and after them."""
    rows = rnd.choice([0, 1, 2, 5, 60])
    statements = [f"INSERT INTO t VALUES ({number}, hex(randomblob({rnd.choice([1, 900])})))"] * rows
    statements += [f"INSERT INTO uncaptured{i} VALUES (1)" for i in range(rnd.randrange(6))]
    rnd.shuffle(statements)
    return ["BEGIN", *statements, "COMMIT"]


def test_a_commit_that_was_never_published_is_none(path: Path, writer: Writer) -> None:
    """The transactions after it are shorter, so that its end stays in the log behind them."""
    with captured(path, writer, *SCHEMA, relations=("t",)) as adapter:
        start = position(adapter)
        writer("INSERT INTO t VALUES (1, 'a')")
        pages = [f"INSERT INTO uncaptured{i} VALUES (1)" for i in range(6)]
        killed(path, "nothing", "BEGIN", *pages, "INSERT INTO t VALUES (0, ''), (0, ''), (0, '')", "COMMIT")
        assert [p.ordinal for p in changes(adapter, start).positions] == [1]
        writer("INSERT INTO t VALUES (2, 'b')")
        assert [p.ordinal for p in changes(adapter, start).positions] == [1, 2]
        writer("INSERT INTO t VALUES (3, 'c'), (3, 'd'), (3, 'e'), (3, 'f')")
        run = changes(adapter, start)
        assert [p.ordinal for p in run.positions] == [1, 2, 6]
        assert run.batched == frozenset()
        assert writer("SELECT count(*) FROM t WHERE a = 0") == [[0]]


@pytest.mark.parametrize("seed", range(6))
def test_entries_are_the_transactions_that_were_committed(path: Path, writer: Writer, seed: int) -> None:
    rnd = random.Random(seed)
    with captured(path, writer, *SCHEMA, relations=("t",)) as adapter:
        start = position(adapter)
        writer("PRAGMA wal_autocheckpoint = 20")
        at = start
        found: list[int] = []
        truth: list[int] = []
        for number in range(1, 60):
            if rnd.random() < 0.25:
                killed(path, "nothing", *transaction(rnd, -number))
            else:
                writer(*transaction(rnd, number))
                ((last,),) = writer("SELECT max(seq) FROM _lockstep_log")
                if last != (truth or [0])[-1]:
                    truth.append(last)
            if rnd.random() < 0.6:
                run = changes(adapter, at)
                found += [p.ordinal for p in run.positions]
                assert run.batched == frozenset()
                at = run.positions[-1] if len(run) else at
        found += [p.ordinal for p in changes(adapter, at).positions]
        assert found == truth
        for entry in deltas(changes(adapter, start)):
            assert len({number for number, _ in entry["t"]}) == 1


@contextmanager
def restless_writer(path: Path, seed: int) -> Iterator[None]:
    """A writer that writes as fast as it can, until it is killed."""
    program = [sys.executable, str(HERE / "restless_writer.py"), str(path), str(seed)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"writing\n"
            yield
        finally:
            process.kill()


def take(adapter: SqliteAdapter, at: Position, entries: list[set[int]]) -> Position:
    """Note the numbers that each further entry inserted; where to go on."""
    run = changes(adapter, at)
    assert run.batched == frozenset()
    for entry in deltas(run):
        entries.append({row[0] for row, count in entry["t"].items() if count > 0})
    return run.positions[-1] if len(run) else at


def test_writers_that_are_killed_at_random_moments(path: Path, writer: Writer) -> None:
    """Each transaction inserts rows of its own number, which no two entries may share."""
    rnd = random.Random(11)
    entries: list[set[int]] = []
    with captured(path, writer, *SCHEMA, relations=("t",)) as adapter:
        at = position(adapter)
        writer.open(":memory:")
        for seed in range(40):
            with restless_writer(path, seed):
                for _ in range(rnd.randrange(8)):
                    adapter.wait(5)
                    at = take(adapter, at, entries)
            at = take(adapter, at, entries)
    numbers = [number for entry in entries for number in entry]
    assert max(map(len, entries)) == 1
    assert len(numbers) == len(set(numbers)) > 40


def test_a_commit_that_was_published_by_half_counts(path: Path, writer: Writer) -> None:
    """The next one to read mends the wal-index, from all that is whole in the log."""
    with captured(path, writer, *SCHEMA, relations=("t",)) as adapter:
        writer("INSERT INTO t VALUES (1, 'a')")
        assert len(changes(adapter, ORIGIN)) == 1
        killed(path, "half", "BEGIN", "INSERT INTO t VALUES (2, 'b'), (2, 'c')", "COMMIT")
        assert [p.ordinal for p in changes(adapter, ORIGIN).positions] == [1, 3]
        writer("INSERT INTO t VALUES (4, 'd')")
        run = changes(adapter, ORIGIN)
        assert [p.ordinal for p in run.positions] == [1, 3, 4]
