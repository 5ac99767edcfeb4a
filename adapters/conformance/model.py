"""What must be in the source, worked out by the kit alone from the operations it ordered.

Tables are bags of plain Python rows. Floats are replaced by marks where Python's equality is not the
contract's: NaN is NaN, and -0.0 is not 0.0 when a value is to come back as it was written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from adapters.conformance.disturbance import Disturbance, DropTable, keeps
from adapters.conformance.harness import Quirks
from adapters.conformance.operations import (
    Delete,
    Empty,
    Fill,
    Insert,
    Mark,
    Overwrite,
    Raise,
    Row,
    RowOperation,
    Transaction,
    Update,
    effective,
)
from adapters.conformance.schema_change import (
    AddColumn,
    DropColumn,
    RenameTable,
    RetypeColumn,
    SchemaChange,
    altered,
)
from algebra.schema import COUNT, RelationSchema

Bag = Counter[Row]
"""Rows with their counts; signed when it is a change."""

Change = dict[str, Bag]
"""What a transaction does to each relation; no empty bags, no zero counts."""


def canonical(value: Any) -> Any:
    """The value in a form where Python's equality is identity of values."""
    if isinstance(value, float):
        if math.isnan(value):
            return "float NaN"
        if value == 0 and math.copysign(1, value) < 0:
            return "float -0.0"
    return value


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of an Arrow table, canonical."""
    columns = [
        [canonical(v) for v in column.to_pylist()]
        if pa.types.is_floating(column.type)
        else column.to_pylist()
        for column in table.columns
    ]
    return list(zip(*columns, strict=True))


def bag_of(table: pa.Table) -> Bag:
    """The rows of an Arrow table as a bag; a `_count` column gives the counts."""
    if COUNT not in table.column_names:
        return Counter(rows_of(table))
    bag: Bag = Counter()
    for row, count in zip(rows_of(table.drop_columns([COUNT])), table[COUNT].to_pylist(), strict=True):
        bag[row] += count
    return nonzero(bag)


def nonzero(bag: Bag) -> Bag:
    """The bag without rows whose count is zero."""
    return Counter({row: count for row, count in bag.items() if count})


def plus(*bags: Bag) -> Bag:
    """The sum of signed bags (Counter's own `+` drops what is negative)."""
    total: Bag = Counter()
    for bag in bags:
        for row, count in bag.items():
            total[row] += count
    return nonzero(total)


def sum_changes(changes: Iterable[Change]) -> Change:
    """What several transactions do together."""
    total: dict[str, list[Bag]] = {}
    for change in changes:
        for relation, bag in change.items():
            total.setdefault(relation, []).append(bag)
    return {relation: bag for relation, bags in total.items() if (bag := plus(*bags))}


class Model:
    """The tables as they must be after the transactions applied so far."""

    def __init__(self, tables: Sequence[RelationSchema], quirks: Quirks) -> None:
        self.tables = {table.name: table for table in tables}
        self.contents: dict[str, Bag] = {table.name: Counter() for table in tables}
        self._quirks = quirks

    def apply(self, transaction: Transaction) -> Change:
        """Apply one transaction and return what it did; nothing if it does not commit."""
        if not transaction.commits:
            return {}
        effects: list[Change] = []
        for operation in effective(transaction.operations):
            effects.append(self._effect(operation, effects))
        change = sum_changes(effects)
        for relation, bag in change.items():
            self.contents[relation] = plus(self.contents[relation], bag)
            lost = next((row for row, count in self.contents[relation].items() if count < 0), None)
            if lost is not None:
                raise ValueError(
                    f"the case itself is wrong: it removes {lost} from {relation}, which has none"
                )
        return change

    def stored(self, relation: str, row: Row) -> Row:
        """The row as the source will give it back."""
        values = []
        for value, column in zip(row, self.tables[relation].columns, strict=True):
            stored = self._quirks.stored.get(column.type)
            values.append(canonical(stored.convert(value) if stored and value is not None else value))
        return tuple(values)

    def alter(self, change: SchemaChange) -> None:
        """Change the schema; the rows follow."""
        rows = self.contents.pop(change.relation)
        columns = [column.name for column in self.tables[change.relation].columns]
        name = change.relation
        match change:
            case AddColumn():
                rows = Counter({(*row, None): count for row, count in rows.items()})
            case DropColumn(_, column):
                at = columns.index(column)
                rows = plus(*(Counter({(*row[:at], *row[at + 1 :]): n}) for row, n in rows.items()))
            case RetypeColumn(_, column, _):
                at = columns.index(column)
                rows = Counter({(*row[:at], str(row[at]), *row[at + 1 :]): n for row, n in rows.items()})
            case RenameTable(_, name):
                pass
        self.tables = {table.name: table for table in altered(tuple(self.tables.values()), change)}
        self.contents[name] = rows

    def disturb(self, disturbance: Disturbance) -> Change:
        """Let it happen; returns what it did to the rows."""
        table = disturbance.table
        before = self.contents.pop(table.name, Counter())
        self.tables[table.name] = table
        kept = Counter({row: n for row, n in before.items() if keeps(disturbance, row)})
        self.contents[table.name] = kept
        if isinstance(disturbance, DropTable):
            del self.tables[table.name], self.contents[table.name]
        lost = plus(kept, Counter({row: -n for row, n in before.items()}))
        return {table.name: lost} if lost else {}

    def _effect(self, operation: RowOperation, before: Sequence[Change]) -> Change:
        if isinstance(operation, Mark):
            return {}
        relation = operation.relation
        match operation:
            case Insert(_, rows):
                bag = Counter(self.stored(relation, row) for row in rows)
            case Delete(_, row):
                bag = Counter({self.stored(relation, row): -1})
            case Update(_, old, after):
                bag = Counter({self.stored(relation, old): -1})
                bag[self.stored(relation, after)] += 1
            case Overwrite(_, old, after):
                bag = Counter({self.stored(relation, old): -1} if old else {})
                bag[self.stored(relation, after)] += 1
            case Fill():
                bag = Counter(self.stored(relation, row) for row in operation.insert.rows)
            case Raise(_, by):
                bag = Counter()
                for (number, value), count in self._present(relation, before).items():
                    bag[number, value] -= count
                    bag[number, value + by] += count
            case Empty():
                bag = Counter({row: -n for row, n in self._present(relation, before).items()})
        return {relation: bag}

    def _present(self, relation: str, effects: Sequence[Change]) -> Bag:
        """The rows that are there after a part of a transaction."""
        return plus(self.contents[relation], *(effect.get(relation, Counter()) for effect in effects))


def difference(expected: Bag, found: Bag, limit: int = 3) -> str | None:
    """One line on how two bags differ, or None."""
    wrong = plus(found, Counter({row: -count for row, count in expected.items()}))
    if not wrong:
        return None

    def some(sign: int) -> str:
        rows = [f"{abs(count)}x {_short(row)}" for row, count in wrong.items() if count * sign > 0]
        return ", ".join(rows[:limit]) + (f" and {len(rows) - limit} more" if len(rows) > limit else "")

    parts = [f"{word} {text}" for word, text in (("missing", some(-1)), ("too many", some(+1))) if text]
    return "; ".join(parts)


def difference_of_changes(expected: Mapping[str, Bag], found: Mapping[str, Bag]) -> str | None:
    """One line on how two changes differ, or None."""
    for relation in [*expected, *(name for name in found if name not in expected)]:
        text = difference(expected.get(relation, Counter()), found.get(relation, Counter()))
        if text:
            return f"{relation}: {text}"
    return None


def _short(row: Row) -> str:
    text = repr(row)
    return text if len(text) <= 160 else f"{text[:150]}…({len(text)} characters)"
