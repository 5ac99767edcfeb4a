"""Where a relation's rows come from: whatever the embedded DuckDB can scan once, from start to end.

Columns go by number (`c0`, `c1`, …) from here on: DuckDB ignores the case of names, sources may not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

import duckdb
import pyarrow as pa

_STREAM = "_lockstep_stream"


class Extent(ABC):
    """All rows of a relation, or some of them, to be scanned once."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What it reads, in words or SQL, for a list of steps."""

    @abstractmethod
    def scanned(self, connection: duckdb.DuckDBPyConnection) -> AbstractContextManager[str]:
        """What to write after FROM inside the block; has the columns `c0`, `c1`, …"""


@dataclass(frozen=True)
class SqlExtent(Extent):
    """Rows of a file that is attached to the same engine: a SELECT with the columns `c0`, `c1`, …"""

    select: str

    @property
    def text(self) -> str:
        return f"({self.select})"

    @contextmanager
    def scanned(self, connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
        yield self.text


class ArrowExtent(Extent):
    """Rows that arrive as Arrow batches, read as they are needed: never more than a few batches in memory.

    `schema` gives the types in column order; a batch with others is an error. What goes wrong while
    batches are made leaves `scanned` as it was raised, not as DuckDB's report of it.
    """

    def __init__(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self._name = name
        self._schema = pa.schema([pa.field(f"c{i}", field.type) for i, field in enumerate(schema)])
        self._batches = batches

    @property
    def text(self) -> str:
        return f"the rows of {self._name}"

    @contextmanager
    def scanned(self, connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
        failures: list[BaseException] = []

        def numbered() -> Iterator[pa.RecordBatch]:
            try:
                for batch in self._batches:
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
            except BaseException as error:
                failures.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(self._schema, numbered())
        connection.register(_STREAM, reader)
        try:
            yield _STREAM
        except duckdb.Error as error:
            if failures:
                raise failures[0] from error
            raise
        finally:
            # In a transaction that failed nothing can be done but roll back, which takes the name away too.
            with suppress(duckdb.Error):
                connection.unregister(_STREAM)
