"""`kill -9` of wrappers, writers, the mediator, its JVM and sources at random moments, on every capture.

Every version must equal the recompute at its vector, versions must have no gap, and no transaction may be
missing at the end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from integration_tests.site import PATIENCE
from lab.soak.deployment import Deployment, Settings, wait_until
from lab.soak.kinds import KINDS, available
from lab.soak.oracle import check, read_journal
from lab.soak.plan import KILLS, Plan
from lab.soak.reader import Reader
from lab.soak.run import Soak


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_at_random_moments(tmp_path: Path) -> None:
    """Sources made of files: their processes are the wrapper and the writer."""
    settings = Settings(tmp_path, [name for name in available()[0] if not KINDS[name].server], seed=7)
    report = Soak(settings, Plan(seed=7, rate=1.5, kinds=KILLS), print).run(seconds=300, until_kills=16)
    assert [*report.differences, *report.problems] == []
    assert report.kills >= 16
    assert all(verdict.versions > 1 for verdict in report.verdicts.values())
    assert all(count > 0 for count in report.transactions.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_servers_are_killed_at_random_moments(tmp_path: Path) -> None:
    """A database server dies with all its connections and recovers; the wrappers and writers go on."""
    usable, absent = available()
    kinds = [name for name in usable if KINDS[name].server]
    if not kinds:
        pytest.skip("; ".join(absent.values()))
    plan = Plan(seed=5, rate=1.5, kinds={**KILLS, "kill source": 8, "pause source": 2})
    report = Soak(Settings(tmp_path, kinds, seed=5), plan, print).run(seconds=300, until_kills=12)
    assert [*report.differences, *report.problems] == []
    assert report.kills >= 12
    assert report.faults["kill source"] > 1
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
        deployment.kill_jvm()  # the mediator ends by itself, and says why
        deployment.stop_writers()
        deployment.start("mediator")
        journals = {source.name: read_journal(source) for source in deployment.sources}
        goal = {name: len(journal) for name, journal in journals.items()}
        assert wait_until(lambda: reader.vector(view) == goal, 2 * PATIENCE)
        newest, _ = reader.state(view)
        verdict = check(view, journals, reader.state(view, 0)[1], reader.changes(view, newest), {})
        assert verdict.differences == []
