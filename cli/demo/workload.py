"""The seeded stream of transactions of each source; pure, so that a seed gives the same stream anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from cli.demo.layout import TICKET, Row, Source
from cli.demo.model import Change, Tables

CUSTOMERS, SEGMENTS, PRODUCTS, SUPPLIERS, ORDERS = 120, 8, 100, 20, 250
_GROWTH = 1.2
"""A table that has grown by this factor is shrunk rather than grown, so that the demo's cost stays level."""

_SEGMENT_NAMES = ("building", "machinery", "household", "furniture", "travel", "garden", "music", "books")
_FIRST = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jun", "Kai", "Lea", "Mia", "Noa")
_LAST = ("Adler", "Brook", "Costa", "Duran", "Engel", "Fonda", "Gomez", "Huber", "Ito", "Jansen", "Kowal")
_GOODS = ("lamp", "chair", "desk", "bolt", "saw", "vase", "tent", "drum", "rug", "pan", "clock", "kite")
_ADJECTIVES = ("red", "oak", "steel", "small", "bright", "quiet", "round", "blue", "folding", "old")
_COMPANIES = ("Nordwind", "Acme", "Sol", "Vento", "Kumo", "Terra", "Luna", "Orbis", "Polar", "Delta")
_STATUSES = ("open", "paid", "shipped", "cancelled")


def initial(source: Source, random: Random) -> list[Change]:
    """The rows that the source starts with, the ticket rows among them."""
    rows: dict[str, list[Row]]
    if source.name == "shop":
        rows = _shop(random)
    elif source.name == "crm":
        rows = _crm(random)
    else:
        rows = _supply(random)
    return [Change(table, None, row) for table, values in rows.items() for row in values]


def _shop(random: Random) -> dict[str, list[Row]]:
    orders: list[Row] = [(TICKET, TICKET, "ticket", 0)]
    lines: list[Row] = [(TICKET, TICKET, TICKET, 1)]
    for order in range(1, ORDERS + 1):
        orders.append((order, random.randint(1, CUSTOMERS), random.choice(_STATUSES), 0))
        lines += [(len(lines) + at, order, *_line(random)) for at in range(random.randint(1, 5))]
    return {"orders": orders, "lineitem": lines}


def _crm(random: Random) -> dict[str, list[Row]]:
    customers = [(key, _person(random), random.randint(1, SEGMENTS), 0) for key in range(1, CUSTOMERS + 1)]
    segments = [(key, name) for key, name in enumerate(_SEGMENT_NAMES, start=1)]
    return {
        "customer": [(TICKET, "ticket", TICKET, 0), *customers],
        "segment": [(TICKET, "ticket"), *segments],
    }


def _supply(random: Random) -> dict[str, list[Row]]:
    products = [(key, _good(random), random.randint(1, SUPPLIERS), 0) for key in range(1, PRODUCTS + 1)]
    suppliers = [(key, _company(random)) for key in range(1, SUPPLIERS + 1)]
    return {
        "product": [(TICKET, "ticket", TICKET, 0), *products],
        "supplier": [(TICKET, "ticket"), *suppliers],
    }


