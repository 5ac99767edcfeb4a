"""One source's writer as a process: applies its part of a stream, one commit per transaction.

`python -m lab.bench.writers --stream FILE --count N --source b --adapter sqlite --file b.db` reads the
stream, prints `ready <transactions>` and then obeys lines on standard input: `all` commits everything that
is left and answers with one JSON object (`Applied`), `next` commits one transaction and answers with one
(`Committed`). The end of the input ends the process. Times are nanoseconds of the host's clock, taken
when `commit` returned, so that the process that watches the view can compare.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TextIO

from lab.bench.errors import BenchmarkError
from lab.bench.sources import DUCKDB, SQLITE
from lab.bench.streams import Operation, Transaction, read_stream
from lab.bench.workload import SOURCES, TABLES, Value

Statement = tuple[str, tuple[Value, ...]]

LOCKED_SECONDS = 60.0
"""How long a writer waits for a locked database file before it gives up."""


@dataclass(frozen=True)
class Committed:
    """One committed transaction: its number in the stream and when its commit returned."""

    number: int
    committed_ns: int


@dataclass(frozen=True)
class Applied:
    """A run of commits: how many, and when the first and the last returned; zeros if there were none."""

    commits: int
    first_ns: int
    last_ns: int


class Target(ABC):
    """A database that transactions are applied to."""

    @abstractmethod
    def apply(self, transaction: Transaction) -> None:
        """Commit the transaction; raises BenchmarkError if a row to delete or update is not there."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the file."""


def statements(operations: Iterable[Operation]) -> Iterator[Statement]:
    """SQL for the operations, in order; a delete followed by an insert of the same key is one update."""
    pending: Operation | None = None
    for op in operations:
        if pending is not None:
            table = TABLES[op.table]
            if (op.sign, op.table) == ("+", pending.table) and table.key_of(op.row) == table.key_of(
                pending.row
            ):
                yield _update(op)
                pending = None
                continue
            yield _delete(pending)
            pending = None
        if op.sign == "-":
            pending = op
        else:
            yield _insert(op)
    if pending is not None:
        yield _delete(pending)


def _insert(op: Operation) -> Statement:
    return f"INSERT INTO {op.table} VALUES ({', '.join('?' * len(op.row))})", op.row


def _delete(op: Operation) -> Statement:
    table = TABLES[op.table]
    return f"DELETE FROM {op.table} WHERE {_match(table.key)}", table.key_of(op.row)


def _update(op: Operation) -> Statement:
    table = TABLES[op.table]
    changed = table.column_names[len(table.key) :]
    values = op.row[len(table.key) :] + table.key_of(op.row)
    return f"UPDATE {op.table} SET {', '.join(f'{c} = ?' for c in changed)} WHERE {_match(table.key)}", values


def _match(columns: Sequence[str]) -> str:
    return " AND ".join(f"{column} = ?" for column in columns)


class SqliteTarget(Target):
    """An SQLite file in write-ahead mode with `synchronous = NORMAL`, over one connection."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_SECONDS)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")

    def apply(self, transaction: Transaction) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for sql, values in statements(transaction.operations):
            _expect_one_row(transaction, sql, execute(sql, values).rowcount)
        execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


class DuckDBTarget(Target):
    """A DuckDB file, opened for each transaction: only then can a wrapper read it in between."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def apply(self, transaction: Transaction) -> None:
        connection = self._open()
        try:
            connection.execute("BEGIN")
            for sql, values in statements(transaction.operations):
                changed = connection.execute(sql, list(values)).fetchone()
                _expect_one_row(transaction, sql, changed[0] if changed else 0)
            connection.execute("COMMIT")
        finally:
            connection.close()

    def close(self) -> None:
        """Nothing is open between transactions."""

    def _open(self) -> _DuckDBConnection:
        import duckdb

        give_up = time.monotonic() + LOCKED_SECONDS
        while True:
            try:
                return duckdb.connect(self._path)
            except duckdb.IOException:  # a reader holds the file
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.002)


class _DuckDBCursor(Protocol):
    def fetchone(self) -> tuple[int, ...] | None: ...


class _DuckDBConnection(Protocol):
    def execute(self, query: str, parameters: object = None) -> _DuckDBCursor: ...

    def close(self) -> None: ...


def _expect_one_row(transaction: Transaction, sql: str, rows: int) -> None:
    if rows != 1:
        raise BenchmarkError(f"transaction {transaction.number} changed {rows} rows instead of one: {sql}")


TARGETS: dict[str, Callable[[Path], Target]] = {SQLITE: SqliteTarget, DUCKDB: DuckDBTarget}


class Writer:
    """Applies a sequence of transactions to a target, all at once or one by one."""

    def __init__(self, target: Target, transactions: Iterable[Transaction]) -> None:
        self._target = target
        self._rest = iter(transactions)

    def apply_next(self) -> Committed:
        """Commit the next transaction; raises BenchmarkError if none is left."""
        transaction = next(self._rest, None)
        if transaction is None:
            raise BenchmarkError("the stream has no transaction left")
        self._target.apply(transaction)
        return Committed(transaction.number, time.time_ns())

    def apply_all(self) -> Applied:
        """Commit everything that is left, as fast as the database allows."""
        commits, first, last = 0, 0, 0
        for transaction in self._rest:
            self._target.apply(transaction)
            last = time.time_ns()
            first = first or last
            commits += 1
        return Applied(commits, first, last)


def serve(writer: Writer, commands: Iterable[str], answers: TextIO) -> None:
    """Obey `all` and `next` until the commands end."""
    actions: dict[str, Callable[[], Applied | Committed]] = {
        "all": writer.apply_all,
        "next": writer.apply_next,
    }
    for command in commands:
        print(json.dumps(asdict(actions[command.strip()]())), file=answers, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one writer process."""
    parser = argparse.ArgumentParser(description="Apply one source's part of a stream.")
    parser.add_argument("--stream", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True, help="use only the stream's first transactions")
    parser.add_argument("--source", choices=SOURCES, required=True)
    parser.add_argument("--adapter", choices=sorted(TARGETS), required=True)
    parser.add_argument("--file", type=Path, required=True)
    options = parser.parse_args(arguments)
    mine = [t for t in read_stream(options.stream, options.count) if t.source == options.source]
    target = TARGETS[options.adapter](options.file)
    try:
        print(f"ready {len(mine)}", flush=True)
        serve(Writer(target, mine), sys.stdin, sys.stdout)
    finally:
        target.close()


if __name__ == "__main__":
    main()
