"""The source's owner: a process of its own that opens a DuckDB file, writes, closes or crashes, as told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any


class OwnerError(Exception):
    """The owner's DuckDB refused a statement."""


class Owner:
    """Drives the process; every call returns when the process has done it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def open(self, path: Path) -> None:
        self._call("open", path=str(path))

    def run(self, *statements: str, connection: int = 0) -> list[Any]:
        """Run statements on one of the owner's connections; the rows of the last one."""
        rows: list[Any] = []
        for statement in statements:
            rows = self._call("run", connection=connection, statement=statement)
        return rows

    def append(self, table: str, rows: list[list[Any]], connection: int = 0) -> None:
        """Rows through the appender."""
        self._call("append", connection=connection, table=table, rows=rows)

    def run_later(self, *statements: str) -> None:
        """Run statements and close the file, without waiting for it."""
        self._send("run_and_close", statements=list(statements))

    def close(self) -> None:
        self._call("close")

    def crash(self) -> None:
        """End at once: nothing is closed, nothing is checkpointed."""
        self._send("crash")
        assert self._process is not None
        self._process.wait()
        self._process = None

    def write(self, path: Path, *statements: str) -> list[Any]:
        """Open, run, close."""
        self.open(path)
        try:
            return self.run(*statements)
        finally:
            self.close()

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def answer(self) -> Any:
        """What the process answers to the command that was sent last."""
        assert self._process is not None
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise OwnerError(answer["error"])
        return answer["rows"]

    def _call(self, command: str, **arguments: Any) -> Any:
        self._send(command, **arguments)
        return self.answer()

    def _send(self, command: str, **arguments: Any) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Owner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _serve() -> None:
    # Run as a script, this folder's parent package would shadow nothing: `duckdb` is the library.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
    import duckdb

    connections: list[duckdb.DuckDBPyConnection] = []

    def connection(index: int) -> duckdb.DuckDBPyConnection:
        while len(connections) <= index:
            connections.append(connections[0].cursor())
        return connections[index]

    def close() -> None:
        while connections:
            connections.pop().close()

    for line in sys.stdin:
        call = json.loads(line)
        rows: list[Any] = []
        try:
            match call["command"]:
                case "open":
                    connections.append(duckdb.connect(call["path"]))
                case "run":
                    rows = connection(call["connection"]).execute(call["statement"]).fetchall()
                case "append":
                    _append(connection(call["connection"]), call["table"], call["rows"])
                case "run_and_close":
                    for statement in call["statements"]:
                        connection(0).execute(statement).fetchall()
                    close()
                case "close":
                    close()
                case "crash":
                    os._exit(9)
            answer: dict[str, Any] = {"rows": rows}
        except duckdb.Error as error:
            answer = {"error": str(error)}
        print(json.dumps(answer, default=str), flush=True)


def _append(connection: Any, table: str, rows: list[list[Any]]) -> None:
    import pandas as pd

    names = [row[1] for row in connection.execute(f"PRAGMA table_info('{table}')").fetchall()]
    connection.append(table, pd.DataFrame(rows, columns=names))


if __name__ == "__main__":
    _serve()
