"""All engines agree: with recomputation under random interleavings, and with each other on all types."""

from __future__ import annotations

import datetime
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from algebra.assembly import AssemblyQuery
from algebra.decompose import decompose
from algebra.delta import Delta
from algebra.engines.contract import Engine, Extent
from algebra.engines.embedded import EmbeddedEngine
from algebra.engines.reference import ReferenceEngine
from algebra.schema import COUNT, Catalog, Column, RelationSchema
from algebra.tests.test_sweep import check_batched, check_published, world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module", params=["spark", "auto"])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Engine]:
    from mediator.engines.auto import AutoEngine
    from mediator.engines.spark import SparkEngine

    embedded = EmbeddedEngine(threads=1, few_rows=0)
    made = SparkEngine(spark, embedded, owns_session=False)
    # A threshold this low sends some joins of a test to Spark and keeps others embedded.
    yield made if request.param == "spark" else AutoEngine(embedded, made, threshold=12)
    embedded.close()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("view", "seed"),
    [
        ("chain", 1),
        ("star", 2),
        ("cycle", 3),
        ("theta", 4),
        ("theta only", 4),
        ("selection and expressions", 5),
        ("two parts of one source", 6),
        ("everything kept", 7),
    ],
)
def test_batched_sweep_makes_every_version_right(view: str, seed: int, engine: Engine) -> None:
    check_batched(world(view, seed), engine, rounds=2)


@pytest.mark.spark
def test_sweep_as_published_makes_every_version_right(engine: Engine) -> None:
    check_published(world("chain", 9), engine, rounds=1)


TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, 0, 127]),
    "i64": (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    "u8": (pa.uint8(), [0, 255]),
    "f64": (pa.float64(), [math.nan, math.inf, -math.inf, 0.1]),
    "dec": (pa.decimal128(18, 4), [Decimal("-1.5000"), Decimal("12345678901234.5678")]),
    "text": (pa.string(), ["", "plain", "ünïcode ✓", 'it\'s "quoted"', "{brace}"]),
    "blob": (pa.binary(), [b"", b"\x00\xff"]),
    "flag": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [datetime.date(1582, 10, 15), datetime.date(9999, 12, 31)]),
    "at": (pa.time64("us"), [datetime.time(0), datetime.time(23, 59, 59, 999999)]),
    "ts": (pa.timestamp("us"), [datetime.datetime(2024, 2, 29, 23, 59, 59, 999999)]),
    "tz": (pa.timestamp("us", "UTC"), [datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC)]),
}


def typed_query(key: str) -> AssemblyQuery:
    columns = tuple(Column(name, type_) for name, (type_, _) in TYPES.items())
    catalogs = {s: Catalog(s, {"r": RelationSchema("r", columns)}) for s in ("a", "b")}
    shown = ", ".join(f'x."{c.name}", y."{c.name}" AS "y {c.name}"' for c in columns)
    sql = f'SELECT {shown} FROM a.r x JOIN b.r y ON x."{key}" = y."{key}"'
    return decompose("v", sql, catalogs).assembly


def typed_rows(rnd: random.Random, query: AssemblyQuery, node: int, size: int) -> pa.Table:
    schema = query.nodes[node].schema
    data = {
        name: [None if rnd.random() < 0.2 else rnd.choice(TYPES[name][1]) for _ in range(size)]
        for name in schema.names
    }
    return pa.table(data, schema=schema)


@pytest.mark.spark
@pytest.mark.parametrize("key", TYPES)
def test_engines_agree_on_every_type_as_key_and_as_value(key: str, engine: Engine, tmp_path: Path) -> None:
    rnd = random.Random(key)
    query = typed_query(key)
    tables = [typed_rows(rnd, query, node, 12) for node in (0, 1)]
    minus = tables[0].slice(0, 3).append_column(COUNT, pa.array([1, 1, 1], pa.int64()))
    path = tmp_path / "extent.parquet"
    pq.write_table(tables[1], path)
    extents = [Extent(tables[0], minus=minus), Extent(files=(path,))]
    expected = comparable(ReferenceEngine().extent(query, extents, None).table)
    assert expected, "the case must join something"
    assert comparable(EmbeddedEngine(threads=1).extent(query, extents, None).table) == expected
    assert comparable(engine.extent(query, extents, None).table) == expected
    files = engine.extent(query, extents, tmp_path / "out").files
    assert comparable(pa.concat_tables([pq.read_table(f) for f in files])) == expected


def comparable(table: pa.Table | None) -> dict[tuple[Any, ...], int]:
    """Rows with their counts; NaN made equal to itself."""
    assert table is not None
    rows = Delta(table).to_dict()
    return {
        tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in row): n
        for row, n in rows.items()
    }


@pytest.mark.spark
@pytest.mark.parametrize(
    "shown",
    [
        "COALESCE(r.at, r.at) AS e",
        "CASE WHEN r.n > 1 THEN r.at END AS e",
        "GREATEST(r.at, '01:30:00') AS e",
        "CAST(r.ts AS TIME) AS e",
        "r.at || ' h' AS e",
        "r.at > '01:30:00' AS e",
        "r.n + 1 AS e",
        "COALESCE(r.n, 5) AS e",
        "CAST(r.n AS UBIGINT) > 2 AS e",
    ],
)
def test_what_spark_has_no_type_for_is_computed_all_the_same(shown: str, spark: SparkSession) -> None:
    from mediator.engines.spark import SparkEngine

    columns = {"n": pa.uint32(), "at": pa.time64("us"), "ts": pa.timestamp("us")}
    relation = RelationSchema("r", tuple(Column(name, type_) for name, type_ in columns.items()))
    query = decompose(
        "v", f"SELECT r.n, r.at, {shown} FROM a.r r", {"a": Catalog("a", {"r": relation})}
    ).assembly
    noon = datetime.datetime(2024, 2, 29, 12, 0, 0, 7)
    data = {"n": [1, 2**32 - 2, None], "at": [datetime.time(1), noon.time(), None], "ts": [noon, noon, None]}
    rows = pa.table({name: data[name] for name in query.nodes[0].schema.names}, schema=query.nodes[0].schema)
    embedded = EmbeddedEngine(threads=1)
    expected = comparable(embedded.extent(query, [Extent(rows)], None).table)
    engine = SparkEngine(spark, embedded, owns_session=False)
    assert comparable(engine.extent(query, [Extent(rows)], None).table) == expected
    embedded.close()


