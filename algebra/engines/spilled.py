"""Extents in tables that spill: a whole assembly query computed from them, in bounded memory.

They are filled piece by piece, with counts of either sign; what is added and taken back again is gone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from algebra.assembly import AssemblyQuery
from algebra.engines.contract import Relation
from algebra.engines.embedded import DIALECT, EmbeddedEngine, extent_sql, quote, refuse_negative, rename_node
from algebra.local_view import Keys
from algebra.schema import COUNT

BATCH_ROWS = 1 << 16
"""How many rows of the result come at once."""


class SpilledExtents:
    """The extents of an assembly query's nodes, in tables of the embedded engine.

    `add` to a node until it is `complete`; when all nodes are, `joined` is the result.
    """

    def __init__(self, engine: EmbeddedEngine, query: AssemblyQuery) -> None:
        self._connection = engine.connect()
        self._query = query
        self._begun: set[int] = set()

    def close(self) -> None:
        self._connection.close()

    def add(self, node: int, rows: Relation, sign: int) -> None:
        """Rows of a node, a bag or counted, that there are (1), or are not there after all (-1)."""
        shape = self._query.nodes[node]
        count = COUNT if COUNT in rows.column_names else "1"
        columns = ", ".join(quote(name) for name in shape.schema.names)
        where = ""
        if shape.filter is not None:
            where = f" WHERE {rename_node(shape.filter, 'piece').sql(dialect=DIALECT)}"
        select = f"SELECT {columns}, CAST({sign} * {count} AS BIGINT) AS {COUNT} FROM piece{where}"
        self._connection.register("piece", rows)
        try:
            into = f"INSERT INTO added{node}" if node in self._begun else f"CREATE TEMP TABLE added{node} AS"
            self._connection.execute(f"{into} {select}")
            self._begun.add(node)
        finally:
            self._connection.unregister("piece")

    def complete(self, node: int) -> None:
        """All of a node was added; OrderingViolationError if more was taken back than there was."""
        shape = self._query.nodes[node]
        columns = ", ".join(quote(name) for name in shape.schema.names)
        self._connection.execute(
            f"CREATE TEMP TABLE extent{node} AS SELECT {columns}, CAST(sum({COUNT}) AS BIGINT) AS {COUNT} "
            f"FROM added{node} GROUP BY {columns} HAVING sum({COUNT}) <> 0"
        )
        self._connection.execute(f"DROP TABLE added{node}")
        ((least,),) = self._connection.execute(f"SELECT min({COUNT}) FROM extent{node}").fetchall()
        refuse_negative(least, shape)

    def values(self, node: int, columns: list[str]) -> Relation:
        """The distinct values that a complete node has in some columns."""
        names = ", ".join(quote(name) for name in columns)
        found = self._connection.sql(f"SELECT DISTINCT {names} FROM extent{node}").to_arrow_table()
        schema = self._query.nodes[node].schema
        return found.cast(pa.schema([schema.field(name) for name in columns]))

    def joined(self, keys: Keys | None) -> Iterator[pa.RecordBatch]:
        """The query's result as a bag, in batches; with keys, only the rows that match one of them."""
        sources = [f"SELECT * FROM extent{node}" for node in range(len(self._query.nodes))]
        sql = extent_sql(self._query, sources, counted=True, dialect=DIALECT)
        if keys is not None:
            match = " AND ".join(f"p.{quote(c)} = k.{quote(c)}" for c in keys.columns)
            sql = f"SELECT p.* FROM ({sql}) AS p SEMI JOIN k ON {match}"
            self._connection.register("k", keys.values)
        for batch in self._connection.sql(sql).to_arrow_reader(BATCH_ROWS):
            counts = batch.column(COUNT).to_numpy()
            rows = pa.Table.from_batches([batch]).drop_columns([COUNT]).cast(self._query.schema)
            yield from _bag(rows, counts)


def _bag(rows: pa.Table, counts: np.ndarray) -> Iterator[pa.RecordBatch]:
    """Each row as often as it counts."""
    if (counts == 1).all():
        yield from rows.to_batches()
        return
    ends = np.cumsum(counts)
    for first in range(0, int(ends[-1]), BATCH_ROWS):
        places = np.arange(first, min(first + BATCH_ROWS, int(ends[-1])))
        yield from rows.take(pa.array(np.searchsorted(ends, places, side="right"))).to_batches()
