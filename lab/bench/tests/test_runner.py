"""The benchmark end to end: real processes on tiny tables, and nothing wrong is ever reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench.errors import BenchmarkError
from lab.bench.plan import Plan
from lab.bench.results import Failure, Measurement, Mode
from lab.bench.runner import Runner
from lab.bench.streams import transactions, write_stream
from lab.bench.tests.tiny import tiny_base, tiny_dataset

pytest.importorskip("deltalake", reason="needs the mediator extra")


@pytest.mark.slow
def test_a_backlog_and_single_transactions_are_measured_and_checked(tmp_path: Path) -> None:
    plan = Plan(
        tmp_path / "work",
        scale_factors=("tiny",),
        engines=("duckdb",),
        modes=(Mode.BACKLOG,),
        batches=(10,),
        transactions=25,
        freshness=2,
        data=_data(tmp_path),
        stalled=60,
    )
    results = Runner(plan, lambda _: None).run()
    assert results.failures == []
    (measured,) = results.measurements
    assert (measured.versions, measured.batched_versions) == (25, 0)
    assert measured.measured_from == "mediator ready"
    assert measured.batches >= 3
    assert measured.queries > 0
    assert measured.bytes_received > 0
    assert measured.warehouse_bytes > 0
    assert {"mediator", "wrapper a", "wrapper b", "wrapper c", "total"} <= set(measured.peak_memory)
    (fresh,) = results.freshness
    assert len(fresh.milliseconds) == 2
    assert min(fresh.milliseconds) > 0
    assert not list((tmp_path / "work" / "runs").iterdir())


def test_a_wrong_view_is_a_failure_without_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(*_: object) -> Measurement:
        raise BenchmarkError("the view differs")

    monkeypatch.setattr(Runner, "measure", differs)
    plan = Plan(tmp_path, ("tiny",), ("duckdb",), (Mode.LIVE,), (10,), transactions=10, freshness=0)
    told: list[str] = []
    results = Runner(plan, told.append).run()
    assert results.measurements == []
    assert results.failures == [Failure("SF tiny duckdb live batch 10, 10 transactions", "the view differs")]
    assert told == ["SF tiny duckdb live batch 10, 10 transactions: FAILED: the view differs"]


def _data(directory: Path) -> Path:
    dataset = tiny_dataset(directory / "sftiny")
    write_stream(dataset.directory / "k25.jsonl", transactions(tiny_base(), 25, 7))
    return directory
