"""Past state: a source as it was at a position, read in a snapshot that shows more than that.

Problem. A snapshot shows a source as it is now. What is computed for the end of a run, or answered for what
was reported so far, must see it as it was then, and sources cannot go back in time.

Chosen way. Relation by relation: of the rows that a query fetches, what later transactions did to rows with
the same keys is taken back, by the same compensation that the mediator does (`Engine.history`). A join of
several relations is then done here, hop by hop, instead of in the source. Answers may be as large as the
source, and so may be what is taken back from them: they are computed in tables of DuckDB, which spill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from adapters.spi import Snapshot
from algebra.assembly import HIGH, LOW, SEQUENCE
from algebra.delta import consolidate
from algebra.engines.contract import EARLIEST, Relation
from algebra.engines.embedded import EmbeddedEngine
from algebra.engines.spilled import SpilledExtents
from algebra.local_view import Keys, LocalView
from algebra.schema import COUNT
from wrapper.deciding import deciding
from wrapper.reported_view import ReportedView

LaterChanges: TypeAlias = Callable[[str, Sequence[str], Keys | None], Iterator[Relation]]
"""later(relation, columns, keys): what the snapshot shows of a relation beyond the position, piece by piece,
as columns and `_count`."""


def nothing_later(relation: str, columns: Sequence[str], keys: Keys | None) -> Iterator[Relation]:
    """`LaterChanges` of a snapshot that shows nothing beyond the position."""
    return iter(())


class PastState:
    """What a snapshot shows, without what `later` knows of."""

    def __init__(self, engine: EmbeddedEngine, snapshot: Snapshot, later: LaterChanges) -> None:
        self._engine = engine
        self._snapshot = snapshot
        self._later = later

    def relation(self, shape: ReportedView, node: int, keys: Keys | None) -> Relation:
        """LQ: one relation of a local view, restricted to the keys; a bag, or counted."""
        rows = self._snapshot.fetch(shape.queries[node], keys).read_all()
        columns = shape.plan.query.nodes[node]
        beyond = pa.schema([*columns.schema, pa.field(COUNT, pa.int64())]).empty_table()
        for changes in self._later(shape.view.occurrences[node].relation, columns.schema.names, keys):
            beyond = consolidate(pa.concat_tables([beyond, changes]))
        if not beyond.num_rows:
            return rows
        after = pa.repeat(pa.scalar(0, pa.int64()), beyond.num_rows)
        known = self._engine.history(columns, rows, beyond.append_column(SEQUENCE, after), None)
        before = known.filter(pc.equal(known[LOW], EARLIEST))
        return before.drop_columns([LOW, HIGH])

    def rows(self, shape: ReportedView, keys: Keys | None) -> Iterator[pa.RecordBatch]:
        """The local view's rows with these keys, as a bag with its columns, in batches."""
        plan = shape.plan
        extents = SpilledExtents(self._engine, plan.query)
        try:
            with deciding(shape.view.name):
                start, own = _start(shape.view, keys)
                self._spill(extents, shape, start, own)
                for hop in plan.order(start):
                    keys_of_hop = None
                    if hop.on:
                        known = extents.values(hop.origin, list(dict.fromkeys(a for a, _ in hop.on)))
                        values = self._engine.keys([known], hop, plan.query)
                        keys_of_hop = Keys(tuple(values.column_names), values)
                    self._spill(extents, shape, hop.target, keys_of_hop)
                yield from extents.joined(keys)
        finally:
            extents.close()

    def _spill(self, extents: SpilledExtents, shape: ReportedView, node: int, keys: Keys | None) -> None:
        """Put one relation of a local view, restricted to the keys, into a table that spills."""
        reader = self._snapshot.fetch(shape.queries[node], keys)
        extents.add(node, reader.schema.empty_table(), 1)
        for batch in reader:
            extents.add(node, pa.Table.from_batches([batch]), 1)
        columns = shape.plan.query.nodes[node].schema.names
        for changes in self._later(shape.view.occurrences[node].relation, columns, keys):
            extents.add(node, changes, -1)
        extents.complete(node)

    def join(self, shape: ReportedView, given: Mapping[int, Relation]) -> Relation:
        """The local view with these rows (columns and `_count`) in place of some relations, and `_count`."""
        plan, engine = shape.plan, self._engine
        start = min(given, key=lambda node: given[node].num_rows)
        partial = engine.begin(start, given[start])
        for hop in plan.order(start):
            if hop.target in given:
                partial = engine.join(partial, hop, given[hop.target])
                continue
            keys = None
            if hop.on:
                values = engine.partial_keys(partial, hop, plan.query)
                keys = Keys(tuple(values.column_names), values)
            rows = engine.select(plan.query.nodes[hop.target], self.relation(shape, hop.target, keys))
            partial = engine.join(partial, hop, rows)
        return engine.project(plan.query, partial)


def _start(view: LocalView, keys: Keys | None) -> tuple[int, Keys | None]:
    """The occurrence that has the most of the key columns, and the keys as far as they are its own."""
    if keys is None:
        return 0, None
    node_of = {occurrence.alias: node for node, occurrence in enumerate(view.occurrences)}
    own: dict[int, dict[str, str]] = {}
    for name in keys.columns:
        column = view.output(name).source
        own.setdefault(node_of[column.occurrence], {}).setdefault(column.column, name)
    node = max(own, key=lambda candidate: len(own[candidate]))
    values = keys.values.select(list(own[node].values())).rename_columns(list(own[node]))
    return node, Keys(tuple(own[node]), values.group_by(list(own[node])).aggregate([]))
