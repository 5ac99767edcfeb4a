"""The source's file, attached to an embedded engine for moments only.

Why for moments: see `adapters/shadow/engine.py`. Two facts, both measured, follow from DuckDB's lock and make
the rest simple: while the file is attached here nobody can change it, so any number of statements read one
state; and no transaction of any writer is under way, so everything visible is complete. A read-only attach
replays what a crashed writer left in its write-ahead log. That the lock was not lost on the way (the file
opened and closed by something else in this process) is checked by every snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from adapters.shadow.engine import Engine, LockedError, transaction
from adapters.shadow.sql import quote
from algebra.errors import ConfigurationError

SOURCE = "src"
"""The name the source's file is attached by."""


class Session(Engine):
    """The embedded engine of one adapter, and the file that it reads."""

    def __init__(
        self,
        source: str,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        *,
        memory_limit: str | None = None,
    ) -> None:
        super().__init__(source, clock, memory_limit=memory_limit)
        self.path = path
        self._attached = False

    @contextmanager
    def attached(self, *, write: bool = False, timeout: float) -> Iterator[duckdb.DuckDBPyConnection]:
        """The connection, with the source's file attached as `src` until the block is left.

        Inside such a block, another one for reading shares it; one for writing is refused as locked.
        """
        if self._attached and write:
            raise LockedError(
                f"source {self.source!r}: {self.path} is being read by a snapshot of this adapter"
            )
        if self._attached:
            yield self.connection
            return
        if not self.path.exists():
            raise ConfigurationError(f"source {self.source!r}: there is no DuckDB file {self.path}")
        with self.attached_file(SOURCE, self.path, write=write, timeout=timeout) as connection:
            self._attached = True
            try:
                yield connection
            finally:
                self._attached = False

    @contextmanager
    def writing(self, timeout: float) -> Iterator[duckdb.DuckDBPyConnection]:
        """One transaction on the source's file, which is also the default catalog; all or nothing."""
        with self.attached(write=True, timeout=timeout) as connection:
            # Trigger bodies are stored as written and must not mention our name for the file.
            connection.execute(f"USE {quote(SOURCE)}")
            try:
                with transaction(connection):
                    yield connection
            finally:
                with suppress(duckdb.Error):
                    connection.execute("USE memory")
