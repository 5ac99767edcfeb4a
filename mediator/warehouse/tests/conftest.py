from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mediator.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    """An empty warehouse that deletes replaced files at once."""
    with Warehouse(tmp_path / "warehouse", durable=False, grace_seconds=0.0) as warehouse:
        yield warehouse


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small local session; Python workers find this source tree."""
    from pyspark.sql import SparkSession

    from mediator.engines.java import use_java

    use_java()
    running = SparkSession.getActiveSession()
    if running is None:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    yield session
    if running is None:
        session.stop()
