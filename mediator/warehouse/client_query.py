"""Client queries while they run: which files they may open, what they may take, and how they end.

Problem: a query comes from somebody who may read some views only, and may be made to run for ever, to fill
the memory or the disk, or to go on after its caller has left.

Wrong ways: one DuckDB for all, for what one query may open then every query may open, and DuckDB takes a
table's name that it does not know as a pattern of file names; one in this process, for it counts only a part
of what it takes, and cannot be ended at any time.

Chosen way: a process per query (`query_process.py`) with a DuckDB which can open the files of the views it
reads and nothing else, with bounds of its own. One thread looks after all of them, and kills what is over its
time or no longer wanted. There are `processes` at most, and half of them for one caller, so that others go
on; who comes later waits.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from algebra.errors import (
    ConfigurationError,
    DataError,
    LimitExceededError,
    LockstepError,
    RefusedError,
    SourceUnavailableError,
)
from algebra.scratch import ScratchFolder
from mediator.warehouse.query import FORBIDDEN, TABLE_FUNCTIONS, one_line, query_error
from mediator.warehouse.query_process import ProcessEndedError, ProcessError, QueryProcess, Spare
from mediator.warehouse.query_worker import ROW_BYTES
from mediator.warehouse.scan import Scan
from mediator.warehouse.storage import literal, quote

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
UNREAD_SECONDS = 10.0
"""How long a query's caller has to come for the reason why it was ended; it may have stopped to read."""

StopBy = Callable[[Callable[[], None]], object]
"""Takes the function that ends a query, to call it when nobody wants its rows any more; returns False if that
is so already. gRPC's `add_callback` is one."""
GiveUp = Callable[[LockstepError], object]
"""Ends the call of a caller who does not come for the reason, so that its query holds nothing any longer."""


@dataclass(frozen=True)
class QueryLimits:
    """What one query may take: seconds until its last row has been read (0: any time), memory and disk.

    `processes` is how many may run at once; one caller may have half of them.
    """

    seconds: float = 300.0
    memory: str = "1GiB"
    disk: str = "4GiB"
    processes: int = 16


@dataclass(frozen=True)
class Question:
    """A SELECT that was checked, the views that it may name, and all the files that these are read from."""

    sql: str
    views: Mapping[str, Scan]
    files: Collection[Path]


class ClientQuery:
    """One query, and what it holds. It ends with `close`, or when nobody holds it any more."""

    def __init__(self, limits: QueryLimits, give_up: GiveUp | None = None) -> None:
        self._limits = limits
        self._give_up = give_up
        self._over_since: float | None = None
        self._deadline = time.monotonic() + limits.seconds if limits.seconds else None
        self._reason: LockstepError | None = None
        self._process: QueryProcess | None = None
        self._paths: Sequence[str] = ()
        """Of its files; where they lie is not for its caller to know."""
        self.held = ExitStack()
        self.close = weakref.finalize(self, self.held.close)
        """Gives everything back; may be called twice."""

    @property
    def pid(self) -> int | None:
        """Its process, if it has begun."""
        return self._process.pid if self._process else None

    def stop(self, reason: LockstepError | None = None) -> None:
        """Ends the work; whoever reads on gets the reason."""
        self._reason = self._reason or reason or SourceUnavailableError("the query was ended by its caller")
        self.look()

    def look(self) -> None:
        """Kills the process if it has to end, and gives up a caller who does not hear of that."""
        now = time.monotonic()
        if self._reason is None and self._deadline is not None and now > self._deadline:
            self._reason = LimitExceededError(
                f"the query took more than {self._limits.seconds:g} s (query_seconds); ask for less"
            )
        if self._reason is None:
            return
        if self._process is not None:
            self._process.kill()
        self._over_since = self._over_since or now
        if self._give_up is not None and now - self._over_since > UNREAD_SECONDS:
            give_up, self._give_up = self._give_up, None
            give_up(self._reason)

    def check(self) -> None:
        """Raises the reason why it has to end."""
        if self._reason is not None:
            raise self._reason

    def ask(self, spare: Spare, question: Question) -> pa.Schema:
        """Gives the question to a process; the schema of what it answers."""
        # Whatever DuckDB puts onto the disk has to go with it, also if it is killed.
        spill = str(self.held.enter_context(ScratchFolder("query")))
        self._paths = [spill, *map(str, question.files)]
        try:
            process = spare.take()
        except OSError as error:
            raise SourceUnavailableError(f"no process for the query: {error.strerror}; ask later") from None
        self.held.callback(process.close)
        self._process = process
        self.look()  # whoever wanted to end it before found no process
        tables = {name: table for scan in question.views.values() for name, table in scan.tables.items()}
        try:
            process.ask(_request(self._limits, spill, question), tables)
            return process.schema()
        except (ProcessError, ProcessEndedError) as error:
            raise self._error(error) from None

    def rows(self, schema: pa.Schema, *kept: object) -> pa.RecordBatchReader:
        """The answer's rows; gives everything back at their end. Keeps `kept` alive until then."""

        def batches(query: ClientQuery, kept: tuple[object, ...]) -> Iterator[pa.RecordBatch]:
            assert query._process is not None
            try:
                for batch in query._process.batches():
                    query.check()
                    yield batch
            except (ProcessError, ProcessEndedError) as error:
                raise query._error(error) from None
            finally:
                query.close()
            del kept

        return pa.RecordBatchReader.from_batches(schema, batches(self, kept))

    def _error(self, error: ProcessError | ProcessEndedError) -> LockstepError:
        """What went wrong, as one line."""
        if self._reason is not None:
            return self._reason
        if isinstance(error, ProcessEndedError):
            if error.by is signal.SIGABRT:  # a library that finds no memory in a place where it must
                return self._out_of_memory()
            return SourceUnavailableError(f"the query's process {error}, and its answer is not whole")
        if error.stage == "settings":
            return ConfigurationError(f"query_memory or query_disk: {one_line(error)}")
        if error.kind == "RefusedQueryError":
            return RefusedError(one_line(error))
        if error.kind == "RowTooLargeError":
            return LimitExceededError(
                f"a row of the answer takes more than {ROW_BYTES >> 20} MiB; ask for less"
            )
        if error.kind in ("OutOfMemoryException", "MemoryError", "ArrowMemoryError") or str(error).startswith(
            "Out of Memory Error"
        ):
            return self._out_of_memory()
        if any(path in str(error) for path in self._paths):
            log.error("a query could not use its files: %s", one_line(error))
            return DataError(
                "a file that the query needs cannot be used; the log of the mediator tells which"
            )
        kind = getattr(duckdb, error.kind, None)
        if isinstance(kind, type) and issubclass(kind, duckdb.Error):
            return query_error(kind(str(error)))
        return query_error(error)

    def _out_of_memory(self) -> LockstepError:
        return LimitExceededError(
            f"the query needs more than {self._limits.memory} of memory (query_memory) "
            f"and {self._limits.disk} of disk (query_disk); ask for less"
        )


