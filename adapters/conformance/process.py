"""Writers in processes of their own, as a source's real writers are.

A process is started once and serves many writers, one after the other: starting an interpreter costs
more than most cases.
"""

from __future__ import annotations

import functools
import multiprocessing
import threading
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

from adapters.conformance.harness import Writer
from adapters.conformance.operations import Operation, Transaction


class WriterError(Exception):
    """A writer failed in its process; the text holds its trace."""


def in_process(number: int, make: Callable[..., Writer], *arguments: Any) -> Writer:
    """A writer made by `make(*arguments)` in the writer process of that number.

    `make` is found by its import path in the other process, so it must be at the top of a module.
    """
    host = _host(number)
    host.call("open", make, arguments)
    return _RemoteWriter(host)


class _Host:
    """One writer process. Calls are answered in order."""

    def __init__(self) -> None:
        # Not forked: a forked child shares file locks and threads with the adapter under test.
        context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def call(self, method: str, *arguments: Any) -> None:
        with self._lock:
            self._connection.send((method, arguments))
            try:
                error = self._connection.recv()
            except EOFError:
                raise WriterError("the writer process died") from None
        if error is not None:
            raise WriterError(error)


@functools.cache
def _host(number: int) -> _Host:
    return _Host()


class _RemoteWriter(Writer):
    def __init__(self, host: _Host) -> None:
        self._host = host

    def begin(self) -> None:
        self._host.call("begin")

    def execute(self, operation: Operation) -> None:
        self._host.call("execute", operation)

    def commit(self) -> None:
        self._host.call("commit")

    def rollback(self) -> None:
        self._host.call("rollback")

    def close(self) -> None:
        self._host.call("close")

    def run(self, transactions: Iterable[Transaction]) -> None:
        self._host.call("run", list(transactions))


def _serve(connection: Connection) -> None:
    """Answer calls until the other end is closed."""
    writer: Writer | None = None
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            if method == "open":
                make, made_of = arguments
                if writer is not None:
                    writer.close()
                writer = make(*made_of)
            else:
                getattr(writer, method)(*arguments)
            if method == "close":
                writer = None
        except Exception:
            connection.send(traceback.format_exc())
        else:
            connection.send(None)
