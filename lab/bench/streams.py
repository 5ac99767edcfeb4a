"""Seeded transaction streams: the same seed and base tables give the same bytes everywhere.

One stream is JSON lines `{"tx", "source", "kind", "ops": [[sign, table, row], ...], "view_rows"}`. Every
transaction touches one source: 60 % insert an order with 1-4 lines, 15 % delete an order with its lines,
15 % update a customer, 10 % rename a supplier. A stream of n transactions is the beginning of every
longer one. `view_rows` predicts the view rows that the transaction deletes and inserts when the
transactions happen in stream order.

The order of the random draws is part of the format: other systems run the same streams.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from lab.bench.workload import Row

Sign = Literal["+", "-"]

KIND_WEIGHTS: dict[str, float] = {
    "insert_order": 0.60,
    "delete_order": 0.15,
    "update_customer": 0.15,
    "update_supplier": 0.10,
}

MAX_LINES = 4


@dataclass(frozen=True)
class Operation:
    """One row that a transaction inserts (`+`) or deletes (`-`); an update is a `-` and then a `+`."""

    sign: Sign
    table: str
    row: Row


@dataclass(frozen=True)
class Transaction:
    """One transaction of one source; numbers count from 1 over the whole stream."""

    number: int
    source: str
    kind: str
    operations: tuple[Operation, ...]
    view_rows: int = 0

    def to_json(self) -> str:
        """The transaction as one line of a stream file, without the newline."""
        fields = {
            "tx": self.number,
            "source": self.source.upper(),
            "kind": self.kind,
            "ops": [[op.sign, op.table, op.row] for op in self.operations],
            "view_rows": self.view_rows,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Transaction:
        """The transaction that a line of a stream file holds."""
        fields = json.loads(line)
        return cls(
            number=fields["tx"],
            source=fields["source"].lower(),
            kind=fields["kind"],
            operations=tuple(Operation(sign, table, tuple(row)) for sign, table, row in fields["ops"]),
            view_rows=fields.get("view_rows", 0),
        )


class BaseState:
    """The base tables as the generator sees them; each call makes one transaction's operations."""

    def __init__(self, base: Mapping[str, Sequence[Row]]) -> None:
        self._customers = {row[0]: row for row in base["customer"]}
        self._suppliers = {row[0]: row for row in base["supplier"]}
        self._orders = {row[0]: row for row in base["orders"]}
        self._lines: dict[object, list[Row]] = {}
        for line in base["lineitem"]:
            self._lines.setdefault(line[0], []).append(line)
        self._customer_keys = list(self._customers)
        self._supplier_keys = list(self._suppliers)
        self._order_keys = list(self._orders)
        self._next_order = 1 + max(int(key) for key in self._order_keys)
        self._names_given = 0

    def insert_order(self, rng: random.Random) -> list[Operation]:
        """A new order of some customer, with its lines."""
        key = self._next_order
        self._next_order += 1
        year, month, day = rng.randint(1992, 1998), rng.randint(1, 12), rng.randint(1, 28)
        order: Row = (key, rng.choice(self._customer_keys), f"{year}-{month:02d}-{day:02d}")
        lines: list[Row] = []
        for number in range(1, 1 + rng.randint(1, MAX_LINES)):
            supplier = rng.choice(self._supplier_keys)
            lines.append((key, number, supplier, rng.randint(1, 50), rng.randint(90_000, 10_000_000)))
        self._orders[key] = order
        self._lines[key] = lines
        self._order_keys.append(key)
        return [Operation("+", "orders", order), *(Operation("+", "lineitem", line) for line in lines)]

    def delete_order(self, rng: random.Random) -> list[Operation]:
        """Some order goes, lines first."""
        index = rng.randrange(len(self._order_keys))
        key = self._order_keys[index]
        self._order_keys[index] = self._order_keys[-1]
        self._order_keys.pop()
        lines = self._lines.pop(key)
        return [
            *(Operation("-", "lineitem", line) for line in lines),
            Operation("-", "orders", self._orders.pop(key)),
        ]

    def update_customer(self, rng: random.Random) -> list[Operation]:
        """Some customer gets a new name and a new nation."""
        key = rng.choice(self._customer_keys)
        old = self._customers[key]
        new: Row = (key, self._new_name("Customer", int(key)), rng.randrange(25))
        self._customers[key] = new
        return [Operation("-", "customer", old), Operation("+", "customer", new)]

    def update_supplier(self, rng: random.Random) -> list[Operation]:
        """Some supplier gets a new name."""
        key = rng.choice(self._supplier_keys)
        old = self._suppliers[key]
        new: Row = (key, self._new_name("Supplier", int(key)), old[2])
        self._suppliers[key] = new
        return [Operation("-", "supplier", old), Operation("+", "supplier", new)]

    def _new_name(self, what: str, key: int) -> str:
        self._names_given += 1
        return f"{what}#{key:09d}v{self._names_given}"


class ViewRowCounter:
    """How many view rows each transaction deletes and inserts, told in stream order."""

    def __init__(self, base: Mapping[str, Sequence[Row]]) -> None:
        self._customer_of = {row[0]: row[1] for row in base["orders"]}
        self._lines_of_customer: Counter[object] = Counter()
        self._lines_of_supplier: Counter[object] = Counter()
        for line in base["lineitem"]:
            self._lines_of_customer[self._customer_of[line[0]]] += 1
            self._lines_of_supplier[line[2]] += 1

    def count(self, operations: Iterable[Operation]) -> int:
        """The view rows changed by one transaction; call it for every transaction, in order."""
        operations = list(operations)
        for op in operations:
            if op.table == "orders" and op.sign == "+":
                self._customer_of[op.row[0]] = op.row[1]
        rows = 0
        for op in operations:
            if op.table == "lineitem":
                change = 1 if op.sign == "+" else -1
                self._lines_of_customer[self._customer_of[op.row[0]]] += change
                self._lines_of_supplier[op.row[2]] += change
                rows += 1
            elif op.table == "customer":
                rows += self._lines_of_customer[op.row[0]]
            elif op.table == "supplier":
                rows += self._lines_of_supplier[op.row[0]]
        return rows


def transactions(base: Mapping[str, Sequence[Row]], count: int, seed: int) -> Iterator[Transaction]:
    """`count` transactions on top of the base tables."""
    rng = random.Random(seed)
    state = BaseState(base)
    counter = ViewRowCounter(base)
    kinds = {
        "insert_order": ("b", state.insert_order),
        "delete_order": ("b", state.delete_order),
        "update_customer": ("a", state.update_customer),
        "update_supplier": ("c", state.update_supplier),
    }
    names, weights = tuple(KIND_WEIGHTS), tuple(KIND_WEIGHTS.values())
    for number in range(1, count + 1):
        kind = rng.choices(names, weights)[0]
        source, make = kinds[kind]
        made = Transaction(number, source, kind, tuple(make(rng)))
        yield replace(made, view_rows=counter.count(made.operations))


def write_stream(path: Path, stream: Iterable[Transaction]) -> None:
    """The stream as a file, complete or not there at all."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as out:
        for transaction in stream:
            out.write(transaction.to_json() + "\n")
    partial.replace(path)


def read_stream(path: Path, count: int | None = None) -> Iterator[Transaction]:
    """The file's transactions, in order; only the first `count` if given."""
    with path.open(encoding="utf-8") as lines:
        yield from map(Transaction.from_json, islice(lines, count))
