"""The conformance kit on the adapter, with the service in a process of its own."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from lockstep_inventory.adapter import TYPES, InventoryAdapter, schemas_of
from lockstep_inventory.client import Client

from adapters.conformance import (
    AddColumn,
    Delete,
    Disturbance,
    DropColumn,
    DropTable,
    Empty,
    Fill,
    Harness,
    Insert,
    LoseCapture,
    Mark,
    Overwrite,
    Quirks,
    Raise,
    RenameTable,
    RetypeColumn,
    RowOperation,
    SchemaChange,
    Update,
    Writer,
    conformance_tests,
    effective,
    keeps,
)
from adapters.conformance.operations import Operation
from adapters.spi import Adapter, SourceConfig
from algebra.schema import RelationSchema

TOKENS = {"reading": "reader", "keeping": "keeper", "owning": "owner"}
NAMES = {type_: name for name, type_ in TYPES.items()}


class ServiceProcess:
    """The service, started once for all cases; each case has an inventory of its own."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._numbers = itertools.count()
        self.port = 0
        self.start()
        atexit.register(self.stop)

    def start(self) -> None:
        tokens = ",".join(f"{token}={role}" for token, role in TOKENS.items())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inventory_service", self._directory.name, str(self.port)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env={**os.environ, "INVENTORY_TOKENS": tokens},
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())  # printed when it listens

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def new_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/inventory-{next(self._numbers)}"


@functools.cache
def service() -> ServiceProcess:
    return ServiceProcess()


def spec(table: RelationSchema, rows: Sequence[Any] = ()) -> dict[str, Any]:
    columns = {column.name: NAMES[column.type] for column in table.columns}
    return {"columns": columns, "key": list(table.key), "rows": list(rows)}


class InventoryWriter(Writer):
    """An application: collects a transaction, and posts it as a whole."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._operations: list[Operation] = []

    def begin(self) -> None:
        self._operations = []

    def execute(self, operation: Operation) -> None:
        self._operations.append(operation)

    def rollback(self) -> None:
        self._operations = []

    def close(self) -> None:
        self._operations = []

    def commit(self) -> None:
        bags: dict[str, Counter[str]] = {}
        for operation in effective(self._operations):
            assert not isinstance(operation, Mark), "this source takes no marks"
            bag = bags.setdefault(operation.relation, Counter())
            for count, row in self._effect(operation, bag):
                bag[json.dumps(row)] += count
        changes = {
            table: [[count, json.loads(text)] for text, count in bag.items() if count]
            for table, bag in bags.items()
        }
        changes = {table: rows for table, rows in changes.items() if rows}
        if changes:
            self._client.call("POST", "transactions", body=changes)

    def _effect(self, operation: RowOperation, bag: Counter[str]) -> list[tuple[int, Sequence[Any]]]:
        match operation:
            case Insert(_, rows):
                return [(1, row) for row in rows]
            case Fill():
                return [(1, row) for row in operation.insert.rows]
            case Delete(_, row):
                return [(-1, row)]
            case Update(_, old, new):
                return [(-1, old), (1, new)]
            case Overwrite(_, before, after):
                return [*([(-1, before)] if before else []), (1, after)]
            case Raise(relation, by):
                present = self._present(relation, bag)
                return [effect for n, v in present for effect in ((-1, [n, v]), (1, [n, v + by]))]
            case Empty(relation):
                return [(-1, row) for row in self._present(relation, bag)]
        raise TypeError(f"no {operation}")

    def _present(self, relation: str, bag: Counter[str]) -> list[Any]:
        rows = Counter(json.dumps(row) for row in read(self._client, relation))
        rows.update(bag)
        return [json.loads(text) for text, count in rows.items() if count]


def read(client: Client, table: str) -> list[Any]:
    rows: list[Any] = client.call(
        "POST", "tables", table, "query", body={"at": client.call("GET", "tables")["version"]}
    )
    return rows


class InventoryHarness(Harness):
    """How the kit makes an inventory and writes to it."""

    quirks = Quirks(
        unsupported={
            pa.binary(): "JSON has no bytes",
            pa.date32(): "JSON has no dates",
            pa.timestamp("us"): "JSON has no times",
            pa.timestamp("us", "UTC"): "JSON has no times",
            pa.decimal128(18, 4): "JSON has no decimals",
            pa.decimal128(38, 10): "JSON has no decimals",
        },
        workload=20,
        no_disconnect="every request has a connection of its own",
    )
    rights: ClassVar[tuple[str, ...]] = ("keeper", "reader")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._url = service().new_url()
        self._owner = self._client("owning")

    def create(self, tables: Sequence[RelationSchema]) -> None:
        self._owner.call("PUT", "tables", body={table.name: spec(table) for table in tables})

    def writer(self, number: int) -> Writer:
        return InventoryWriter(self._client("owning"))

    def adapter(self, relations: tuple[str, ...] | None = None) -> Adapter:
        return self._adapter("keeping", relations)

    def objects(self) -> frozenset[str]:
        tables = {f"table {name}" for name in self._owner.call("GET", "tables")["tables"]}
        return frozenset(tables | {f"feed {name}" for name in self._owner.call("GET", "feeds")})

    @contextmanager
    def restarting(self) -> Iterator[None]:
        service().stop()
        try:
            yield
        finally:
            service().start()

    def without_right(self, right: str) -> Adapter:
        return self._adapter({"keeper": "reading", "reader": "a token that nobody knows"}[right], None)

    def history_size(self) -> int:
        return int(self._owner.call("GET", "feeds", "lockstep-shop")["kept"])

    def alter(self, change: SchemaChange) -> None:
        old = schemas_of(self._owner.call("GET", "tables")["tables"])[change.relation]
        rows = read(self._owner, change.relation)
        names = [column.name for column in old.columns]
        match change:
            case AddColumn():
                rows = [[*row, None] for row in rows]
            case DropColumn(_, column):
                at = names.index(column)
                rows = [[*row[:at], *row[at + 1 :]] for row in rows]
            case RetypeColumn(_, column, _):
                at = names.index(column)
                rows = [[*row[:at], str(row[at]), *row[at + 1 :]] for row in rows]
            case RenameTable():
                pass
        new = change.applied(old)
        self._owner.call("PUT", "tables", body={change.relation: None} | {new.name: spec(new, rows)})

    def disturb(self, disturbance: Disturbance) -> None:
        table = disturbance.table
        if isinstance(disturbance, LoseCapture):
            self._client("keeping").call("DELETE", "feeds", "lockstep-shop")
            return
        made = None
        if not isinstance(disturbance, DropTable):
            there = table.name in self._owner.call("GET", "tables")["tables"]
            rows = read(self._owner, table.name) if there else []
            made = spec(table, [row for row in rows if keeps(disturbance, row)])
        self._owner.call("PUT", "tables", body={table.name: made})

    def _client(self, token: str) -> Client:
        return Client("shop", self._url, token, timeout=60.0)

    def _adapter(self, token: str, relations: tuple[str, ...] | None) -> Adapter:
        return InventoryAdapter(
            SourceConfig("shop", "inventory", self._url, relations, options={"token": token})
        )


TestInventory = conformance_tests(InventoryHarness)
