"""A busy writer in a process of its own; it writes to a file what each of its committed transactions did.

Transactions of many sizes over two captured relations and one that is not, with rollbacks, savepoints,
rows wide enough for overflow pages, transactions that undo themselves, and a cache so small that large
transactions spill into the write-ahead log before they commit. The program's truth is the list of
[last change log row, rows changed] of each commit that touched a captured relation.
"""

import json
import random
import sqlite3
import sys


def main(path: str, truth_file: str, seed: int, transactions: int, checkpoint: str) -> None:
    rnd = random.Random(seed)
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = 10")
    connection.execute("PRAGMA wal_autocheckpoint = 0" if checkpoint else "PRAGMA wal_autocheckpoint = 50")
    truth: list[tuple[int, list[list[object]]]] = []
    keys = "SELECT a FROM narrow UNION ALL SELECT a FROM wide"
    key = connection.execute(f"SELECT coalesce(max(a), 0) FROM ({keys})").fetchone()[0]
    for number in range(transactions):
        done: list[list[object]] = []
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(rnd.choice([0, 1, 1, 1, 2, 5, 40])):
            key += 1
            write(connection, rnd, key, done)
        if rnd.random() < 0.2:
            connection.execute("SAVEPOINT inner_part")
            kept = len(done)
            for _ in range(rnd.choice([1, 3, 120])):
                key += 1
                write(connection, rnd, key, done)
            if rnd.random() < 0.6:
                connection.execute("ROLLBACK TO inner_part")
                del done[kept:]
            connection.execute("RELEASE inner_part")
        connection.execute("INSERT INTO uncaptured VALUES (?)", (number,))
        if rnd.random() < 0.15:
            connection.execute("ROLLBACK")
            continue
        connection.execute("COMMIT")
        if done:
            last = connection.execute("SELECT max(seq) FROM _lockstep_log").fetchone()[0]
            truth.append((last, done))
        if checkpoint and number % 20 == 19:
            connection.execute(f"PRAGMA wal_checkpoint({checkpoint})").fetchall()
    with open(truth_file, "w", encoding="utf-8") as file:
        json.dump(truth, file)


def write(connection: sqlite3.Connection, rnd: random.Random, key: int, done: list[list[object]]) -> None:
    kind = rnd.random()
    text = "x" * rnd.choice([0, 3, 50, 900, 900, 5000])
    if kind < 0.5:
        connection.execute("INSERT INTO narrow VALUES (?, ?)", (key, text))
        done.append(["narrow", 1, [key, text]])
    elif kind < 0.7:
        connection.execute("INSERT INTO wide (a, b) VALUES (?, ?)", (key, text))
        done.append(["wide", 1, [key, text, *[None] * 38]])
    elif kind < 0.85:
        old = connection.execute("SELECT a, b FROM narrow WHERE a < ? ORDER BY a DESC", (key,)).fetchone()
        if old is not None:
            connection.execute("UPDATE narrow SET b = ? WHERE a = ?", (text, old[0]))
            done.append(["narrow", -1, list(old)])
            done.append(["narrow", 1, [old[0], text]])
    else:
        old = connection.execute("SELECT a, b FROM narrow ORDER BY a LIMIT 1").fetchone()
        if old is not None:
            connection.execute("DELETE FROM narrow WHERE a = ?", (old[0],))
            done.append(["narrow", -1, list(old)])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
