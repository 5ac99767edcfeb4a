"""Readings: what one snapshot shows, in the kit's own terms, with the shape of every answer checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from adapters.conformance.case import require
from adapters.conformance.evaluation import satisfies
from adapters.conformance.model import Bag, Change, Model, bag_of, nonzero, rows_of
from adapters.conformance.operations import Row
from adapters.conformance.queries import keys_of, whole
from adapters.spi import COUNT, TRANSACTION, Changes, Snapshot
from algebra.global_transaction import GlobalTransaction
from algebra.local_view import LocalView
from algebra.position import Position
from algebra.schema import Catalog

KeyValues = tuple[Sequence[str], Sequence[Row]]
"""Output columns, and the rows of values they may have."""


@dataclass(frozen=True)
class Entry:
    """One entry of a run of changes, as the kit compares it."""

    position: Position
    change: Change
    batched: bool
    part_of: GlobalTransaction | None = None


class Reading:
    """What one snapshot shows. Every answer is checked for its shape on the way in."""

    def __init__(self, snapshot: Snapshot, catalog: Catalog, model: Model) -> None:
        self.snapshot = snapshot
        self._catalog = catalog
        self._model = model

    @property
    def position(self) -> Position:
        return self.snapshot.position

    def entries(self, after: Position) -> list[Entry]:
        """The changes after a position; those that do nothing and have no mark are left out."""
        changes = self.snapshot.changes(after)
        require(not changes.more, f"changes({after}), asked for without a limit, say that there are more")
        return self._entries(changes, after)

    def runs(self, after: Position, most_rows: int) -> list[list[Entry]]:
        """The same, run by run, each as a wrapper asks for it."""
        found = []
        while True:
            changes = self.snapshot.changes(after, most_rows)
            found.append(self._entries(changes, after))
            if not changes.more:
                return found
            what = f"changes({after}, {most_rows})"
            require(bool(changes.positions), f"{what} say that there are more, and not where to go on")
            after = changes.positions[-1]

    def _entries(self, changes: Changes, after: Position) -> list[Entry]:
        self._check_positions(changes, after)
        per_entry: list[Change] = [{} for _ in changes.positions]
        for relation, table in changes.tables.items():
            for index, bag in self._split(relation, table, len(changes)).items():
                per_entry[index][relation] = bag
        strange = [index for index in changes.part_of if not 0 <= index < len(changes)]
        require(not strange, f"changes({after}) have marks at {strange}, and {len(changes)} entries")
        return [
            Entry(position, change, index in changes.batched, changes.part_of.get(index))
            for index, (position, change) in enumerate(zip(changes.positions, per_entry, strict=True))
            if change or index in changes.part_of
        ]

    def table(self, relation: str) -> Bag:
        """All rows of one relation."""
        return self.rows(whole(self._catalog, relation))

    def tables(self) -> dict[str, Bag]:
        """All rows of every relation, as the model keeps them."""
        return {relation: self.table(relation) for relation in self._model.tables}

    def rows(self, query: LocalView, keys: KeyValues | None = None) -> Bag:
        """The answer to a query, after the predicates, which a source may leave to its caller."""
        reader = self.snapshot.fetch(query, keys_of(query, *keys) if keys else None)
        wanted = pa.schema([(field.name, field.type) for field in query.arrow])
        shown = pa.schema([(field.name, field.type) for field in reader.schema])
        require(shown == wanted, f"fetch answers with columns {_columns(shown)}, not {_columns(wanted)}")
        answer = bag_of(reader.read_all())
        return Counter({row: count for row, count in answer.items() if satisfies(query, row)})

    def _check_positions(self, changes: Changes, after: Position) -> None:
        steps = [after, *changes.positions]
        for earlier, later in pairwise(steps):
            require(earlier < later, f"changes({after}) lists position {later} behind {earlier}")
        require(
            steps[-1] <= max(self.position, after),
            f"changes({after}) reaches {steps[-1]}, past the snapshot's position {self.position}",
        )

    def _split(self, relation: str, table: pa.Table, entries: int) -> dict[int, Bag]:
        schema = self._catalog.relation(relation)
        wanted = {column.name: column.type for column in schema.columns}
        wanted |= {TRANSACTION: pa.int32(), COUNT: pa.int64()}
        shown = dict(zip(table.schema.names, table.schema.types, strict=True))
        require(shown == wanted, f"changes of {relation} have columns {shown}, not {wanted}")
        numbers = table[TRANSACTION].to_pylist()
        require(numbers == sorted(numbers), f"changes of {relation}: {TRANSACTION} is not ascending")
        require(all(0 <= n < entries for n in numbers), f"changes of {relation}: {TRANSACTION} out of range")
        rows = rows_of(table.select([column.name for column in schema.columns]))
        split: dict[int, Bag] = {}
        for number, row, count in zip(numbers, rows, table[COUNT].to_pylist(), strict=True):
            split.setdefault(number, Counter())[row] += count
        return {number: bag for number, counted in split.items() if (bag := nonzero(counted))}


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
