"""Fetching: joins, key values and predicates mean the same in every source."""

from __future__ import annotations

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import case, require
from adapters.conformance.operations import Insert, Row, Transaction
from adapters.conformance.queries import select, table
from algebra.expressions import Call, ColumnRef, Expression, Literal, Operator

CUSTOMER = table("customer", {"id": pa.int64(), "name": pa.string(), "city": pa.string()}, key=["id"])
ORDERS = table("orders", {"id": pa.int64(), "cust": pa.int64(), "day": pa.int64()}, key=["id"])
LINE = table("line", {"ord": pa.int64(), "item": pa.string(), "qty": pa.int64()})
PERSON = table("person", {"id": pa.int64(), "boss": pa.int64(), "name": pa.string()}, key=["id"])

CUSTOMERS: tuple[Row, ...] = (
    (1, "Ada", "Rome"),
    (2, "ada", None),
    (3, None, "rome"),
    (4, "", "Rome"),
    (5, "Bo", "Oslo"),
)
ORDER_ROWS: tuple[Row, ...] = ((10, 1, 7), (11, 1, 8), (12, 2, 7), (13, None, 7), (14, 99, 7), (15, 4, None))
LINES: tuple[Row, ...] = (
    (10, "pen", 1), (10, "pen", 1), (10, "ink", 2), (11, "pen", 3), (12, None, 4), (None, "pen", 5),
    (13, "ink", 6), (77, "pen", 7), (15, "Pen", None),
)  # fmt: skip
PEOPLE: tuple[Row, ...] = (
    (1, None, "root"),
    (2, 1, "a"),
    (3, 1, "b"),
    (4, 2, "c"),
    (5, 5, "own boss"),
    (6, 99, "lost"),
)

MANY = 20_000


def _shop(bench: Bench) -> None:
    bench.start(CUSTOMER, ORDERS, LINE)
    bench.write(
        Transaction((Insert("customer", CUSTOMERS), Insert("orders", ORDER_ROWS), Insert("line", LINES))),
    )


_ALL = [("c", "id"), ("c", "name"), ("c", "city"), ("o", "id"), ("o", "day"), ("l", "item"), ("l", "qty")]
_JOINS = [(("c", "id"), ("o", "cust")), (("o", "id"), ("l", "ord"))]
_SHOP = {"c": "customer", "o": "orders", "l": "line"}


@case
def joins_of_several_relations(bench: Bench) -> None:
    """A join has exactly the matching combinations, each as often as its rows are there."""
    _shop(bench)
    bench.require_answer(select(bench.catalog, _SHOP, _ALL, _JOINS), what="join of three relations")
    bench.require_answer(
        select(bench.catalog, {"o": "orders", "l": "line"}, [("l", "item"), ("o", "day")], [_JOINS[1]]),
        what="join of two relations that shows no key",
    )


@case
def nulls_never_join(bench: Bench) -> None:
    """NULL on both sides of a join is no match."""
    _shop(bench)
    query = select(
        bench.catalog,
        {"o": "orders", "p": "orders"},
        [("o", "id"), ("p", "id")],
        [(("o", "cust"), ("p", "cust"))],
    )
    found = bench.require_answer(query, what="self-join on a column with NULL")
    require((13, 13) not in found, "a row with NULL in its join column joins itself")


@case
def self_joins(bench: Bench) -> None:
    """A relation may occur several times, each occurrence on its own."""
    bench.start(PERSON)
    bench.write(Transaction((Insert("person", PEOPLE),)))
    query = select(
        bench.catalog,
        {"p": "person", "b": "person"},
        [("p", "id"), ("p", "name"), ("b", "name")],
        [(("p", "boss"), ("b", "id"))],
    )
    bench.require_answer(query, what="self-join")
    bench.require_answer(query, (["o2"], [("root",), ("a",)]), "self-join by keys of the second occurrence")
    bench.require_answer(query, (["o0"], [(4,), (5,)]), "self-join by keys of the first occurrence")


