"""Changes both databases, a transaction each, as any application would; Lockstep is not involved."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import duckdb

HERE = Path(__file__).resolve().parent


def main() -> None:
    """One transaction over two tables in the shop, one in the customer database."""
    with closing(sqlite3.connect(HERE / "shop.db", timeout=30)) as shop, shop:
        order = shop.execute("INSERT INTO orders (customer, status) VALUES (2, 'open')").lastrowid
        shop.execute("INSERT INTO lineitem (ord, product, qty) VALUES (?, 'kite', 3)", (order,))
        shop.execute("UPDATE lineitem SET qty = qty + 1 WHERE product = 'lamp'")
    print(f"shop: order {order} is new, and there is one more of each lamp")

    with _open_for_writing(HERE / "crm.duckdb") as crm:
        crm.execute("UPDATE customer SET name = name || '!' WHERE id = 2")
    print("crm: customer 2 has a new name")


def _open_for_writing(path: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB gives a file to one writing process; the wrapper's reads are short, so try again."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return duckdb.connect(str(path))
        except duckdb.IOException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    main()
