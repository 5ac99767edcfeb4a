"""`kill -9` of wrappers, writers and the mediator at random moments under load, on every capture style.

Every version must equal the recompute at its vector, versions must have no gap, and no transaction may be
missing at the end.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from integration_tests.site import PATIENCE
from lab.soak.deployment import Deployment, Settings, wait_until
from lab.soak.faults import KILLS, Plan
from lab.soak.kinds import KINDS
from lab.soak.oracle import check, read_journal
from lab.soak.reader import Reader
from lab.soak.run import Soak


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_at_random_moments(tmp_path: Path) -> None:
    settings = Settings(tmp_path, list(KINDS), seed=7)
    report = Soak(settings, Plan(seed=7, rate=1.5, kinds=KILLS), print).run(seconds=300, until_kills=16)
    assert report.is_right, report.as_dict()
    assert report.kills >= 16
    assert all(verdict.versions > 1 for verdict in report.verdicts.values())
    assert all(count > 0 for count in report.transactions.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.spark
def test_the_jvm_of_spark_is_killed(tmp_path: Path) -> None:
    """The mediator cannot go on without it: it ends, is started again, and goes on from its last version."""
    with Deployment(
        Settings(tmp_path, ["sqlite-wal", "duckdb-trigger"], engine="spark", load=4)
    ) as deployment:
        view = deployment.views[0]
        reader = Reader(deployment)
        deployment.start_all()
        reader.patiently(lambda: reader.state(view, 0), 2 * PATIENCE)
        mediator = deployment.processes["mediator"]
        (jvm,) = [p for p in psutil.Process(mediator.pid).children() if "java" in p.name()]
        jvm.send_signal(signal.SIGKILL)
        assert wait_until(lambda: mediator.ended, PATIENCE), deployment.output("mediator")
        assert "the Java process of Spark has ended" in deployment.output("mediator")
        deployment.start("mediator")
        deployment.stop_writers()
        journals = {source.name: read_journal(source) for source in deployment.sources}
        goal = {name: len(journal) for name, journal in journals.items()}
        assert wait_until(lambda: reader.vector(view) == goal, 2 * PATIENCE)
        newest, _ = reader.state(view)
        verdict = check(view, journals, reader.state(view, 0)[1], reader.changes(view, newest), {})
        assert verdict.differences == []
