"""Random scenarios: small, so that a counterexample can be read, and dense, so that joins meet.

Values are few, keys are used again after a deletion, and rows of relations without a key may occur several
times: that is where maintenance algorithms go wrong.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from algebra import consistency
from algebra.schema import Column, RelationSchema
from lab.scenario import Change, Row, Scenario, Source, Transaction
from lab.values import TYPES
from lab.writer import Rows, Writer
from mediator.maintenance import algorithm
from mediator.maintenance.contract import Maintenance

NAMES = "xyzuvw"
"""Sources are called so, in the order in which the view joins them."""
_KEYS = range(1, 5)
_VALUES = range(2)
_FIRST_ROWS = range(1, 4)


@dataclass(frozen=True)
class _Shape:
    """Which relations there are, where they live and how the view joins them."""

    star: bool
    keyed: bool
    homes: tuple[str, ...]
    """The source of each relation r1, r2, ..., in the order of the view."""

    def schema(self, index: int) -> RelationSchema:
        names = ("k", "a", "b") if self.keyed else ("a", "b")
        columns = tuple(Column(name, TYPES["int"]) for name in names)
        return RelationSchema(f"r{index + 1}", columns, ("k",) if self.keyed else ())

    def relations(self, source: str) -> tuple[RelationSchema, ...]:
        return tuple(self.schema(i) for i, home in enumerate(self.homes) if home == source)


def generate(
    rnd: random.Random,
    name: str,
    *,
    sources: int = 3,
    transactions: int = 5,
    kind: consistency.Scenario = consistency.Scenario.SOURCE_LOCAL,
) -> Scenario:
    """A random scenario for an algorithm.

    For an algorithm that works over a single source, `sources` is how many relations that source has.
    """
    maintenance = algorithm(name)
    shape = _shape(rnd, maintenance, sources)
    names = tuple(dict.fromkeys(shape.homes))
    writer = Writer(rnd, _Rows())
    for source in names:
        writer.add(source, shape.relations(source), _FIRST_ROWS)
    for number in range(1, transactions + 1):
        writer.write(number, kind)
    scheduled = maintenance.takes_batches and maintenance.max_batch is None and rnd.random() < 0.5
    return Scenario(
        algorithm=name,
        view=_view(rnd, shape, maintenance.needs_keys),
        sources=tuple(writer.sources.values()),
        scheduled_takes=scheduled,
    )


def chain(
    rnd: random.Random, name: str, relations: int, transactions: int, kind: consistency.Scenario
) -> Scenario:
    """A chain of relations with keys that shows every column, the same for every algorithm.

    Each relation has a source of its own; for an algorithm that works over a single source, they share one,
    which commits the same transactions.
    """
    shape = _Shape(star=False, keyed=True, homes=tuple(NAMES[:relations]))
    sources = tuple(_dense(rnd, Source(home, shape.relations(home))) for home in shape.homes)
    for _ in range(transactions):
        at = rnd.randrange(relations)
        steps = 1 if kind is consistency.Scenario.SINGLE_UPDATE else rnd.randint(1, 3)
        sources = (*sources[:at], _dense_transaction(rnd, sources[at], steps), *sources[at + 1 :])
    if algorithm(name).single_source:
        sources = (_merged(rnd, sources),)
    home = {r.name: source.name for source in sources for r in source.relations}
    tables = ", ".join(f"{home[f'r{i}']}.r{i} r{i}" for i in range(1, relations + 1))
    shown = ", ".join(f"r{i}.{c} AS r{i}_{c}" for i in range(1, relations + 1) for c in ("k", "a", "b"))
    joins = " AND ".join(f"r{i}.b = r{i + 1}.a" for i in range(1, relations))
    return Scenario(name, f"SELECT {shown} FROM {tables} WHERE {joins}", sources)


def _dense(rnd: random.Random, source: Source) -> Source:
    """Rows that meet in every join, so that a query is never saved by an empty partial result."""
    (relation,) = source.relations
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1)]
    rows = tuple(Change(relation.name, (k, *pair)) for k, pair in enumerate(rnd.sample(pairs, 3), 1))
    return Source(source.name, source.relations, rows)


def _dense_transaction(rnd: random.Random, source: Source, steps: int) -> Source:
    """One transaction more: rows with new keys, or fewer rows as long as enough are left."""
    (relation,) = source.relations
    *_, state = source.states()
    changes: list[Change] = []
    for _ in range(steps):
        bag = state[relation.name]
        if len(bag) > 2 and rnd.random() < 0.5:
            change = Change(relation.name, rnd.choice(sorted(bag)), -1)
        else:
            used = [c.row[0] for t in source.transactions for c in t.changes] + [c.row[0] for c in changes]
            key = max([3, *used]) + 1
            change = Change(relation.name, (key, rnd.randrange(2), rnd.randrange(2)))
        changes.append(change)
        state = source.after(state, (change,))
    transaction = Transaction(tuple(changes))
    if not transaction.net():
        return _dense_transaction(rnd, source, steps)
    return Source(source.name, source.relations, source.rows, (*source.transactions, transaction))


def _merged(rnd: random.Random, sources: Sequence[Source]) -> Source:
    """All relations in one source, which commits what each of them did in some order."""
    waiting = {source.name: list(source.transactions) for source in sources if source.transactions}
    transactions: list[Transaction] = []
    while waiting:
        name = rnd.choice(list(waiting))
        transactions.append(waiting[name].pop(0))
        if not waiting[name]:
            del waiting[name]
    return Source(
        sources[0].name,
        tuple(relation for source in sources for relation in source.relations),
        tuple(row for source in sources for row in source.rows),
        tuple(transactions),
    )


def _shape(rnd: random.Random, maintenance: Maintenance, sources: int) -> _Shape:
    star = sources > 2 and rnd.random() < 0.4
    keyed = maintenance.needs_keys or rnd.random() < 0.5
    if maintenance.single_source:
        return _Shape(star, keyed, (NAMES[0],) * sources)
    homes = list(NAMES[:sources])
    if rnd.random() < 0.4:
        # A source with two relations: next to each other in a chain, they are one local view.
        at = 0 if star and maintenance.one_node_per_source else rnd.randrange(sources)
        homes.insert(at, homes[at])
    return _Shape(star, keyed, tuple(homes))


def _view(rnd: random.Random, shape: _Shape, needs_keys: bool) -> str:
    size = len(shape.homes)
    shown = [f"r{i + 1}.{c.name} AS r{i + 1}_{c.name}" for i in range(size) for c in shape.schema(i).columns]
    columns = sorted(rnd.sample(range(len(shown)), rnd.randint(1, len(shown))))
    if needs_keys and rnd.random() < 0.5:
        columns = sorted({*columns, *(i for i, text in enumerate(shown) if text.endswith("_k"))})
    tables = [f"{home}.r{i + 1} r{i + 1}" for i, home in enumerate(shape.homes)]
    conditions = [f"r{1 if shape.star else i}.b = r{i + 1}.a" for i in range(1, size)]
    if rnd.random() < 0.2:
        conditions.append(f"r{rnd.randint(1, size)}.a < 2")
    if size > 1 and rnd.random() < 0.2:
        conditions.append(f"r1.a <= r{size}.b")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join(shown[i] for i in columns)} FROM {', '.join(tables)}{where}"


class _Rows(Rows):
    """Rows of few small numbers."""

    def insert(
        self, rnd: random.Random, source: str, relation: RelationSchema, bag: Mapping[Row, int]
    ) -> list[Change]:
        values = (rnd.choice(_VALUES), rnd.choice(_VALUES))
        if not relation.key:
            return [Change(relation.name, values)]
        free = [key for key in _KEYS if all(row[0] != key for row in bag)]
        return [Change(relation.name, (rnd.choice(free), *values))] if free else []

    def modified(self, rnd: random.Random, source: str, relation: RelationSchema, row: Row) -> Row:
        return (*row[:-2], rnd.choice(_VALUES), rnd.choice(_VALUES))
