"""The engine that suits the size: small joins embedded, large ones in Spark.

A tiny Spark job costs over a hundred milliseconds whatever it does, an embedded join a few; a join that is
too large for one process is what Spark is for. The rows that go in decide; but a view whose expressions the
two might evaluate differently stays with one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from algebra.assembly import AssemblyQuery, Node
from algebra.engines.contract import Engine, Extent, Relation, Start, ViewChange
from algebra.engines.embedded import EmbeddedEngine
from algebra.local_view import Keys
from algebra.plan import Hop, SweepPlan
from mediator.engines.spark import SparkEngine

SPARK_ROWS = 5_000_000
"""Joins over more rows than this go to Spark."""


class AutoEngine(Engine):
    """Chooses per join between the embedded engine and Spark."""

    name = "auto"

    def __init__(self, embedded: EmbeddedEngine, spark: SparkEngine, threshold: int = SPARK_ROWS) -> None:
        self._embedded = embedded
        self._spark = spark
        self._threshold = threshold

    def _for(self, rows: int, query: AssemblyQuery | None = None) -> Engine:
        if query is not None and not query.is_portable:
            return self._embedded
        return self._spark if rows > self._threshold else self._embedded

    def select(self, node: Node, rows: Relation) -> Relation:
        return self._embedded.select(node, rows)

    def keys(self, rows: Sequence[Relation], hop: Hop, query: AssemblyQuery) -> Relation:
        return self._embedded.keys(rows, hop, query)

    def history(self, node: Node, answer: Relation, pending: Relation, keys: Keys | None) -> Relation:
        return self._embedded.history(node, answer, pending, keys)

    def assemble(self, plan: SweepPlan, starts: Sequence[Start], directory: Path | None) -> ViewChange:
        rows = sum(s.deltas.num_rows + sum(r.num_rows for _, r in s.hops) for s in starts)
        return self._for(rows, plan.query).assemble(plan, starts, directory)

    def begin(self, node: int, deltas: Relation) -> Relation:
        return self._embedded.begin(node, deltas)

    def partial_keys(self, partial: Relation, hop: Hop, query: AssemblyQuery) -> Relation:
        return self._embedded.partial_keys(partial, hop, query)

    def join(self, partial: Relation, hop: Hop, rows: Relation) -> Relation:
        return self._for(partial.num_rows + rows.num_rows).join(partial, hop, rows)

    def minus(self, left: Relation, right: Relation) -> Relation:
        return self._embedded.minus(left, right)

    def project(self, query: AssemblyQuery, partial: Relation) -> Relation:
        return self._for(partial.num_rows, query).project(query, partial)

    def extent(self, query: AssemblyQuery, extents: Sequence[Extent], directory: Path | None) -> ViewChange:
        rows = 0
        for extent in extents:
            rows += extent.table.num_rows if extent.table is not None else 0
            rows += sum(pq.read_metadata(path).num_rows for path in extent.files)
        return self._for(rows, query).extent(query, extents, directory)

    def failure(self) -> str:
        return self._spark.failure()

    def close(self) -> None:
        self._spark.close()
        self._embedded.close()
