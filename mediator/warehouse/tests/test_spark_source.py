"""The format `lockstep` in a real Spark session, and Spark as the writer of staged files."""

from __future__ import annotations

import decimal
from collections import Counter
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from mediator.warehouse import ViewInstall, Warehouse
from mediator.warehouse.tests.builders import SCHEMA, at, change, counted, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def load(spark: SparkSession, root: Path, view: str, **options: Any) -> DataFrame:
    from mediator.warehouse.spark_source import register

    register(spark)
    reader = spark.read.format("lockstep").option("warehouse", str(root)).option("view", view)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(entry) for entry in frame.collect())


def test_spark_reads_every_version(warehouse: Warehouse, spark: SparkSession) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted({(1, "a"): 2, (2, None): 1}), row(0))
    warehouse.install([change("v", 1, {(1, "a"): -1, (3, "c"): 3})])
    assert rows(load(spark, warehouse.root, "v")) == {(1, "a"): 1, (2, None): 1, (3, "c"): 3}
    assert rows(load(spark, warehouse.root, "v", version=0)) == {(1, "a"): 2, (2, None): 1}
    split = load(spark, warehouse.root, "v", partitions=3, counted="true")
    assert split.rdd.getNumPartitions() == 3
    assert rows(split) == {(1, "a", 1): 1, (2, None, 1): 1, (3, "c", 3): 1}


def test_spark_sees_the_stored_types(warehouse: Warehouse, spark: SparkSession) -> None:
    schema = pa.schema(
        [
            ("unit price", pa.uint64()),
            ("day", pa.date32()),
            ("local", pa.timestamp("us")),
            ("instant", pa.timestamp("us", "UTC")),
            ("raw", pa.binary()),
        ]
    )
    value = (2**64 - 1, date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6), datetime(2026, 1, 2), b"\x00\xff")
    warehouse.create_view("types", {}, schema, counted({value: 1}, schema), row(0))
    frame = load(spark, warehouse.root, "types")
    assert [kind for _, kind in frame.dtypes] == [
        "decimal(20,0)",
        "date",
        "timestamp_ntz",
        "timestamp",
        "binary",
    ]
    [found] = frame.collect()
    assert found["unit price"] == decimal.Decimal(2**64 - 1)
    assert found["local"] == value[2]
    assert bytes(found["raw"]) == value[4]


def test_spark_stages_a_change(warehouse: Warehouse, spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int32()), ("seen at", pa.timestamp("us", "UTC"))])
    warehouse.create_view("v", {}, schema, counted({}, schema), row(0))
    staged = warehouse.stage_directory("v")
    frame = spark.sql(
        "SELECT id, timestamp_micros(id * 1000001) AS `seen at`, 1L AS _count, 1L + id % 2 AS _version "
        "FROM (SELECT CAST(id AS INT) AS id FROM range(10))"
    )
    frame.repartition(3).write.mode("append").parquet(str(staged))
    files = sorted(staged.glob("*.parquet"))
    warehouse.install([ViewInstall("v", [row(1), row(2)], files=files)])
    assert warehouse.newest("v").rows == 10
    assert sorted(key[0] for key in at(warehouse, "v", 1)) == [0, 2, 4, 6, 8]
    assert len(at(warehouse, "v", 2)) == 10
    assert {key[1].microsecond for key in at(warehouse, "v")} == set(range(10))


def test_a_missing_option_is_named(warehouse: Warehouse, spark: SparkSession) -> None:
    with pytest.raises(Exception, match="needs the option 'view'"):
        load(spark, warehouse.root, "").schema  # noqa: B018
