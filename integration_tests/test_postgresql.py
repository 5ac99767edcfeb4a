"""A view over two PostgreSQL databases, one followed through its log, one by triggers, under writes."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from adapters.postgresql.tests.server import postgres_server  # noqa: F401
from adapters.registry import create
from adapters.servers.postgresql import PostgresServer
from adapters.spi import SourceConfig
from algebra.arrow_ipc import from_ipc
from integration_tests.client import Bag, Client
from mediator.config import MediatorConfig
from mediator.server import MediatorServer
from wrapper.server import WrapperServer

VIEW = (
    "SELECT c.name, o.id, l.item FROM crm.customer c JOIN shop.orders o ON o.cust = c.id"
    " JOIN shop.line l ON l.ord = o.id"
)
CAPTURES = {"crm": "trigger", "shop": "log"}
TABLES = {
    "crm": (
        "CREATE TABLE customer (id int PRIMARY KEY, name text)",
        "INSERT INTO customer VALUES (0, 'first')",
    ),
    "shop": (
        "CREATE TABLE orders (id int PRIMARY KEY, cust int)",
        "CREATE TABLE line (ord int, item text)",
        "INSERT INTO orders VALUES (0, 0)",
        "INSERT INTO line VALUES (0, 'first')",
    ),
}
TRANSACTIONS = 25


class Running:
    """Two databases with their wrappers, and a mediator."""

    def __init__(self, stack: ExitStack, server: PostgresServer, directory: Path) -> None:
        addresses = {}
        self.urls = {}
        for source, statements in TABLES.items():
            database = server.create_database()
            stack.callback(server.drop_database, database)
            self.urls[source] = server.url(database)
            self.write(source, *statements)
            options = {"wal_limit_mb": 64} if source == "shop" else {}
            config = SourceConfig(source, "postgresql", self.urls[source], None, CAPTURES[source], options)
            wrapper = WrapperServer(create(config), "127.0.0.1:0")
            addresses[source] = wrapper.start()
            stack.callback(wrapper.stop, 0)
        server_ = MediatorServer(
            MediatorConfig("127.0.0.1:0", str(directory / "warehouse"), "duckdb", addresses)
        )
        self.client = Client(server_.start())
        stack.callback(lambda: server_.stop(0))

    def write(self, source: str, *statements: str) -> None:
        """One transaction."""
        with psycopg.connect(self.urls[source]) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def expected(self) -> Bag:
        """The view, worked out from the tables."""
        rows = {}
        for source, tables in {"crm": ("customer",), "shop": ("orders", "line")}.items():
            with psycopg.connect(self.urls[source]) as connection:
                for table in tables:
                    rows[table] = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
        names: dict[int, str] = dict(rows["customer"])
        owners = {id_: names[cust] for id_, cust in rows["orders"] if cust in names}
        return Counter((owners[order], order, item) for order, item in rows["line"] if order in owners)


@pytest.fixture
def running(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Running]:  # noqa: F811
    with ExitStack() as stack:
        yield Running(stack, postgres_server, tmp_path)


def _statements(source: str, chance: random.Random) -> list[str]:
    number = chance.randrange(8)
    if source == "crm":
        upsert = f"INSERT INTO customer VALUES ({number}, 'n{chance.randrange(99)}')"
        return [chance.choice((f"{upsert} ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name",
                               f"DELETE FROM customer WHERE id = {number}"))]  # fmt: skip
    return [
        f"INSERT INTO orders VALUES ({number}, {chance.randrange(8)})"
        " ON CONFLICT (id) DO UPDATE SET cust = EXCLUDED.cust",
        f"INSERT INTO line VALUES ({number}, 'i{chance.randrange(3)}')",
        chance.choice((f"DELETE FROM line WHERE ord = {chance.randrange(8)}", "SELECT 1")),
    ]


def test_a_view_follows_both_captures(running: Running) -> None:
    client = running.client
    client.create_view("v", VIEW)

    def writes(source: str) -> None:
        chance = random.Random(source)
        for _ in range(TRANSACTIONS):
            running.write(source, *_statements(source, chance))

    writers = [threading.Thread(target=writes, args=(source,)) for source in CAPTURES]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    running.write("shop", "TRUNCATE line")
    running.write("shop", "INSERT INTO orders VALUES (100, 100)", "INSERT INTO line VALUES (100, 'last')")
    running.write("crm", "INSERT INTO customer VALUES (100, 'the last')")
    expected = running.expected()
    assert ("the last", 100, "last") in expected
    end = time.monotonic() + 120
    while client.bag("v") != expected:
        assert time.monotonic() < end, f"{client.bag('v')} is not {expected}"
        time.sleep(0.05)
    assert from_ipc(client.verify("v").arrow).num_rows == 0
    # One version per transaction that changed a relation of the view.
    assert client.view("v").version >= TRANSACTIONS
