"""Which relations of a source are meant, and which columns it can show: one wording for every adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

import pyarrow as pa

from adapters.spi import TRANSACTION
from algebra.errors import ConfigurationError
from algebra.schema import COUNT, Column

Relation = TypeVar("Relation")


def chosen_relations(
    source: str, known: Mapping[str, Relation], names: Iterable[str] | None, *, none: str = "none"
) -> dict[str, Relation]:
    """The relations of these names, each once, or all for None; ConfigurationError lists what there is.

    >>> chosen_relations("shop", {"orders": 1, "lineitem": 2}, ["orders"])
    {'orders': 1}
    >>> chosen_relations("shop", {"orders": 1, "lineitem": 2}, ["order"])
    Traceback (most recent call last):
        ...
    algebra.errors.ConfigurationError: source 'shop' has no relation 'order'; it has: lineitem, orders
    """
    if names is None:
        return dict(known)
    chosen = {}
    for name in names:
        if name not in known:
            raise no_such_relation(source, name, known, none=none)
        chosen[name] = known[name]
    return chosen


def no_such_relation(
    source: str, name: str, known: Iterable[str], *, none: str = "none"
) -> ConfigurationError:
    """The error that lists what there is; `none` is said where there is nothing."""
    return ConfigurationError(
        f"source {source!r} has no relation {name!r}; it has: {', '.join(sorted(known)) or none}"
    )


class ShownType(Protocol):
    """How the values of a column are shown."""

    @property
    def arrow(self) -> pa.DataType: ...


class DeclaredColumn(Protocol):
    """A column of a table, with its type as the source declares it; `type` is None if it cannot be shown."""

    @property
    def name(self) -> str: ...

    @property
    def declared(self) -> str: ...

    @property
    def nullable(self) -> bool: ...

    @property
    def type(self) -> ShownType | None: ...


def shown_columns(
    source: str,
    relation: str,
    columns: Iterable[DeclaredColumn],
    *,
    is_supported: Callable[[pa.DataType], bool] = lambda _: True,
) -> tuple[Column, ...]:
    """The columns as a relation's schema has them; ConfigurationError names one that cannot be shown."""
    shown = []
    for column in columns:
        remedy = f"name it in option `exclude` as {relation}.{column.name}, or leave the relation out"
        if column.type is None or not is_supported(column.type.arrow):
            raise ConfigurationError(
                f"column {source}.{relation}.{column.name} has type {column.declared}, "
                f"which is not supported; {remedy}"
            )
        if column.name in (COUNT, TRANSACTION):
            raise ConfigurationError(
                f"column {source}.{relation}.{column.name} has a name that Lockstep reserves; {remedy}"
            )
        shown.append(Column(column.name, column.type.arrow, column.nullable))
    return tuple(shown)
