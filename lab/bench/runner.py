"""Runs a plan: every case in fresh sources and fresh processes, checked before it becomes a figure.

The processes are those of a user: wrappers and mediator through the `lockstep` command, writers that know
nothing of Lockstep. The runner itself only looks: at the mediator's status and history, at the memory of the
processes, and at the sources' files for the recompute that the view must equal.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.bench.baseline import Recompute, recompute
from lab.bench.check import check_expected_file, check_versions, check_view
from lab.bench.client import Counters, MediatorClient, VersionRow
from lab.bench.dataset import Dataset, existing_dataset, generated_dataset
from lab.bench.deployment import Deployment
from lab.bench.errors import BenchmarkError
from lab.bench.meter import Meter
from lab.bench.plan import WARM_UP, Plan
from lab.bench.results import Case, Failure, Freshness, Measurement, Mode, Results
from lab.bench.sources import SourceFile, build_sources, copy_sources, read_tables
from lab.bench.streams import read_stream
from lab.bench.workload import VIEW_SQL
from lab.bench.writers import Applied

LOAD_SECONDS = 900.0
"""Time that the view's creation with its initial load gets."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class Stretch:
    """What was seen between the beginning of a measurement and the last version's commit."""

    begin_ns: int
    measured_from: str
    history: list[VersionRow]
    counters: Counters
    meter: Meter
    applied: Applied