@case
def several_join_conditions(bench: Bench) -> None:
    """All conditions between two occurrences hold at once, also those around a cycle."""
    _shop(bench)
    query = select(
        bench.catalog,
        {"o": "orders", "p": "orders"},
        [("o", "id"), ("p", "id")],
        [(("o", "cust"), ("p", "cust")), (("o", "day"), ("p", "day"))],
    )
    bench.require_answer(query, what="join on two columns")
    cycle = select(
        bench.catalog,
        {"c": "customer", "o": "orders", "p": "orders"},
        [("c", "id"), ("o", "id"), ("p", "id")],
        [(("c", "id"), ("o", "cust")), (("o", "day"), ("p", "day")), (("p", "cust"), ("c", "id"))],
    )
    bench.require_answer(cycle, what="join around a cycle")


@case
def keys_select_rows(bench: Bench) -> None:
    """With keys, exactly the rows that equal one of them come; a duplicate comes as often as it is there."""
    _shop(bench)
    lines = select(bench.catalog, {"l": "line"}, [("l", "ord"), ("l", "item"), ("l", "qty")])
    bench.require_answer(lines, (["o0"], [(10,), (12,), (5,)]), "one relation by keys")
    joined = select(bench.catalog, _SHOP, _ALL, _JOINS)
    bench.require_answer(joined, (["o0"], [(1,), (4,)]), "join by keys of its first relation")
    bench.require_answer(joined, (["o5"], [("pen",)]), "join by keys of its last relation")


@case
def null_never_equals_a_key(bench: Bench) -> None:
    """Rows with NULL in a key column are never selected, whatever the other key columns hold."""
    _shop(bench)
    query = select(bench.catalog, {"o": "orders"}, [("o", "id"), ("o", "cust"), ("o", "day")])
    bench.require_answer(query, (["o1"], [(1,), (99,)]), "keys on a column with NULL")
    bench.require_answer(query, (["o1", "o2"], [(4, 7), (1, 7)]), "composite keys on columns with NULL")
    lines = select(bench.catalog, {"l": "line"}, [("l", "ord"), ("l", "item")])
    bench.require_answer(lines, (["o1"], [("pen",), ("",)]), "text keys on a column with NULL")
    # The contract promises keys without NULL; a source that is given one anyway must not match it.
    found = bench.require_answer(query, (["o1"], [(None,), (1,)]), "keys that hold a NULL")
    require(all(row[1] is not None for row in found), "a NULL key matches a NULL value")


@case
def composite_keys(bench: Bench) -> None:
    """Several key columns match together: pairs, not every combination; also across relations."""
    _shop(bench)
    lines = select(bench.catalog, {"l": "line"}, [("l", "ord"), ("l", "item"), ("l", "qty")])
    bench.require_answer(lines, (["o0", "o1"], [(10, "ink"), (11, "pen"), (12, "x")]), "composite keys")
    bench.require_answer(lines, (["o1", "o0"], [("ink", 10), ("pen", 11)]), "composite keys in another order")
    joined = select(bench.catalog, _SHOP, _ALL, _JOINS)
    bench.require_answer(joined, (["o1", "o5"], [("Ada", "ink"), ("Bo", "pen")]), "keys across relations")


@case
def no_keys_no_rows(bench: Bench) -> None:
    """An empty set of keys, and keys that match nothing, select nothing, with the right columns."""
    _shop(bench)
    query = select(bench.catalog, {"c": "customer"}, [("c", "id"), ("c", "name")])
    bench.require_answer(query, (["o0"], []), "an empty set of keys")
    bench.require_answer(query, (["o0"], [(77,), (78,)]), "keys that match nothing")
    bench.require_answer(query, (["o0", "o1"], []), "an empty set of composite keys")


@case
def many_keys(bench: Bench) -> None:
    """Twenty thousand keys work as two do."""
    bench.start(ORDERS)
    bench.write(Transaction((Insert("orders", tuple((i, i % 1000, 7) for i in range(0, MANY, 8))),)))
    query = select(bench.catalog, {"o": "orders"}, [("o", "id"), ("o", "cust")])
    bench.require_answer(query, (["o0"], [(i,) for i in range(4, 4 + MANY)]), f"{MANY} keys")
    pairs = [(i, i % 1000 if i % 3 else -1) for i in range(MANY)]
    bench.require_answer(query, (["o0", "o1"], pairs), f"{MANY} composite keys")


