"""The rate limit: over time the rate is kept, and nobody waits inside a snapshot."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from adapters.conformance import Insert, Transaction
from adapters.conformance.queries import table, whole
from adapters.duckdb.tests.harnesses import DuckDBHarness
from adapters.rate_limit import Footprint, RateLimit
from adapters.registry import create
from adapters.spi import SourceConfig
from adapters.sqlite.tests.harnesses import SqliteHarness
from algebra.errors import ConfigurationError


class Time:
    """A clock that only moves by waiting."""

    def __init__(self) -> None:
        self.now = 100.0

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


def limit(per_second: float) -> tuple[RateLimit, Time]:
    time = Time()
    return RateLimit(per_second, clock=lambda: time.now, wait=time.wait), time


def test_a_burst_of_one_second_is_free_and_then_the_rate_is_kept() -> None:
    bucket, time = limit(5)
    for _ in range(5):
        bucket.pause()
        bucket.spend()
    assert time.now == 100.0
    for _ in range(50):
        bucket.pause()
        bucket.spend()
    assert time.now == pytest.approx(110.0)


def test_debt_is_paid_before_the_next_snapshot_and_not_inside_one() -> None:
    bucket, time = limit(2)
    bucket.pause()
    for _ in range(22):
        bucket.spend()
    assert time.now == 100.0
    assert bucket.delay == pytest.approx(10.5)
    bucket.pause()
    assert time.now == pytest.approx(110.5)


def test_idle_time_saves_no_more_than_one_second() -> None:
    bucket, time = limit(4)
    time.now += 3600
    bucket.spend(4)
    assert bucket.delay == pytest.approx(0.25)


def test_less_than_one_a_second() -> None:
    bucket, time = limit(0.5)
    for _ in range(3):
        bucket.pause()
        bucket.spend()
    assert time.now == pytest.approx(104.0)


def test_without_a_limit_nothing_waits() -> None:
    bucket, time = limit(0)
    bucket.spend(1_000_000)
    bucket.pause()
    assert time.now == 100.0


def test_close_ends_a_pause() -> None:
    bucket = RateLimit(0.001)
    bucket.spend(10)
    paused = threading.Thread(target=bucket.pause, daemon=True)
    paused.start()
    bucket.close()
    paused.join(30)
    assert not paused.is_alive()


@pytest.mark.parametrize("options", [{"rate_limit": -1}, {"statement_timeout": "1s"}, {"rate_limit": True}])
def test_values_that_are_no_numbers_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=f"option {next(iter(options))} is"):
        Footprint.of(SourceConfig("shop", "x", "x", options=options))
    assert Footprint.of(SourceConfig("shop", "x", "x")) == Footprint(300.0, 0.0)


@pytest.mark.parametrize(
    ("harness", "adapter", "url"),
    [(SqliteHarness, "sqlite", "shop.db"), (DuckDBHarness, "duckdb", "shop.duckdb")],
)
def test_a_file_source_keeps_the_limit(
    harness: type[SqliteHarness | DuckDBHarness], adapter: str, url: str, tmp_path: Path
) -> None:
    import pyarrow as pa

    source = harness(tmp_path)
    source.create([table("item", {"id": pa.int64()})])
    with closing(source.writer(0)) as writer:
        writer.run([Transaction((Insert("item", ((1,),)),))])
    config = SourceConfig("shop", adapter, f"{adapter}:///{tmp_path / url}", options={"rate_limit": 3})
    with closing(create(config)) as limited:
        time = Time()
        limited._limit = RateLimit(3, clock=lambda: time.now, wait=time.wait)  # type: ignore[attr-defined]
        query = whole(limited.catalog(), "item")
        with limited.snapshot() as snapshot:
            for _ in range(9):
                assert snapshot.fetch(query).read_all().num_rows == 1
        assert time.now == 100.0
        with limited.snapshot():
            assert time.now == pytest.approx(100 + 7 / 3)
        assert limited.missing_rights(["item"]) == []