class Runner:
    """Runs a plan and tells `report` about each step in one line."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self._plan = plan
        self._report = report
        self._prepared: dict[str, tuple[Dataset, list[SourceFile]]] = {}

    def run(self) -> Results:
        """Everything the plan asks for; what fails is listed instead of measured."""
        measurements: list[Measurement] = []
        freshness: list[Freshness] = []
        failures: list[Failure] = []
        for case in self._plan.cases():
            try:
                measured = self.measure(case)
            except BenchmarkError as error:
                failures.append(Failure(str(case), str(error)))
                self._report(f"{case}: FAILED: {error}")
            else:
                measurements.append(measured)
                self._report(f"{case}: {measured.transactions_per_second:,.0f} transactions/s")
        for sf in self._plan.scale_factors if self._plan.freshness else ():
            for engine in self._plan.engines:
                what = f"SF {sf} {engine} freshness"
                try:
                    samples = self.measure_freshness(sf, engine)
                except BenchmarkError as error:
                    failures.append(Failure(what, str(error)))
                    self._report(f"{what}: FAILED: {error}")
                else:
                    freshness.append(samples)
                    self._report(f"{what}: p50 {samples.p50:,.0f} ms")
        return Results(measurements, freshness, failures)

    def measure(self, case: Case) -> Measurement:
        """The figures of one case; raises BenchmarkError if the run is not right in every respect."""
        dataset, templates = self._prepare(case.sf)
        name = f"sf{case.sf}-{case.engine}-{case.mode}-{case.batch}-{case.repeat}"
        directory = self._fresh_directory(name)
        files = copy_sources(templates, directory / "sources")
        with Deployment(directory, files, case.engine) as deployment:
            deployment.start_wrappers()
            deployment.start_mediator()
            with deployment.client() as client:
                load_seconds = _create_view(client, case.batch)
                deployment.start_writers(dataset.stream(case.transactions), case.transactions)
                if case.mode is Mode.BACKLOG:
                    stretch = self._backlog(deployment, client, case)
                else:
                    stretch = self._live(deployment, client, case)
                deployment.stop_writers()
                recomputed = _check(case.transactions, dataset, files, client, stretch.history)
            measurement = Measurement(
                case=case,
                seconds=(stretch.history[-1].committed_ns - stretch.begin_ns) / 1e9,
                measured_from=stretch.measured_from,
                versions=len(stretch.history),
                batched_versions=sum(row.batched for row in stretch.history),
                view_rows=sum(row.changed_rows for row in stretch.history),
                final_rows=recomputed.view.num_rows,
                batches=stretch.counters.batches,
                queries=stretch.counters.queries,
                compensations=stretch.counters.compensations,
                bytes_received=stretch.counters.bytes_received,
                bytes_sent=stretch.counters.bytes_sent,
                warehouse_bytes=_directory_bytes(deployment.warehouse),
                base_bytes=dataset.base_bytes,
                source_bytes=deployment.source_bytes,
                load_seconds=load_seconds,
                write_seconds=(stretch.applied.last_ns - stretch.applied.first_ns) / 1e9,
                recompute_seconds=recomputed.seconds,
                peak_memory=stretch.meter.peak_memory,
                cpu_seconds=stretch.meter.cpu_seconds,
            )
        self._discard(directory)
        return measurement

    def measure_freshness(self, sf: str, engine: str) -> Freshness:
        """Single transactions at rest, each committed when the version before it has arrived at a client."""
        count = self._plan.freshness + WARM_UP
        dataset, templates = self._prepare(sf)
        directory = self._fresh_directory(f"sf{sf}-{engine}-freshness")
        files = copy_sources(templates, directory / "sources")
        stream = dataset.stream(count)
        milliseconds = []
        with Deployment(directory, files, engine) as deployment:
            deployment.start_wrappers()
            deployment.start_mediator()
            with deployment.client() as client:
                _create_view(client, max_batch=0)
                deployment.start_writers(stream, count)
                first = client.counters().version
                watch = client.watch(first)
                try:
                    for transaction in read_stream(stream, count):
                        committed = deployment.commit_next(transaction.source)
                        arrived_ns = watch.wait_for(first + committed.number, self._plan.stalled)
                        milliseconds.append((arrived_ns - committed.committed_ns) / 1e6)
                finally:
                    watch.close()
                deployment.stop_writers()
                _check(count, dataset, files, client, client.history(after=first))
        self._discard(directory)
        return Freshness(sf, engine, tuple(milliseconds[WARM_UP:]))

    def _backlog(self, deployment: Deployment, client: MediatorClient, case: Case) -> Stretch:
        """All transactions first, then the maintenance.

        Wrappers keep running while the mediator is down, because only a watching wrapper can tell the
        transactions of an SQLite file apart.
        """
        first = client.counters().version
        deployment.stop_mediator()
        deployment.begin_all()
        applied = deployment.await_all()
        deployment.stop_writers()
        ready = deployment.start_mediator()
        with Meter(deployment.pids) as meter:
            counters = client.wait_for_version(first + case.transactions, self._plan.stalled)
        history = _history(client, first)
        early = history[0].committed_ns < ready.at_ns
        return Stretch(
            begin_ns=deployment.mediator_started_ns if early else ready.at_ns,
            measured_from="mediator start" if early else "mediator ready",
            history=history,
            counters=counters,  # counted since the mediator started, so there is nothing to subtract
            meter=meter,
            applied=applied,
        )

    def _live(self, deployment: Deployment, client: MediatorClient, case: Case) -> Stretch:
        """Maintenance beside the writers, which write as fast as their databases allow."""
        before = client.counters()
        with Meter(deployment.pids) as meter:
            deployment.begin_all()
            applied = deployment.await_all()
            after = client.wait_for_version(before.version + case.transactions, self._plan.stalled)
        return Stretch(
            begin_ns=applied.first_ns,
            measured_from="first commit",
            history=_history(client, before.version),
            counters=after.minus(before),
            meter=meter,
            applied=applied,
        )

    def _prepare(self, sf: str) -> tuple[Dataset, list[SourceFile]]:
        if sf not in self._prepared:
            plan = self._plan
            if plan.data is not None:
                dataset = existing_dataset(plan.data, sf)
            else:
                self._report(f"SF {sf}: data and streams")
                dataset = generated_dataset(plan.directory / "data", sf, plan.longest_stream)
            self._report(f"SF {sf}: source databases")
            built = build_sources(dataset, plan.directory / "sources" / f"sf{sf}", {"c": plan.source_c})
            self._prepared[sf] = dataset, built
        return self._prepared[sf]

    def _fresh_directory(self, name: str) -> Path:
        directory = self._plan.directory / "runs" / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        return directory

    def _discard(self, directory: Path) -> None:
        """Only what succeeded is removed: logs of a failed run are evidence."""
        if not self._plan.keep:
            shutil.rmtree(directory, ignore_errors=True)


def _create_view(client: MediatorClient, max_batch: int) -> float:
    begin = time.perf_counter()
    client.create_view(VIEW_SQL, max_batch, LOAD_SECONDS)
    return time.perf_counter() - begin


def _history(client: MediatorClient, after: int) -> list[VersionRow]:
    history = client.history(after)
    if not history:
        raise BenchmarkError("no version was committed")
    return history


def _check(
    transactions: int,
    dataset: Dataset,
    files: list[SourceFile],
    client: MediatorClient,
    history: list[VersionRow],
) -> Recompute:
    """The recomputed view, if every transaction made its version and the view equals it."""
    check_versions(len(history), transactions, sum(row.batched for row in history))
    recomputed = recompute(read_tables(files))
    check_view(client.read_view(), recomputed.view, "its recompute")
    expected = dataset.expected(transactions)
    if expected is not None:
        check_expected_file(recomputed.view, expected)
    return recomputed


def _directory_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
