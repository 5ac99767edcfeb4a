"""Hand-made base tables, small enough to recompute after every transaction."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lab.bench.dataset import Dataset
from lab.bench.streams import Transaction
from lab.bench.workload import INTEGER, TABLES, Row


def tiny_base() -> dict[str, list[Row]]:
    """Every base table: 8 customers, 4 suppliers, 3 nations, 2 regions, 40 orders with up to 3 lines."""
    orders: list[Row] = [(key, 1 + key % 8, f"1995-01-{1 + key % 28:02d}") for key in range(1, 41)]
    return {
        "customer": [(key, f"Customer#{key}", key % 3) for key in range(1, 9)],
        "orders": orders,
        "lineitem": [
            (int(order[0]), line, 1 + (int(order[0]) + line) % 4, 10 * line, 1000 + line)
            for order in orders
            for line in range(1, 2 + int(order[0]) % 3)
        ],
        "supplier": [(key, f"Supplier#{key}", key % 3) for key in range(1, 5)],
        "nation": [(key, f"NATION {key}", key % 2) for key in range(3)],
        "region": [(key, f"REGION {key}") for key in range(2)],
    }


def tiny_dataset(directory: Path) -> Dataset:
    """The same tables as a dataset on disk, without streams."""
    dataset = Dataset("tiny", directory)
    dataset.base("region").parent.mkdir(parents=True)
    for name, rows in tiny_base().items():
        pq.write_table(arrow_table(name, rows), dataset.base(name))
    return dataset


def arrow_table(name: str, rows: list[Row]) -> pa.Table:
    """Rows of a base table as Arrow."""
    columns = zip(*rows, strict=True)
    types = [pa.int64() if kind == INTEGER else pa.string() for _, kind in TABLES[name].columns]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=list(TABLES[name].column_names))


def apply(tables: dict[str, set[Row]], transaction: Transaction) -> None:
    """Change sets of rows as the transaction says."""
    for op in transaction.operations:
        if op.sign == "-":
            tables[op.table].remove(op.row)
        else:
            tables[op.table].add(op.row)
