from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from algebra import consistency
from algebra.consistency import Level
from algebra.errors import ViewDefinitionError
from algebra.schema import Catalog, Column, RelationSchema
from lab.experiment import Result, runs
from lab.own_view import OwnView
from lab.scenario_text import format_scenario, parse_scenario
from lab.values import TYPES, fits, format_value, read_value, type_name, type_of
from mediator.config import ViewSpecConfig
from mediator.maintenance import algorithm

LOCAL = consistency.Scenario.SOURCE_LOCAL
DECIMAL = pa.decimal128(12, 3)


def catalogs(**sources: list[RelationSchema]) -> dict[str, Catalog]:
    return {name: Catalog(name, {r.name: r for r in relations}) for name, relations in sources.items()}


def relation(name: str, /, *key: str, **columns: pa.DataType) -> RelationSchema:
    return RelationSchema(name, tuple(Column(c, t, c not in key) for c, t in columns.items()), key)


def own(sql: str, found: dict[str, Catalog], maintenance: str = "sweep", **spec: Any) -> OwnView:
    return OwnView(ViewSpecConfig("v", sql, **spec), algorithm(maintenance), found)


def run(view: OwnView, schedules: int = 21, kind: consistency.Scenario = LOCAL) -> Result:
    result = Result()
    for history in runs(lambda rnd: view.world(rnd, 4, kind), schedules, 0, False):
        result.add(history)
    return result


@pytest.mark.parametrize("type_", [*TYPES.values(), DECIMAL, pa.timestamp("us", "Europe/Ghent")], ids=str)
@pytest.mark.parametrize("maintenance", ["sweep", "t-strobe"])
def test_columns_of_every_type_join(type_: pa.DataType, maintenance: str) -> None:
    found = catalogs(
        x=[relation("r", "k", k=type_, other=type_)], y=[relation("s", "k", k=type_, other=type_)]
    )
    view = own("SELECT r.k, s.other, s.k AS sk FROM x.r JOIN y.s ON r.other = s.other", found, maintenance)
    result = run(view)
    assert result.broken == 0, result.levels
    assert result.changing == result.schedules
    scenario = view.world(random.Random(1), 4, LOCAL).scenario
    assert parse_scenario(format_scenario(scenario)) == scenario


def test_only_what_the_view_reads_is_taken() -> None:
    wide = relation(
        "wide", "b", "a", a=pa.int32(), b=pa.int64(), c=pa.string(), d=pa.string(), e=pa.list_(pa.int8())
    )
    found = catalogs(
        x=[wide, relation("unused", u=pa.int64())], y=[relation("plain", p=pa.int64(), q=pa.int64())]
    )
    view = own("SELECT w.c FROM x.wide w, y.plain", found, allow_cross_join=True)
    scenario = view.world(random.Random(0), 3, LOCAL).scenario
    (x, y) = scenario.sources
    assert [[c.name for c in r.columns] for r in x.relations] == [["a", "b", "c"]]
    assert x.relations[0].key == ("a", "b")
    assert [c.name for c in y.relations[0].columns] == ["p"], "a relation has a column"
    assert parse_scenario(format_scenario(scenario)) == scenario


def test_constants_are_in_the_pools_with_their_neighbours() -> None:
    found = catalogs(
        x=[relation("r", i=pa.int16(), d=pa.date32(), m=DECIMAL, t=pa.string(), ts=pa.timestamp("us"))],
        y=[relation("s", j=pa.int64())],
    )
    view = own(
        "SELECT r.i FROM x.r JOIN y.s ON r.i = s.j WHERE s.j > -7 "
        "AND r.d BETWEEN '2020-02-29' AND '2020-03-09' "
        "AND r.m <> 1.5 AND r.t LIKE 'in\\_%x' AND r.ts < '2020-01-01 00:00:00'",
        found,
    )
    seen: dict[str, set[Any]] = {}
    for seed in range(60):
        for place, values in view._pools.chosen(random.Random(seed)).items():
            seen.setdefault(place[2], set()).update(values)
    assert {-8, -7, -6} <= seen["i"]
    assert seen["i"] == seen["j"]
    assert {datetime.date(2020, 2, 28), datetime.date(2020, 2, 29), datetime.date(2020, 3, 10)} <= seen["d"]
    assert {Decimal("1.499"), Decimal("1.500"), Decimal("1.501")} <= seen["m"]
    assert datetime.datetime(2019, 12, 31, 23, 59, 59) in seen["ts"]


def test_nulls_are_where_they_may_be() -> None:
    found = catalogs(
        x=[
            RelationSchema(
                "r",
                (Column("k", pa.int64(), False), Column("n", pa.int64()), Column("m", pa.int64(), False)),
                ("k",),
            )
        ]
    )
    view = own("SELECT r.k, r.n, r.m FROM x.r", found)
    rows = [
        c.row
        for seed in range(20)
        for c in view.world(random.Random(seed), 3, LOCAL).scenario.sources[0].rows
    ]
    assert any(n is None for _, n, _ in rows)
    assert all(None not in (k, m) for k, _, m in rows)


