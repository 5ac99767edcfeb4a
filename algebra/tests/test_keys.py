"""Keys of nodes as columns of a view, and the set operations that the keyed algorithms are made of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from algebra.keys import ViewKeys, among, as_set, distinct, union, without, without_same
from algebra.schema import COUNT

KEYS = ViewKeys(((("k", "left_k"),), (("k", "right_k"), ("n", "right_n"))))


def table(**columns: list[Any]) -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def view(*rows: tuple[int, int, int]) -> pa.Table:
    """Rows of (left_k, right_k, right_n), once each."""
    names = ["left_k", "right_k", "right_n"]
    arrays = [pa.array([row[i] for row in rows], pa.int64()) for i in range(3)]
    return pa.table([*arrays, pa.array([1] * len(rows), pa.int64())], names=[*names, COUNT])


def rows(found: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.to_pylist()]


def test_all_keys_together_tell_rows_apart() -> None:
    assert KEYS.columns == ("left_k", "right_k", "right_n")


def test_key_delete_compares_the_whole_key_and_nothing_else() -> None:
    """Reference: Strobe paper, section 5.2, definition of key_delete."""
    stored = view((1, 1, 1), (1, 1, 2), (2, 1, 1), (2, 2, 1))
    deleted = table(k=[1, 1], n=[1, 1], other=["old", "new"], _count=[-1, -1])
    assert rows(KEYS.values(1, deleted)) == [(1, 1)]
    assert rows(KEYS.delete(stored, 1, deleted)) == [(1, 1, 2, 1), (2, 2, 1, 1)]
    assert rows(KEYS.delete(stored, 0, table(k=[2]))) == [(1, 1, 1, 1), (1, 1, 2, 1)]


@pytest.mark.parametrize("values", [table(a=[1]), table(a=pa.array([1], pa.int32()))], ids=["int64", "int32"])
def test_among_and_without_part_the_rows_in_their_order(values: pa.Table) -> None:
    found = table(a=[3, 1, None, 1, 2], b=["v", "w", "x", "y", "z"])
    assert rows(among(found, values)) == [(1, "w"), (1, "y")]
    assert rows(without(found, values)) == [(3, "v"), (None, "x"), (2, "z")]


def test_null_equals_nothing_as_a_key_and_itself_as_a_part_of_a_row() -> None:
    found = table(a=[1, None, None, 1], b=[1.5, 2.5, None, None])
    values = table(a=[None, 1], b=[2.5, None]).cast(found.schema)
    assert rows(without(found, values)) == rows(found)
    assert rows(without_same(found, values)) == [(1, 1.5), (None, None)]


def test_without_same_compares_only_the_columns_it_is_given() -> None:
    found = table(a=[1, None, 1], b=["x", "x", "y"])
    assert rows(without_same(found, pa.table({"a": pa.array([None], pa.int64())}))) == [(1, "x"), (1, "y")]
    assert rows(without_same(found, table(a=[1]).slice(1))) == rows(found)
    assert rows(without_same(found.slice(3), table(a=[1]))) == []


def test_a_set_holds_each_row_once_whatever_its_count() -> None:
    found = as_set(table(a=[1, None, 1, None], _count=[3, 1, 2, 1]))
    assert sorted(rows(found), key=str) == [(1, 1), (None, 1)]
    assert rows(as_set(table(a=[7], _count=[2]))) == [(7, 1)]


def test_shapes_are_kept() -> None:
    required = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    first = pa.table([[1, 1], ["x", "x"]], schema=required)
    other = pa.table({"b": ["y"], "a": [2]})
    assert distinct(first).schema == required
    assert union([first, other]).schema == required
    assert rows(union([first, other])) == [(1, "x"), (1, "x"), (2, "y")]
