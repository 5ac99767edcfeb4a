"""What the demo is made of: three sources, their tables, and the view that joins all six.

**The ticket.** A check that does not trust Lockstep's capture must know which source transactions a view
version claims to show, without asking Lockstep. So each source has one row with key 0 in every table, and
every transaction of a writer writes its own number into that row's `revision`. The six rows with key 0 join
to exactly one view row, and that row carries the three numbers. A version thus names, in its own data, the
prefix of each source's transactions that it must equal; this holds for exact and for batched versions alike.
It also makes every pair of concurrent transactions collide, which is what compensation is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]

TICKET = 0
"""The key of the rows that carry the transaction numbers."""

VIEW = "order_book"

VIEW_SQL = """\
SELECT o.id AS ord, o.status AS status, l.qty AS qty,
       c.name AS customer, g.name AS segment,
       p.name AS product, s.name AS supplier,
       o.revision AS shop_tx, c.revision AS crm_tx, p.revision AS supply_tx
FROM shop.orders o
JOIN shop.lineitem l ON l.ord = o.id
JOIN crm.customer c ON c.id = o.customer
JOIN crm.segment g ON g.id = c.segment
JOIN supply.product p ON p.id = l.product
JOIN supply.supplier s ON s.id = p.supplier
WHERE o.status <> 'cancelled'
"""

COLUMNS = (
    "ord", "status", "qty", "customer", "segment", "product", "supplier", "shop_tx", "crm_tx", "supply_tx",
)  # fmt: skip
"""The view's columns; the last three are the ticket's numbers."""


@dataclass(frozen=True)
class Table:
    """One table: its columns with SQL types; the first column is the key."""

    name: str
    columns: Mapping[str, str]

    @property
    def ddl(self) -> str:
        (key, kind), *others = self.columns.items()
        rest = "".join(f", {name} {type_} NOT NULL" for name, type_ in others)
        return f"CREATE TABLE {self.name} ({key} {kind} PRIMARY KEY{rest})"


@dataclass(frozen=True)
class Source:
    """One database of the demo; `ticket_table` is the one whose row 0 counts the transactions."""

    name: str
    adapter: str
    file: str
    tables: tuple[Table, ...]
    ticket_table: str

    def table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)

    def path(self, folder: Path) -> Path:
        return folder / self.file

    def journal(self, folder: Path) -> Path:
        """Where its writer records what it committed."""
        return folder / f"{self.name}.journal"


def _table(name: str, /, **columns: str) -> Table:
    return Table(name, columns)


SHOP = Source(
    "shop",
    "sqlite",
    "shop.db",
    (
        _table("orders", id="INTEGER", customer="INTEGER", status="TEXT", revision="INTEGER"),
        _table("lineitem", id="INTEGER", ord="INTEGER", product="INTEGER", qty="INTEGER"),
    ),
    ticket_table="orders",
)
CRM = Source(
    "crm",
    "sqlite",
    "crm.db",
    (
        _table("customer", id="INTEGER", name="TEXT", segment="INTEGER", revision="INTEGER"),
        _table("segment", id="INTEGER", name="TEXT"),
    ),
    ticket_table="customer",
)
SUPPLY = Source(
    "supply",
    "duckdb",
    "supply.duckdb",
    (
        _table("product", id="BIGINT", name="VARCHAR", supplier="BIGINT", revision="BIGINT"),
        _table("supplier", id="BIGINT", name="VARCHAR"),
    ),
    ticket_table="product",
)
SOURCES: Mapping[str, Source] = {source.name: source for source in (SHOP, CRM, SUPPLY)}
