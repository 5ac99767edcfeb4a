"""A writer that is killed while it commits: a database path, what it had published by then, and statements.

"nothing": all frames of the transaction are in the write-ahead log, and the wal-index does not know of them.
"half": the first of the two copies of the wal-index's header that a commit writes is new, the other is old;
whoever comes next has to mend that. To be killed there is a matter of luck, so this program lets the
transaction commit and takes back, in the wal-index, what came later than its death would have.
"""

import os
import signal
import sqlite3
import sys

_COPY = 48


def main(path: str, published: str, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    index = os.open(f"{path}-shm", os.O_RDWR)
    before = os.pread(index, os.fstat(index).st_size, 0)
    for statement in statements:
        connection.execute(statement)
    os.pwrite(index, before[:_COPY] if published == "half" else before, 0)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
