"""Fixtures for all tests: one Spark session per run, and no logging or secrets that a test leaves behind."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from algebra import redaction
from cli.logs import StderrHandler

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tests start Java from a process in which gRPC already runs; gRPC's fork handlers would break the start.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Spark's Python workers must be this interpreter, whichever test starts the session.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests with Spark in one worker, so that a run in parallel has one session, too."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that a test runs in this process sets up logging for it; that ends with the test."""
    root = logging.getLogger()
    level = root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, StderrHandler)]
    root.setLevel(level)


@pytest.fixture(autouse=True)
def secrets_as_before() -> Iterator[None]:
    """What a test has this process blot out is an ordinary word in the texts of the next test."""
    with redaction._lock:
        remembered, fragments = set(redaction._remembered), set(redaction._fragments)
    yield
    with redaction._lock:
        redaction._remembered, redaction._fragments = remembered, fragments
        redaction._compile()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The run's one Spark session; mediators in this process use it too and leave it running."""
    from mediator.engines.spark import spark_session

    session = spark_session("local[2]", {"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