def _request(limits: QueryLimits, spill: str, question: Question) -> dict[str, Any]:
    paths = ", ".join(literal(str(path)) for path in question.files)
    return {
        "spill": spill,
        "settings": [
            f"SET memory_limit = {literal(limits.memory)}",
            f"SET max_temp_directory_size = {literal(limits.disk)}",
            "SET TimeZone = 'UTC'",
            f"SET allowed_paths = [{paths}]::VARCHAR[]",
            "SET enable_external_access = false",
            "SET lock_configuration = true",
        ],
        "views": {
            name: f"CREATE TEMP VIEW {quote(name)} AS {scan.sql}" for name, scan in question.views.items()
        },
        "table_functions": sorted(TABLE_FUNCTIONS),
        "forbidden": FORBIDDEN.pattern,
        "sql": question.sql,
    }


class ClientQueries:
    """The queries of clients that are under way, and the thread that ends those that have to."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        # Places are given back wherever the last reference to a query goes, so also while this is held.
        self._changed = threading.Condition(threading.RLock())
        self._places: Counter[Hashable] = Counter()
        self._under_way: weakref.WeakSet[ClientQuery] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._spare = Spare()
        self._closed = False

    def run(
        self, question: Question, stop_by: StopBy | None = None, caller: Hashable = None, *kept: object
    ) -> pa.RecordBatchReader:
        """The rows that the question asks for, as they are read; keeps `kept` alive until they are.

        Waits until there is a place for the caller, and then until there are rows.
        """
        with self.place(stop_by, caller) as query:
            return self.answer(query, question, *kept)

    @contextmanager
    def place(
        self, stop_by: StopBy | None = None, caller: Hashable = None, give_up: GiveUp | None = None
    ) -> Iterator[ClientQuery]:
        """A query whose time runs, to be answered. Waits until there is a place for the caller."""
        query = self._begin(stop_by, give_up)
        try:
            self._wait_for_place(query, caller)
            yield query
        except BaseException:
            query.close()
            raise

    def answer(self, query: ClientQuery, question: Question, *kept: object) -> pa.RecordBatchReader:
        """The rows that the question asks for, as they are read; keeps `kept` alive until they are."""
        return query.rows(query.ask(self._spare, question), *kept)

    def _begin(self, stop_by: StopBy | None, give_up: GiveUp | None = None) -> ClientQuery:
        """A query whose time runs."""
        query = ClientQuery(self._limits, give_up)
        with self._changed:
            closed = self._closed
            self._under_way.add(query)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_after, name="client-queries", daemon=True)
                self._thread.start()
        if closed:
            query.stop(_closed())
        if stop_by is not None:
            reference = weakref.ref(query)  # whoever is to end it must not keep it
            if stop_by(lambda: _stop(reference)) is False:
                query.stop()
        return query

    def _wait_for_place(self, query: ClientQuery, caller: Hashable) -> None:
        share = max(1, self._limits.processes // 2)
        with self._changed:
            query.check()
            while self._places.total() >= self._limits.processes or self._places[caller] >= share:
                self._changed.wait(_LOOK_SECONDS)
                query.check()
            self._places[caller] += 1
            query.held.callback(self._give_back, caller)

    def _give_back(self, caller: Hashable) -> None:
        with self._changed:
            self._places[caller] -= 1
            self._places += Counter()  # forgets who has none
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all queries, and those that begin from now on."""
        with self._changed:
            self._closed = True
        for query in self.under_way():
            query.stop(_closed())
        self._spare.close()

    def __len__(self) -> int:
        return len(self.under_way())

    def under_way(self) -> list[ClientQuery]:
        """Those that have not ended."""
        with self._changed:
            return [query for query in self._under_way if query.close.alive]

    def _look_after(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            self._look()
            with self._changed:
                if not any(query.close.alive for query in self._under_way):
                    self._thread = None
                    return

    def _look(self) -> None:
        for query in self.under_way():
            query.look()


def _closed() -> LockstepError:
    return SourceUnavailableError("the query was ended: the mediator stops")


def _stop(reference: weakref.ref[ClientQuery]) -> None:
    query = reference()
    if query is not None:
        query.stop()
