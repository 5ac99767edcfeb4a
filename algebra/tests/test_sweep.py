"""SWEEP's guarantee as a theorem: every version equals the recomputed view, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from algebra.assembly import HIGH, LOW, SEQUENCE, VERSION
from algebra.decompose import decompose
from algebra.delta import Delta
from algebra.engines.contract import EARLIEST, LATEST, Engine, Start
from algebra.engines.embedded import EmbeddedEngine, assembly_sql
from algebra.engines.reference import ReferenceEngine
from algebra.plan import SweepPlan
from algebra.schema import COUNT, Catalog, Column, RelationSchema
from algebra.sweep import Sweep, batched_sweep, parallel_sweep, sweep
from algebra.tests.simulation import World, split_versions

INT = pa.int64()


def catalogs(keyed: bool = False) -> dict[str, Catalog]:
    found = {}
    for name in "abcde":
        columns = (Column("x", INT), Column("y", INT), Column("z", pa.string()))
        key = ("x", "y", "z") if keyed else ()
        found[name] = Catalog(
            name, {"r": RelationSchema("r", columns, key), "s": RelationSchema("s", columns, key)}
        )
    return found


VIEWS = {
    "two": "SELECT a.x, b.z FROM a.r a JOIN b.r b ON a.y = b.x",
    "chain": "SELECT a.x, b.x AS bx, c.z FROM a.r a, b.r b, c.r c WHERE a.y = b.x AND b.y = c.x",
    "chain of five": "SELECT a.x, e.z FROM a.r a, b.r b, c.r c, d.r d, e.r e "
    "WHERE a.y = b.x AND b.y = c.x AND c.y = d.x AND d.y = e.x",
    "star": "SELECT b.z AS bz, c.z AS cz, d.z AS dz FROM a.r a, b.r b, c.r c, d.r d "
    "WHERE a.x = b.x AND a.y = c.x AND a.x = d.y",
    "cycle": "SELECT a.z, b.z AS bz FROM a.r a, b.r b, c.r c WHERE a.x = b.x AND b.y = c.y AND c.x = a.y",
    "two predicates": "SELECT a.z, b.z AS bz FROM a.r a, b.r b WHERE a.x = b.x AND a.y = b.y",
    "theta": "SELECT a.z, b.z AS bz, c.x FROM a.r a, b.r b, c.r c "
    "WHERE a.x = b.x AND b.y = c.y AND a.y < c.x",
    "theta only": "SELECT a.z, b.z AS bz FROM a.r a JOIN b.r b ON a.x < b.x",
    "selection and expressions": "SELECT a.x + b.y AS s, upper(c.z) AS u, coalesce(b.x, -1) AS k "
    "FROM a.r a, b.r b, c.r c WHERE a.y = b.x AND b.y = c.x AND a.x > 0 AND c.z IN ('p', 'q')",
    "two parts of one source": "SELECT a1.z, b.z AS bz, a2.z AS z2 FROM a.r a1, b.r b, a.s a2 "
    "WHERE a1.y = b.x AND b.y = a2.x",
    "everything kept": "SELECT a.x, a.y, a.z, b.x AS bx, b.y AS by_, b.z AS bz "
    "FROM a.r a JOIN b.r b ON a.y = b.x",
}


def values(rnd: random.Random, node: int, schema: pa.Schema) -> tuple[Any, ...]:
    def value(field: pa.Field) -> Any:
        if rnd.random() < 0.12:
            return None
        return rnd.choice("pqr") if pa.types.is_string(field.type) else rnd.randrange(3)

    return tuple(value(field) for field in schema)


def world(view: str, seed: int, keyed: bool = False) -> World:
    rnd = random.Random(seed)
    decomposition = decompose("v", VIEWS[view], catalogs(keyed))
    plan = SweepPlan.of(decomposition.assembly)
    made = World(
        plan,
        [Counter() for _ in plan.query.nodes],
        lambda r, node: values(r, node, plan.query.nodes[node].schema),
        rnd,
    )
    for node, bag in enumerate(made.bags):
        for _ in range(5):
            bag[made.values(rnd, node)] += 1 if keyed else rnd.choice([1, 1, 2])
    return made


ENGINES: dict[str, Callable[[], Engine]] = {
    "reference": ReferenceEngine,
    "duckdb": lambda: EmbeddedEngine(threads=1, few_rows=0),
    "duckdb, few rows": lambda: EmbeddedEngine(threads=1, few_rows=40),
}


@pytest.fixture(scope="module", params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = ENGINES[request.param]()
    return made


def check_batched(made: World, engine: Engine, rounds: int) -> None:
    state = Delta(made.extent())
    installed = 0
    for _ in range(rounds):
        made.maybe_transact(0.8)
        waiting = made.delivered[installed:]
        if not waiting:
            continue
        batch = waiting[: made.random.randint(1, len(waiting))]
        before = made.queries
        change = made.drive(
            batched_sweep(made.plan, made.deltas(batch), engine, made.pending(installed)), 0.4
        )
        assert made.queries - before <= made.plan.queries_per_batch
        versions = split_versions(change)
        for transaction in batch:
            if transaction.number in versions:
                delta = versions.pop(transaction.number)
                assert 0 not in delta.rows[COUNT].to_pylist()
                state = state.plus(delta)
            assert state.to_dict() == made.expected[transaction.number], transaction
        assert not versions
        installed = batch[-1].number


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("seed", range(4))
def test_batched_sweep_makes_every_version_right(view: str, seed: int, engine: Engine) -> None:
    check_batched(world(view, seed), engine, rounds=4)


def check_published(
    made: World, engine: Engine, rounds: int, algorithm: Callable[..., Sweep] = sweep
) -> None:
    """Run SWEEP as published transaction by transaction; every version must be right."""
    state = Delta(made.extent())
    installed = 0
    for _ in range(rounds):
        made.maybe_transact(0.7)
        for transaction in made.delivered[installed:]:
            before = made.queries
            change = made.drive(
                algorithm(made.plan, made.deltas([transaction]), engine, made.pending(installed)), 0.3
            )
            touched = max(len(transaction.changes), 1)
            assert made.queries - before <= made.plan.queries_per_update * touched
            for delta in split_versions(change).values():
                state = state.plus(delta)
            installed = transaction.number
            assert state.to_dict() == made.expected[installed]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("seed", range(2))
def test_sweep_as_published_makes_every_version_right(view: str, seed: int, engine: Engine) -> None:
    """Reference: SWEEP paper, section 5.1, Figure 4; complete consistency by delivery order."""
    check_published(world(view, seed), engine, rounds=3)


@pytest.mark.parametrize("view", ["chain of five", "star", "two parts of one source"])
def test_parallel_sweep_makes_every_version_right(view: str, engine: Engine) -> None:
    """Reference: SWEEP paper, section 5.3; the two sweeps are independent and may run in parallel."""
    check_published(world(view, 1), engine, rounds=3, algorithm=parallel_sweep)


def test_a_view_that_keeps_all_columns_of_keyed_relations_needs_no_consolidation() -> None:
    assert world("everything kept", 1, keyed=True).query.consolidation_free
    assert not world("everything kept", 1).query.consolidation_free
    assert not world("chain", 1, keyed=True).query.consolidation_free


def test_an_answer_that_lacks_reported_rows_is_refused(engine: Engine) -> None:
    """A source whose answers and changes disagree must stop the view, not spoil it."""
    from algebra.errors import OrderingViolationError

    made = world("two", 3)
    made.bags[1].clear()
    made.bags[0].clear()
    made.bags[0][(1, 1)] += 1
    node = made.query.nodes[1]
    schema = made.table(1, Counter(), elements=True)
    row = tuple(1 if f.type == INT else "p" for f in node.schema)
    pending = made.table(1, Counter({row: 1}), sequence=10)
    with pytest.raises(OrderingViolationError):
        engine.history(node, schema, pending, None)


def restless(plan: SweepPlan, times: int) -> list[pa.Table]:
    """For each node the history of one row that is changed so often; the rows of all nodes join."""
    tables = []
    for node in range(len(plan.query.nodes)):
        schema = plan.query.nodes[node].schema
        bounds = [EARLIEST, *(plan.width * n + node for n in range(1, times)), LATEST]
        columns = {name: ["p" if name == "z" else 0] * times for name in schema.names}
        tables.append(pa.table({**columns, COUNT: [1] * times, LOW: bounds[:-1], HIGH: bounds[1:]}))
    return tables


@pytest.mark.timeout(60)
def test_rows_that_every_source_changes_do_not_multiply() -> None:
    """Each of five sources changes its row 400 times, and all these rows join: 400 results, not 400⁵."""
    plan = SweepPlan.of(decompose("v", VIEWS["chain of five"], catalogs()).assembly)
    times = 400
    tables = restless(plan, times)
    sequence = pa.array([plan.width * n for n in range(times)], INT)
    deltas = tables[0].drop_columns([LOW, HIGH]).append_column(SEQUENCE, sequence)
    start = Start(0, deltas, tuple((hop, tables[hop.target]) for hop in plan.order(0)))
    with closing(EmbeddedEngine(threads=1)) as engine:
        change = engine.assemble(plan, [start], None).table
    assert change is not None
    assert Counter(change[VERSION].to_pylist()) == Counter(range(times))
    assert change[COUNT].to_pylist() == [1] * times


def test_the_starts_of_a_batch_join_the_same_part_of_a_long_history() -> None:
    """Its rows of other times are left out, and no start has a copy of its own."""
    plan = SweepPlan.of(decompose("v", VIEWS["chain of five"], catalogs()).assembly)
    histories = restless(plan, 400)
    starts = []
    for node, history in enumerate(histories):
        sequence = pa.array([plan.width * (100 + node) + node], INT)
        deltas = history.slice(0, 1).drop_columns([LOW, HIGH]).append_column(SEQUENCE, sequence)
        starts.append(Start(node, deltas, tuple((hop, histories[hop.target]) for hop in plan.order(node))))
    tables: dict[str, pa.Table] = {}
    assembly_sql(plan, starts, tables, "duckdb")
    assert sorted(table.num_rows for table in tables.values() if LOW in table.column_names) == [5, 6, 6, 6, 6]
    assert len(tables) == len(histories) + len(starts)
