"""Delta: a counted relation, the value everything in Lockstep computes with.

A delta is an Arrow table with a signed `_count` column: +2 says "this row twice more", -1 "once less".
A base relation is the delta that has only positive counts. Deltas form a group under `plus`, and that is
what makes incremental maintenance possible: what was added too much can be subtracted later (SWEEP's
local compensation is one `minus`).

Normal form: no row twice, no count zero. `consolidate` is the one place that restores it; `Delta` holds
it by construction, so that equality of relations is equality of deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from algebra.schema import COUNT


def consolidate(table: pa.Table, by: Sequence[str] | None = None) -> pa.Table:
    """The same counted rows in normal form: equal rows merged, zero counts dropped.

    `by` names the columns that make two rows equal (default: all but `_count`); NULL equals NULL and NaN
    equals NaN here, as in SQL's GROUP BY.
    """
    columns = [name for name in table.column_names if name != COUNT] if by is None else list(by)
    # Whether a column may be NULL is a matter of its schema, not of its rows.
    table = table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))
    if table.num_rows == 0:
        return table.select([*columns, COUNT])
    if not columns:
        total = pc.sum(table[COUNT]).as_py()
        kept = [total] if total else []
        return pa.table({COUNT: pa.array(kept, pa.int64())})
    grouped = table.group_by(columns, use_threads=False).aggregate([(COUNT, "sum")])
    grouped = grouped.rename_columns([*columns, COUNT])
    return grouped.filter(pc.not_equal(grouped[COUNT], 0))


@dataclass(frozen=True, eq=False)
class Delta:
    """An immutable counted relation in normal form.

    >>> d = Delta.of({"a": pa.int64()}, [((1,), 2), ((1,), -1), ((7,), 1), ((7,), -1)])
    >>> d.to_dict()
    {(1,): 1}
    >>> d.minus(d).is_empty
    True
    """

    rows: pa.Table

    def __init__(self, rows: pa.Table) -> None:
        object.__setattr__(self, "rows", consolidate(rows))

    @classmethod
    def of(cls, columns: Mapping[str, pa.DataType], rows: Iterable[tuple[Sequence[Any], int]]) -> Delta:
        """A delta from Python rows with counts; for tests and small inputs."""
        pairs = list(rows)
        arrays = [pa.array([row[i] for row, _ in pairs], type_) for i, type_ in enumerate(columns.values())]
        arrays.append(pa.array([count for _, count in pairs], pa.int64()))
        return cls(pa.table(arrays, names=[*columns, COUNT]))

    @classmethod
    def of_bag(cls, table: pa.Table, sign: int = 1) -> Delta:
        """The delta that adds (or, with sign -1, removes) every row of a plain table once."""
        return cls(table.append_column(COUNT, pa.repeat(pa.scalar(sign, pa.int64()), table.num_rows)))

    @property
    def is_empty(self) -> bool:
        return bool(self.rows.num_rows == 0)

    @property
    def columns(self) -> list[str]:
        return [name for name in self.rows.column_names if name != COUNT]

    def plus(self, other: Delta) -> Delta:
        return Delta(pa.concat_tables([self.rows, other.rows.select(self.rows.column_names)]))

    def minus(self, other: Delta) -> Delta:
        return self.plus(other.negate())

    def negate(self) -> Delta:
        index = self.rows.column_names.index(COUNT)
        return Delta(self.rows.set_column(index, COUNT, pc.negate(self.rows[COUNT])))

    def to_dict(self) -> dict[tuple[Any, ...], int]:
        """{row: count}, for tests and messages; not for hot paths."""
        counts = self.rows[COUNT].to_pylist()
        columns = [self.rows[name].to_pylist() for name in self.columns]
        keys = zip(*columns, strict=True) if columns else [()] * len(counts)
        return dict(zip(keys, counts, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Delta) and self.columns == other.columns and self.minus(other).is_empty

    def __len__(self) -> int:
        return int(self.rows.num_rows)
