"""A writer that goes on until it is killed: each transaction inserts rows of its own number, deletes some
others, and writes pages of tables that nobody captures, so that transactions have many lengths in the log.
"""

import random
import sqlite3
import sys


def main(path: str, seed: int) -> None:
    rnd = random.Random(seed)
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    numbers = "SELECT a FROM t UNION ALL SELECT n FROM uncaptured0"
    ((number,),) = connection.execute(f"SELECT coalesce(max(a), 0) FROM ({numbers})").fetchall()
    print("writing", flush=True)
    while True:
        number += 1
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO uncaptured0 VALUES (?)", (number,))
        for _ in range(rnd.choice([0, 1, 2, 5, 9])):
            connection.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * rnd.choice([1, 300])))
        for table in range(1, rnd.randrange(1, 6)):
            connection.execute(f"INSERT INTO uncaptured{table} VALUES (?)", (number,))
        old = "SELECT rowid FROM t WHERE a < ? LIMIT ?"
        connection.execute(f"DELETE FROM t WHERE rowid IN ({old})", (number, rnd.randrange(6)))
        connection.execute("COMMIT")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