class Workload:
    """Transactions for one source; the writer applies each to `tables` once it is committed."""

    def __init__(self, tables: Tables, random: Random) -> None:
        self.tables = tables
        self._random = random
        self._next_key = {name: max(rows) + 1 for name, rows in tables.rows.items()}

    def transaction(self, number: int) -> list[Change]:
        """The changes of the next transaction, which writes its number into the ticket and all it touches."""
        kinds = {"shop": self._shop_kinds, "crm": self._crm_kinds, "supply": self._supply_kinds}
        weights, actions = zip(*kinds[self.tables.source.name](), strict=True)
        action: Callable[[int], list[Change]] = self._random.choices(actions, weights)[0]
        table = self.tables.source.ticket_table
        ticket = self.tables[table][TICKET]
        return [*action(number), Change(table, ticket, (*ticket[:-1], number))]

    def _shop_kinds(self) -> Sequence[tuple[int, Callable[[int], list[Change]]]]:
        grown = len(self.tables["orders"]) > ORDERS * _GROWTH
        return (
            (2 if grown else 10, self._new_order),
            (10 if grown else 4, self._delete_order),
            (8, self._move_status),
            (5, self._change_lines),
            (3, self._replace_lines),
        )

    def _crm_kinds(self) -> Sequence[tuple[int, Callable[[int], list[Change]]]]:
        grown = len(self.tables["customer"]) > CUSTOMERS * _GROWTH
        return (
            (1 if grown else 4, self._new_customer),
            (4 if grown else 2, self._delete_customer),
            (8, self._rename_customer),
            (6, self._move_customers),
            (1, self._rename_segment),
        )

    def _supply_kinds(self) -> Sequence[tuple[int, Callable[[int], list[Change]]]]:
        grown = len(self.tables["product"]) > PRODUCTS * _GROWTH
        return (
            (1 if grown else 3, self._new_product),
            (3 if grown else 1, self._delete_product),
            (8, self._rename_products),
            (4, self._move_product),
            (2, self._rename_supplier),
        )

    def _new_order(self, number: int) -> list[Change]:
        order = self._key("orders")
        # A tenth of the customers does not exist yet, or any more: the order waits for one to appear.
        customer = self._random.randint(1, CUSTOMERS + CUSTOMERS // 10)
        lines = [
            (self._key("lineitem"), order, *_line(self._random)) for _ in range(self._random.randint(1, 5))
        ]
        return [
            Change("orders", None, (order, customer, "open", number)),
            *(Change("lineitem", None, line) for line in lines),
        ]

    def _delete_order(self, number: int) -> list[Change]:
        order = self._pick("orders")
        return [
            *(Change("lineitem", line, None) for line in self._lines(order[0])),
            Change("orders", order, None),
        ]

    def _move_status(self, number: int) -> list[Change]:
        order = self._pick("orders")
        return [Change("orders", order, (*order[:2], self._random.choice(_STATUSES), number))]

    def _change_lines(self, number: int) -> list[Change]:
        order = self._pick("orders")
        changes = [Change("orders", order, (*order[:3], number))]
        for line in self._lines(order[0]):
            changes.append(Change("lineitem", line, (*line[:3], line[3] + self._random.choice((-1, 1, 2)))))
        return changes

    def _replace_lines(self, number: int) -> list[Change]:
        order = self._pick("orders")
        gone = [Change("lineitem", line, None) for line in self._lines(order[0])]
        line = (self._key("lineitem"), order[0], *_line(self._random))
        # The same product twice with the same quantity: a row that the view holds two times.
        twin = (self._key("lineitem"), *line[1:])
        return [*gone, Change("lineitem", None, line), Change("lineitem", None, twin)]

    def _new_customer(self, number: int) -> list[Change]:
        segment = self._random.randint(1, SEGMENTS)
        row = (self._key("customer"), _person(self._random), segment, number)
        return [Change("customer", None, row)]

    def _delete_customer(self, number: int) -> list[Change]:
        return [Change("customer", self._pick("customer"), None)]

    def _rename_customer(self, number: int) -> list[Change]:
        row = self._pick("customer")
        return [Change("customer", row, (row[0], _person(self._random), row[2], number))]

    def _move_customers(self, number: int) -> list[Change]:
        rows = self._some("customer", 3)
        return [
            Change("customer", row, (*row[:2], self._random.randint(1, SEGMENTS), number)) for row in rows
        ]

    def _rename_segment(self, number: int) -> list[Change]:
        row = self._pick("segment")
        name = f"{self._random.choice(_SEGMENT_NAMES)} {number}"
        customer = self._pick("customer")
        return [
            Change("segment", row, (row[0], name)),
            Change("customer", customer, (*customer[:3], number)),
        ]

    def _new_product(self, number: int) -> list[Change]:
        row = (self._key("product"), _good(self._random), self._random.randint(1, SUPPLIERS), number)
        return [Change("product", None, row)]

    def _delete_product(self, number: int) -> list[Change]:
        return [Change("product", self._pick("product"), None)]

    def _rename_products(self, number: int) -> list[Change]:
        rows = self._some("product", 3)
        return [Change("product", row, (row[0], _good(self._random), row[2], number)) for row in rows]

    def _move_product(self, number: int) -> list[Change]:
        row = self._pick("product")
        return [Change("product", row, (*row[:2], self._random.randint(1, SUPPLIERS), number))]

    def _rename_supplier(self, number: int) -> list[Change]:
        row = self._pick("supplier")
        product = self._pick("product")
        return [
            Change("supplier", row, (row[0], f"{_company(self._random)} {number}")),
            Change("product", product, (*product[:3], number)),
        ]

    def _key(self, table: str) -> int:
        """A key that was never used; rolled back transactions use theirs up."""
        self._next_key[table] += 1
        return self._next_key[table] - 1

    def _pick(self, table: str) -> Row:
        return self._some(table, 1)[0]

    def _some(self, table: str, amount: int) -> list[Row]:
        keys = [key for key in self.tables[table] if key != TICKET]
        return [self.tables[table][key] for key in self._random.sample(keys, amount)]

    def _lines(self, order: int) -> list[Row]:
        return [line for line in self.tables["lineitem"].values() if line[1] == order]


def _line(random: Random) -> tuple[int, int]:
    return random.randint(1, PRODUCTS + PRODUCTS // 10), random.randint(1, 9)


def _person(random: Random) -> str:
    return f"{random.choice(_FIRST)} {random.choice(_LAST)}"


def _good(random: Random) -> str:
    return f"{random.choice(_ADJECTIVES)} {random.choice(_GOODS)}"


def _company(random: Random) -> str:
    return f"{random.choice(_COMPANIES)} {random.choice(('Ltd', 'SA', 'KG', 'Oy'))}"
