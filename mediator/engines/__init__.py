"""Engines a mediator can join with: Spark, embedded DuckDB, or whichever suits the size."""

from __future__ import annotations

from algebra.engines.contract import Engine
from algebra.engines.embedded import EmbeddedEngine
from algebra.errors import ConfigurationError
from mediator.config import MediatorConfig

NAMES = ("spark", "duckdb", "auto")


def create_engine(config: MediatorConfig) -> Engine:
    """The engine a mediator is configured for, warm: the first join is not slower than the next."""
    embedded = EmbeddedEngine(memory_limit=config.embedded_memory)
    if config.engine == "duckdb":
        return embedded
    if config.engine not in NAMES:
        raise ConfigurationError(f"unknown engine {config.engine!r}; there are: {', '.join(NAMES)}")
    # PySpark is imported only where it is used: the embedded engine needs no Java.
    from mediator.engines.auto import AutoEngine
    from mediator.engines.spark import SparkEngine, active_session, spark_session

    running = active_session()
    session = running or spark_session(config.spark_master, config.spark_conf, config.spark_secrets)
    spark = SparkEngine(session, embedded, owns_session=running is None)
    return spark if config.engine == "spark" else AutoEngine(embedded, spark)