@case
def many_rows(bench: Bench) -> None:
    """A relation of tens of thousands of rows comes whole."""
    bench.start(LINE)
    rows = tuple((i, f"item {i % 7}", i % 3) for i in range(MANY))
    bench.write(Transaction((Insert("line", rows),)))
    query = select(bench.catalog, {"l": "line"}, [("l", "ord"), ("l", "item"), ("l", "qty")])
    bench.require_answer(query, what=f"{MANY} rows")
    bench.require_answer(query, (["o1"], [("item 3",)]), f"a seventh of {MANY} rows by one key")


@case
def projections(bench: Bench) -> None:
    """Columns come in the order asked for, twice if asked twice, and rows that become equal all stay."""
    _shop(bench)
    line = {"l": "line"}
    bench.require_answer(
        select(bench.catalog, line, [("l", "qty"), ("l", "ord")]), what="columns in another order"
    )
    bench.require_answer(select(bench.catalog, line, [("l", "item")]), what="one column")
    bench.require_answer(select(bench.catalog, line, [("l", "qty"), ("l", "qty")]), what="one column twice")


def _predicates() -> dict[str, Expression]:
    name, city, qty = ColumnRef("c", "name"), ColumnRef("c", "city"), ColumnRef("l", "qty")

    def text(value: str | None) -> Literal:
        return Literal(value, pa.string())

    def number(value: int | None) -> Literal:
        return Literal(value, pa.int64())

    def call(operator: Operator, *arguments: Expression) -> Call:
        return Call(operator, arguments)

    equal = call(Operator.EQ, name, text("Ada"))
    large = call(Operator.GT, qty, number(1))
    return {
        "name = 'Ada'": equal,
        "name <> 'Ada'": call(Operator.NE, name, text("Ada")),
        "name > 'Zz'": call(Operator.GT, name, text("Zz")),
        "city = NULL": call(Operator.EQ, city, text(None)),
        "city IS NULL": call(Operator.IS_NULL, city),
        "NOT city IS NULL": call(Operator.NOT, call(Operator.IS_NULL, city)),
        "NOT name = 'Ada'": call(Operator.NOT, equal),
        "name = 'Ada' OR qty > 1": call(Operator.OR, equal, large),
        "name = 'Ada' AND qty > 1": call(Operator.AND, equal, large),
        "NOT (name = 'Ada' AND qty > 1)": call(Operator.NOT, call(Operator.AND, equal, large)),
        "qty <= 2": call(Operator.LE, qty, number(2)),
        "qty >= 2": call(Operator.GE, qty, number(2)),
        "qty < 2": call(Operator.LT, qty, number(2)),
        "qty IN (1, 3, 8)": call(Operator.IN, qty, number(1), number(3), number(8)),
        "NOT qty IN (1, NULL)": call(Operator.NOT, call(Operator.IN, qty, number(1), number(None))),
        "name IN ('', 'ada')": call(Operator.IN, name, text(""), text("ada")),
    }


@case
def predicates_never_lose_rows(bench: Bench) -> None:
    """Whether a source applies predicates or not, what is left after applying them is right."""
    _shop(bench)
    for text, predicate in _predicates().items():
        query = select(bench.catalog, _SHOP, _ALL, _JOINS, [predicate])
        bench.require_answer(query, what=f"WHERE {text}")
        bench.require_answer(query, (["o0"], [(1,), (2,), (4,)]), f"WHERE {text}, with keys")


@case
def fetches_do_not_disturb_each_other(bench: Bench) -> None:
    """Many fetches in one snapshot, in any order, give the same answers."""
    _shop(bench)
    query = select(bench.catalog, _SHOP, _ALL, _JOINS)
    keyed = (["o0"], [(1,)])
    with bench.reading() as reading:
        first, first_keyed = reading.rows(query), reading.rows(query, keyed)
        reading.tables()
        bench.require_same("the same keyed fetch again", first_keyed, reading.rows(query, keyed))
        bench.require_same("the same fetch again", first, reading.rows(query))


CASES = (
    joins_of_several_relations,
    nulls_never_join,
    self_joins,
    several_join_conditions,
    keys_select_rows,
    null_never_equals_a_key,
    composite_keys,
    no_keys_no_rows,
    many_keys,
    many_rows,
    projections,
    predicates_never_lose_rows,
    fetches_do_not_disturb_each_other,
)
