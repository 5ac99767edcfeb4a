"""A writer on a SQLite file, in a process of its own: the source's autonomous application.

It must not share the wrapper's process: two SQLite libraries in one process undo each other's locks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

_PROGRAM = """
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("PRAGMA synchronous=OFF")  # processes are killed here, machines are not
for line in sys.stdin:
    connection.execute("BEGIN IMMEDIATE")
    for sql, parameters in json.loads(line):
        rows = connection.execute(sql, parameters).fetchall()
    connection.execute("COMMIT")
    print(json.dumps(rows), flush=True)
"""

Statement = tuple[str, Sequence[Any]]


class SqliteWriter:
    """Commits transactions, one `commit` each; a context manager."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def commit(self, *statements: Statement | str) -> None:
        """One transaction; returns when it is committed."""
        self.rows(*statements)

    def rows(self, *statements: Statement | str) -> list[list[Any]]:
        """One transaction; the rows of its last statement."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pairs = [(s, []) if isinstance(s, str) else (s[0], list(s[1])) for s in statements]
        self._process.stdin.write(json.dumps(pairs) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError("the writer did not commit")
        rows: list[list[Any]] = json.loads(answer)
        return rows

    def __enter__(self) -> SqliteWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
