"""Creates shop.db (SQLite) and crm.duckdb (DuckDB) beside this file, with a few rows each."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import duckdb

HERE = Path(__file__).resolve().parent

SHOP = """
PRAGMA journal_mode = WAL;  -- lets the wrapper tell every single transaction from the next
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, status TEXT NOT NULL);
CREATE TABLE lineitem (id INTEGER PRIMARY KEY, ord INTEGER NOT NULL, product TEXT, qty INTEGER);
INSERT INTO orders VALUES (1, 1, 'open'), (2, 2, 'open'), (3, 1, 'paid');
INSERT INTO lineitem VALUES (1, 1, 'lamp', 2), (2, 1, 'desk', 1), (3, 2, 'rug', 4), (4, 3, 'lamp', 1);
"""

CRM = """
CREATE TABLE customer (id BIGINT PRIMARY KEY, name VARCHAR NOT NULL, city VARCHAR);
INSERT INTO customer VALUES (1, 'Ada', 'Ghent'), (2, 'Ben', 'Porto');
"""


def main() -> None:
    """Create both files; refuse to overwrite them."""
    for name in ("shop.db", "crm.duckdb"):
        if (HERE / name).exists():
            sys.exit(f"error: {HERE / name} is there already; remove it to start again")
    with closing(sqlite3.connect(HERE / "shop.db")) as shop:
        shop.executescript(SHOP)
    with duckdb.connect(str(HERE / "crm.duckdb")) as crm:
        crm.execute(CRM)
    print("created shop.db and crm.duckdb")


if __name__ == "__main__":
    main()