@pytest.mark.spark
def test_a_backslash_is_no_escape_in_a_pattern_of_any_engine(spark: SparkSession) -> None:
    from mediator.engines.spark import SparkEngine

    columns = {"t": pa.string(), "pattern": pa.string()}
    relation = RelationSchema("r", tuple(Column(name, type_) for name, type_ in columns.items()))
    constants = [r"a\%b", r"a\\%b", "%\\", r"a\_b", "a%b"]
    shown = [f"r.t LIKE '{constant}' AS l{i}" for i, constant in enumerate(constants)]
    sql = f"SELECT r.t, r.t NOT LIKE r.pattern AS n, {', '.join(shown)} FROM a.r r"
    catalogs = {"a": Catalog("a", {"r": relation})}
    kept = decompose("v", f"{sql} WHERE r.t LIKE r.pattern OR r.t LIKE '%\\%b' OR r.t IS NULL", catalogs)
    texts = ["ab", "a%b", r"a\b", r"a\%b", r"a\xb", r"a\\b", "a\\", "", None]
    pairs = [(text, pattern) for text in texts for pattern in [*constants, None]]
    rows = pa.table([pa.array(column, pa.string()) for column in zip(*pairs, strict=True)], names=[*columns])
    embedded = EmbeddedEngine(threads=1)
    expected = comparable(embedded.extent(kept.assembly, [Extent(rows)], None).table)
    assert len(expected) > 9
    engine = SparkEngine(spark, embedded, owns_session=False)
    assert comparable(engine.extent(kept.assembly, [Extent(rows)], None).table) == expected
    embedded.close()


@pytest.mark.spark
def test_spark_gets_every_row_of_a_table_with_empty_chunks(spark: SparkSession) -> None:
    """PySpark ends reading at an empty chunk; a delta of a batch often has one."""
    from mediator.engines.spark import SparkEngine

    rows = pa.table({"x": pa.chunked_array([[1, 2], [], [3]], pa.int64())})
    embedded = EmbeddedEngine(threads=1)
    engine = SparkEngine(spark, embedded, owns_session=False)
    query = decompose("v", "SELECT r.x FROM a.r r", {"a": Catalog("a", {"r": X})}).assembly
    change = engine.extent(query, [Extent(rows)], None)
    assert comparable(change.table) == {(1,): 1, (2,): 1, (3,): 1}
    embedded.close()


X = RelationSchema("r", (Column("x", pa.int64()),))


def test_a_view_that_engines_may_evaluate_differently_stays_with_one() -> None:
    columns = (
        Column("x", pa.int64()),
        Column("t", pa.string()),
        Column("f", pa.float64()),
        Column("r", pa.float32()),
        Column("d", pa.decimal128(20, 10)),
        Column("p", pa.decimal128(10, 2)),
        Column("z", pa.timestamp("us", "UTC")),
    )
    catalogs = {"a": Catalog("a", {"r": RelationSchema("r", columns)})}

    def portable(expression: str) -> bool:
        return decompose("v", f"SELECT {expression} AS e FROM a.r r", catalogs).assembly.is_portable

    assert portable("r.x + 1")
    assert portable("r.x / 2")
    assert not portable("upper(r.t)")
    assert not portable("CAST(r.x AS VARCHAR)")
    assert portable("r.t || ' ' || r.x")
    for joined in ("f", "r", "z"):
        assert not portable(f"r.{joined} || r.t")
    assert not portable("r.x / 2 || r.t")
    assert not portable("1e20 || r.t")
    assert portable("r.f * 0.1 > 1.5")
    assert not portable("r.r * 0.1")
    assert not portable("r.r > 0.1 OR r.x > 1")
    assert portable("r.p * r.x")
    assert portable("r.d * 2.5")
    assert not portable("r.d * r.d")
    assert not portable("r.p * r.p * r.x")


def test_timestamps_with_time_zone_are_read_in_utc_wherever_the_engine_runs() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _YEAR], env={**os.environ, "TZ": "America/New_York"}, capture_output=True
    )
    assert found.stdout.split() == [b"2024", b"1"], found.stderr.decode()


_YEAR = """
import datetime
import pyarrow as pa
from algebra.decompose import decompose
from algebra.engines.contract import Extent
from algebra.engines.embedded import EmbeddedEngine
from algebra.schema import Catalog, Column, RelationSchema

relation = RelationSchema("r", (Column("at", pa.timestamp("us", "UTC")),))
sql = "SELECT YEAR(r.at) AS y, DAY(r.at) AS d FROM a.r r WHERE r.at >= '2024-01-01'"
query = decompose("v", sql, {"a": Catalog("a", {"r": relation})}).assembly
rows = pa.table({"at": pa.array([datetime.datetime(2024, 1, 1, 2, tzinfo=datetime.UTC)])})
for row in EmbeddedEngine().extent(query, [Extent(rows)], None).table.to_pylist():
    print(row["y"], row["d"])
"""
