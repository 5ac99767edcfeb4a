"""The workload's schema: six projected TPC-H tables in three sources, and the view that joins them.

Only the columns the view reads are kept, plus `c_nationkey`, which transactions change and the view does
not show. Prices are whole cents and dates ISO text, so that every system holds exactly the same values.
"""

from __future__ import annotations

from dataclasses import dataclass

Value = int | str
Row = tuple[Value, ...]

INTEGER = "BIGINT"
TEXT = "VARCHAR"

SEED = 7
"""The streams' seed; figures of two systems compare only for the same one."""


@dataclass(frozen=True)
class Table:
    """One base table: its source, its columns as (name, type) pairs, its key, and further indexed columns."""

    source: str
    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    indexes: tuple[str, ...] = ()

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(name for name, _ in self.columns)

    def key_of(self, row: Row) -> Row:
        """The key's values in a row of this table; the key is always its first columns."""
        return row[: len(self.key)]


TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            "a",
            "customer",
            (("c_custkey", INTEGER), ("c_name", TEXT), ("c_nationkey", INTEGER)),
            key=("c_custkey",),
        ),
        Table(
            "b",
            "orders",
            (("o_orderkey", INTEGER), ("o_custkey", INTEGER), ("o_orderdate", TEXT)),
            key=("o_orderkey",),
            indexes=("o_custkey",),
        ),
        Table(
            "b",
            "lineitem",
            (
                ("l_orderkey", INTEGER),
                ("l_linenumber", INTEGER),
                ("l_suppkey", INTEGER),
                ("l_quantity", INTEGER),
                ("l_extendedprice", INTEGER),
            ),
            key=("l_orderkey", "l_linenumber"),
            indexes=("l_suppkey",),
        ),
        Table(
            "c",
            "supplier",
            (("s_suppkey", INTEGER), ("s_name", TEXT), ("s_nationkey", INTEGER)),
            key=("s_suppkey",),
            indexes=("s_nationkey",),
        ),
        Table(
            "c",
            "nation",
            (("n_nationkey", INTEGER), ("n_name", TEXT), ("n_regionkey", INTEGER)),
            key=("n_nationkey",),
            indexes=("n_regionkey",),
        ),
        Table("c", "region", (("r_regionkey", INTEGER), ("r_name", TEXT)), key=("r_regionkey",)),
    )
}

SOURCES: tuple[str, ...] = tuple(dict.fromkeys(table.source for table in TABLES.values()))

VIEW_NAME = "order_lines"

VIEW_COLUMNS: tuple[str, ...] = (
    "c_custkey",
    "c_name",
    "o_orderkey",
    "o_orderdate",
    "l_linenumber",
    "l_quantity",
    "l_extendedprice",
    "s_suppkey",
    "s_name",
    "n_name",
    "r_name",
)

VIEW_SQL = """\
SELECT cu.c_custkey, cu.c_name, o.o_orderkey, o.o_orderdate, l.l_linenumber, l.l_quantity,
       l.l_extendedprice, s.s_suppkey, s.s_name, n.n_name, r.r_name
FROM a.customer AS cu
JOIN b.orders AS o ON o.o_custkey = cu.c_custkey
JOIN b.lineitem AS l ON l.l_orderkey = o.o_orderkey
JOIN c.supplier AS s ON s.s_suppkey = l.l_suppkey
JOIN c.nation AS n ON n.n_nationkey = s.s_nationkey
JOIN c.region AS r ON r.r_regionkey = n.n_regionkey"""
"""The view, for Lockstep as it stands, and for DuckDB with one schema per source."""


def tables_of(source: str) -> tuple[Table, ...]:
    """The tables that one source holds."""
    return tuple(table for table in TABLES.values() if table.source == source)
