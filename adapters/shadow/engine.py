"""One embedded DuckDB that attaches files for moments only.

Problem: a process that has a DuckDB file open for writing excludes everybody else, and a reader excludes
writers. Whoever else needs the file (the application that owns a source, another command that looks at a
shadow) must get its turn, so a file must be open as shortly as possible.

Wrong ways: a connection that stays open (the others can never write); `duckdb.connect(file)` per piece of
work (starts a whole engine, about 28 ms during which the others are locked out).

Chosen way: one in-memory engine that lives as long as the adapter, and `ATTACH` ... `DETACH` around each
piece of work (about 1 ms). An Arrow stream that is still referenced keeps the file locked even after
DETACH, so streams are let go of before it (see `fetch.py`).

DuckDB's lock is a POSIX lock of the process: whoever else in this process closes the same file drops it.
So the engines of one process take turns on a file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb

from adapters.shadow.sql import quote, text
from algebra.errors import INTERNAL_ERROR, DataError, LockstepError, SourceUnavailableError
from algebra.scratch import ScratchFolder

FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.025

_held: set[Path] = set()
_held_guard = threading.Lock()


class LockedError(SourceUnavailableError):
    """Another process holds the file, and did so for as long as we were willing to wait."""


class Engine:
    """The embedded engine of one adapter; nothing is started before the first use.

    `memory_limit` bounds what a comparison keeps in memory, None leaves DuckDB's own bound; beyond it, DuckDB
    spills to a temporary folder that only this user can read.
    """

    def __init__(
        self,
        source: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        memory_limit: str | None = None,
    ) -> None:
        self.source = source
        self._clock = clock
        self._settings: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False
        }
        if memory_limit is not None:
            self._settings["memory_limit"] = memory_limit
        self._spill: ScratchFolder | None = None
        self._closed = threading.Event()
        self._engine: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The engine's main connection."""
        if self._closed.is_set():
            raise SourceUnavailableError(f"source {self.source!r}: the adapter is closed")
        if self._engine is None:
            if self._spill is None:
                self._spill = ScratchFolder("source")
            self._engine = duckdb.connect(config={**self._settings, "temp_directory": str(self._spill.path)})
            self._engine.execute("SET GLOBAL TimeZone = 'UTC'")
            # Where it takes the process for an interactive one, it would draw on the standard output.
            self._engine.execute("SET enable_progress_bar = false")
            # In DuckDB 2.0.0 this one makes wrong rows of `row_number() OVER (ORDER BY rowid)` with a limit.
            self._engine.execute("SET GLOBAL disabled_optimizers = 'top_n_window_elimination'")
        return self._engine

    @contextmanager
    def attached_file(
        self, alias: str, path: Path, *, write: bool, timeout: float
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        """The connection, with any file attached; LockedError if it stays locked for `timeout` seconds."""
        mode = "" if write else " (READ_ONLY)"
        turn = path.resolve()
        connection = self._attach(f"ATTACH {text(str(path))} AS {quote(alias)}{mode}", turn, timeout)
        try:
            yield connection
        finally:
            self._detach(connection, alias)
            _give_back(turn)

    def pause(self, seconds: float) -> None:
        """Do nothing for that long, if it is positive; `close` ends it."""
        if seconds > 0:
            self._closed.wait(seconds)

    def close(self) -> None:
        """Stop whatever runs, and let go of the file; idempotent, from any thread."""
        self._closed.set()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.interrupt()
            engine.close()
        spill, self._spill = self._spill, None
        if spill is not None:
            spill.close()

    def _detach(self, connection: duckdb.DuckDBPyConnection, alias: str) -> None:
        try:
            connection.execute(f"DETACH {quote(alias)}")
        except duckdb.Error:
            # Closed meanwhile, or the engine broke: give it up, so that the file is free whatever happened.
            self._engine = None
            connection.close()

    def _attach(self, statement: str, path: Path, timeout: float) -> duckdb.DuckDBPyConnection:
        deadline = self._clock() + timeout
        pause = FIRST_PAUSE
        while not self._try_attach(statement, path):
            if self._clock() >= deadline:
                raise LockedError(
                    f"source {self.source!r}: {path} is held open by another process ({timeout:g} s)"
                )
            self.pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return self.connection

    def _try_attach(self, statement: str, path: Path) -> bool:
        connection = self.connection
        with _held_guard:
            if path in _held:
                return False
            _held.add(path)
        try:
            connection.execute(statement)
        except BaseException as error:
            _give_back(path)
            if not isinstance(error, duckdb.Error):
                raise
            if _is_locked(error):
                return False
            raise _translate(self.source, error) from error
        return True


def _give_back(path: Path) -> None:
    with _held_guard:
        _held.discard(path)


def one(connection: duckdb.DuckDBPyConnection, statement: str, values: Sequence[object] = ()) -> Any:
    """The first row of a result, or None; the result is read to its end, so the connection is free again."""
    rows = connection.execute(statement, list(values)).fetchall()
    return rows[0] if rows else None


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """BEGIN, then COMMIT if the block succeeds, else ROLLBACK."""
    connection.execute("BEGIN")
    try:
        yield
    except BaseException:
        with suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def translated(source: str) -> Iterator[None]:
    """Errors of the DuckDB library leave the block as errors of the contract."""
    try:
        yield
    except duckdb.Error as error:
        raise _translate(source, error) from error


def _is_locked(error: duckdb.Error) -> bool:
    # The second is another connection of this very process, as in an embedded wrapper.
    return "Could not set lock" in str(error) or "Unique file handle conflict" in str(error)


_NEVER_ANSWERED = (
    duckdb.BinderException,
    duckdb.InvalidTypeException,
    duckdb.NotSupportedError,
    duckdb.ParserException,
    duckdb.SyntaxException,
)
"""What is wrong with a statement itself: to try it again would not help."""


def _translate(source: str, error: duckdb.Error) -> LockstepError:
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    text = f"source {source!r}: {line}"
    if isinstance(error, duckdb.ConversionException | duckdb.OutOfRangeException):
        return DataError(text, told=f"source {source!r}: a value does not fit its type")
    if isinstance(error, _NEVER_ANSWERED):
        return LockstepError(text, told=f"source {source!r}: {INTERNAL_ERROR}")
    return SourceUnavailableError(text)