def test_a_self_join_with_expressions_is_kept() -> None:
    found = catalogs(
        x=[relation("emp", "id", id=pa.int64(), boss=pa.int64(), pay=pa.decimal128(8, 2), name=pa.string())],
        y=[relation("dept", "id", id=pa.int32(), since=pa.date32(), head=pa.int64())],
    )
    view = own(
        "SELECT e.name || '/' || coalesce(b.name, '-') AS n, e.pay * 1.5 AS more, year(d.since) AS y, "
        "CASE d.id WHEN 1 THEN 'one' ELSE CAST(d.id AS VARCHAR) END AS d "
        "FROM x.emp e JOIN x.emp b ON e.boss = b.id JOIN y.dept d ON d.head = b.id "
        "WHERE e.pay > b.pay OR d.since >= DATE '2024-01-02' OR e.name IS NULL",
        found,
    )
    assert not view.embedded
    result = run(view, 42)
    assert result.broken == 0, result.levels
    assert result.changing == result.schedules


def test_what_the_reference_engine_does_not_know_is_left_to_the_embedded_one() -> None:
    found = catalogs(
        x=[relation("r", "k", k=pa.int64(), t=pa.string())], y=[relation("s", k=pa.int64(), d=pa.date32())]
    )
    view = own("SELECT substring(r.t, 1, 1) AS c, s.d FROM x.r JOIN y.s ON r.k = s.k", found)
    assert view.embedded
    world = view.world(random.Random(0), 3, LOCAL)
    assert "engine: embedded\n" in format_scenario(world.scenario)
    assert parse_scenario(format_scenario(world.scenario)) == world.scenario
    assert run(view, 7).broken == 0
    assert own("SELECT s.d + 1 AS next FROM y.s", found).embedded, "the engines would not agree"


def test_an_expression_that_fails_on_every_row_is_named() -> None:
    found = catalogs(x=[RelationSchema("r", (Column("k", pa.int64(), False),))])
    view = own("SELECT CAST(r.k + 9223372036854775807 AS BIGINT) AS k FROM x.r WHERE r.k > 0", found)
    with pytest.raises(
        ViewDefinitionError, match="an expression of view 'v' fails on all rows made up for it"
    ):
        view.world(random.Random(0), 3, LOCAL)


def test_ivma_is_caught_on_a_view_of_ones_own() -> None:
    found = catalogs(
        x=[relation("r", a=pa.date32(), b=pa.string())], y=[relation("s", b=pa.string(), c=pa.float32())]
    )
    result = run(own("SELECT r.a, s.c FROM x.r JOIN y.s USING (b)", found, "ivma"), 42)
    small = result.counterexample()
    assert small is not None
    assert small.world.scenario.transactions == 2
    assert result.reached is Level.NONE


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        (Decimal("-1.500"), DECIMAL, "'-1.500'"),
        (Decimal("0.000"), DECIMAL, "'0.000'"),
        (datetime.date(2024, 2, 29), pa.date32(), "'2024-02-29'"),
        (datetime.time(1, 2, 3, 4), pa.time64("us"), "'01:02:03.000004'"),
        (datetime.datetime(2024, 2, 29, 1), pa.timestamp("us"), "'2024-02-29 01:00:00'"),
        (
            datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC),
            pa.timestamp("us", "UTC"),
            "'2024-02-29 00:00:00+00:00'",
        ),
        (b"\x00\xff", pa.binary(), "'\\x00ff'"),
        ("it's", pa.string(), "'it''s'"),
        (1e16, pa.float64(), "1e+16"),
    ],
)
def test_values_are_written_and_read(value: Any, type_: pa.DataType, text: str) -> None:
    assert fits(value, type_)
    assert format_value(value) == text
    if text.startswith("'"):
        assert read_value(text[1:-1].replace("''", "'"), type_) == value


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (128, pa.int8()),
        (-1, pa.uint64()),
        (0.1, pa.float32()),
        (1e300, pa.float32()),
        (Decimal("0.0001"), DECIMAL),
        (Decimal(10) ** 9, DECIMAL),
        (datetime.datetime(2024, 1, 1), pa.date32()),
        (datetime.datetime(2024, 1, 1), pa.timestamp("us", "UTC")),
        ("a", pa.binary()),
        (True, pa.int64()),
    ],
)
def test_values_that_do_not_fit(value: Any, type_: pa.DataType) -> None:
    assert not fits(value, type_)


def test_types_have_names() -> None:
    for type_ in (*TYPES.values(), DECIMAL):
        assert type_of(type_name(type_)) == type_
    assert type_of("decimal(39,1)") is None
    assert type_of("decimal(2,3)") is None
    assert type_of("money") is None
