"""The process that a client's query runs in, seen from the mediator.

Problem: DuckDB's bound on memory does not count the texts that functions make, and an interrupt does not end
one long call. In the mediator's own process, one query could so take its memory, or a core for ever.

Wrong ways: forbidding functions by name, for there are many and they are wanted; a pool of processes that
serve one query after the other, for then one caller's query meets what another's has left; a fork, which
gRPC's threads do not survive.

Chosen way: one process per query, which bounds its memory by itself before it begins (`query_worker.py`) and
can be killed at any time. As a process takes some tenths of a second until it is ready, one that has no query
yet is kept: from the first query on, so a mediator that nobody asks has none.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from algebra.arrow_ipc import to_ipc
from mediator.warehouse import query_worker as worker

_SLACK = 1 << 20
"""What a frame may be longer than its rows."""


class ProcessEndedError(Exception):
    """The process ended without having told its answer's end. `by` is the signal, if one ended it."""

    def __init__(self, by: signal.Signals | None) -> None:
        super().__init__(f"ended by {by.name}" if by else "ended by itself")
        self.by = by


class ProcessError(Exception):
    """What went wrong there: at which stage ("settings", "query"), the exception's name, its text."""

    def __init__(self, stage: str, kind: str, text: str) -> None:
        super().__init__(text)
        self.stage = stage
        self.kind = kind


class QueryProcess:
    """A process for one query."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the mediator, which then ends it
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
        """Gives it its query, and the tables to register."""
        assert self._process.stdin is not None
        parts = [json.dumps({**request, "tables": list(tables)}).encode(), *map(to_ipc, tables.values())]
        with suppress(BrokenPipeError):  # whoever reads the answer learns why
            for part in parts:
                self._process.stdin.write(worker.LENGTH.pack(len(part)))
                self._process.stdin.write(part)
            self._process.stdin.flush()

    def schema(self) -> pa.Schema:
        """The answer's schema; comes when the query has begun to give rows."""
        _, payload = self._frame()
        return pa.ipc.open_stream(payload).schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The answer's rows, as they are read; ends only if the process has said that these were all."""
        while True:
            kind, payload = self._frame()
            if kind == worker.END:
                return
            yield from pa.ipc.open_stream(payload)

    def kill(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()
        self._process.poll()  # so that nothing is left of it, should nobody come to read

    def close(self) -> None:
        """Ends it, and returns when it has; nobody may be reading any more."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # a query that was never taken is lost with it
                    pipe.close()

    def _frame(self) -> tuple[bytes, bytes]:
        kind, length = worker.HEADER.unpack(self._read(worker.HEADER.size))
        if length > worker.ROW_BYTES + _SLACK:
            raise ProcessError("query", "", "the query's process has sent a frame that is too long")
        payload = self._read(length)
        if kind == worker.ERROR:
            raise ProcessError(**json.loads(payload))
        return kind, payload

    def _read(self, length: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(length)
        if len(data) < length:
            status = self._process.wait()
            raise ProcessEndedError(signal.Signals(-status) if status < 0 else None)
        return data


class Spare:
    """The process that has no query yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[QueryProcess] = []
        self._end = weakref.finalize(self, _close_all, self._waiting)

    def take(self) -> QueryProcess:
        """A process for one query; the next one is made ready meanwhile."""
        with self._lock:
            taken = self._waiting.pop() if self._waiting else QueryProcess()
            if not taken.is_alive:
                taken.close()
                taken = QueryProcess()
            if self._end.alive:
                with suppress(OSError):  # the next one to ask tries again
                    self._waiting.append(QueryProcess())
        return taken

    def close(self) -> None:
        """Ends it; none is kept from then on."""
        with self._lock:
            self._end()


def _close_all(waiting: list[QueryProcess]) -> None:
    while waiting:
        waiting.pop().close()


def _environment() -> dict[str, str]:
    """What the interpreter needs to find its libraries, and nothing else of the mediator's."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    path = os.pathsep.join(entry for entry in sys.path if entry and Path(entry).is_absolute())
    # Memory that allocators only reserve would count as taken.
    allocators = {
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "DUCKDB_JE_MALLOC_CONF": "retain:false",
        "MALLOC_ARENA_MAX": "2",
    }
    return {**kept, **allocators, "PYTHONPATH": path, "LC_ALL": "C.UTF-8"}
