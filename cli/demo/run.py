"""The demo from its first file to its last comparison."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import yaml
from rich.console import Console
from rich.text import Text

from algebra.errors import LockstepError
from cli import text
from cli.children import Child, Family
from cli.client import MediatorClient
from cli.commands.servers import START_TIMEOUT, mediator_arguments, wrapper_arguments
from cli.commands.views import create_view, verify_view
from cli.config_model import Engine
from cli.demo import journal, oracle, writer
from cli.demo.follower import Follower, state_as_of
from cli.demo.layout import SOURCES, VIEW, VIEW_SQL
from cli.demo.model import Tables
from cli.demo.screen import Moment, screen
from cli.output import table
from protos.lockstep.v1 import mediator_pb2 as pb
from protos.security.settings import PLAIN

_STALLED = 90.0
"""Seconds without a new version, after the writers have stopped, until the view is called stuck."""
_SHARES = {"shop": 0.45, "crm": 0.4, "supply": 0.15}
_TAIL = 15


@dataclass(frozen=True)
class Plan:
    """How the demo runs; 0 seconds or transactions means no such limit."""

    folder: Path
    engine: Engine
    seconds: float
    transactions: int
    seed: int
    arguments: Sequence[str]
    """Global options for the child processes."""


class Demo:
    """One run of the demo in its folder."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._started = time.monotonic()
        self._file = plan.folder / "lockstep.yaml"
        self._logs = Logs(plan.folder / "logs")
        self._journals = {name: source.journal(plan.folder) for name, source in SOURCES.items()}

    def run(self) -> bool:
        """Run everything; True if the view was right at every version."""
        self._create_sources()
        try:
            with Family(self._logs.append) as family:
                return self._run(family)
        except LockstepError:
            for line in self._logs.tail():
                self._console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
            raise

    def _run(self, family: Family) -> bool:
        address = self._start(family)
        with MediatorClient(address, connection=PLAIN) as mediator:
            view = create_view(mediator, pb.ViewSpec(name=VIEW, sql=VIEW_SQL))
            self._say(f"view {VIEW} joins six tables of three databases: {text.count(view.rows, 'row')}")
            with closing(Follower(address)) as follower:
                streamed = self._stream(family, mediator, follower)
            report = self._check(follower)
            self._check_sources(report)
            self._check_as_of(mediator, follower, report)
            _, wrong = verify_view(mediator, VIEW)
            report.problems += [f"verify: {line}" for line in map(str, wrong.slice(0, 5).to_pylist())]
            self._say(f"lockstep view verify {VIEW}: {text.count(wrong.num_rows, 'difference')}")
            status = mediator.call(mediator.stub.GetStatus, pb.GetStatusRequest())
        self._summary(report, next(v for v in status.views if v.view == VIEW), streamed)
        return not report.problems

    def _create_sources(self) -> None:
        for source in SOURCES.values():
            writer.create(source, self._plan.folder, self._plan.seed)
        document = {
            "mediator": {"warehouse": "./warehouse", "engine": self._plan.engine.value},
            "sources": {
                source.name: {
                    "adapter": source.adapter,
                    "url": f"{source.adapter}:///{source.file}",
                    "relations": [table.name for table in source.tables],
                }
                for source in SOURCES.values()
            },
        }
        self._file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        self._say("created shop (SQLite), crm (SQLite) and supply (DuckDB), two tables each")

    def _start(self, family: Family) -> str:
        common = self._plan.arguments
        children: dict[str, Child] = {}
        for name in SOURCES:
            children[name] = family.start(f"wrapper {name}", wrapper_arguments(self._file, common, name))
        wrappers = {name: child.wait_ready(START_TIMEOUT) for name, child in children.items()}
        self._say("three wrappers are up, a process each")
        arguments = mediator_arguments(self._file, common, wrappers, self._plan.engine)
        # Explicit, so that settings of the environment do not reach into the demo.
        own = ["--listen", "127.0.0.1:0", "--warehouse", str(self._plan.folder / "warehouse")]
        address = family.start("mediator", [*arguments, *own]).wait_ready(START_TIMEOUT)
        self._say(f"the mediator is up on {address}, joining in {self._plan.engine.value}")
        return address

    def _stream(self, family: Family, mediator: MediatorClient, follower: Follower) -> float:
        """Let the writers write while the view follows; returns how long they wrote."""
        begun = time.monotonic()
        self._say("a writer process per database: inserts, updates, deletes, rollbacks, many tables at once")
        counters = {name: journal.Counter(path) for name, path in self._journals.items()}
        with self._writers() as writers, screen(self._console) as display:
            written, seen, progressed = 0.0, 0, begun
            while True:
                time.sleep(0.2)
                family.check()
                if follower.problem is not None:
                    raise follower.problem
                committed = {name: counter.transactions() for name, counter in counters.items()}
                display.show(self._moment(mediator, follower, committed, time.monotonic() - begun))
                if any(process.poll() is None for process in writers.values()):
                    continue
                _check_exits(writers)
                written = written or time.monotonic() - begun
                committed = {name: counter.transactions() for name, counter in counters.items()}
                if follower.ticket == committed:
                    break
                if len(follower.changes) > seen:
                    seen, progressed = len(follower.changes), time.monotonic()
                if time.monotonic() - max(progressed, begun + written) > _STALLED:
                    self._say("the view does not catch up")  # the check will tell what is missing
                    return written
        total = sum(committed.values())
        self._say(
            f"{text.number(total)} transactions written in {written:.0f} s, all of them visible "
            f"{text.seconds(time.monotonic() - begun - written)} later"
        )
        return written

    def _moment(
        self, mediator: MediatorClient, follower: Follower, committed: dict[str, int], seconds: float
    ) -> Moment:
        newest = follower.newest
        now = follower.ticket or dict.fromkeys(SOURCES, 0)
        status = mediator.call(mediator.stub.GetStatus, pb.GetStatusRequest())
        view = next(view for view in status.views if view.view == VIEW)
        if view.state == "paused":
            raise LockstepError(f"view {VIEW} is paused: {view.problem}")
        return Moment(
            seconds=seconds,
            committed=committed,
            shown=now,
            positions={source.source: source.position.ordinal for source in status.sources},
            version=newest.version if newest else 0,
            rows=follower.rows,
            lag=view.lag_seconds if newest else None,
            changes=follower.changes[-12:],
        )

    @contextmanager
    def _writers(self) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
        writers: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name in SOURCES:
                share = (
                    max(round(self._plan.transactions * _SHARES[name]), 1) if self._plan.transactions else 0
                )
                limits = [str(self._plan.seconds), str(share)]
                words = [name, str(self._plan.folder), str(self._plan.seed), *limits]
                with self._logs.open(f"writer {name}") as log:
                    writers[name] = subprocess.Popen(
                        [sys.executable, "-P", "-m", "cli.demo.writer", *words],
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
            yield writers
        finally:
            for process in writers.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                process.wait()

    def _check(self, follower: Follower) -> oracle.Report:
        """Every version against the journals."""
        entries = {name: list(journal.read(path)) for name, path in self._journals.items()}
        report = oracle.Report()
        with self._console.status("comparing every version") if self._console.is_terminal else _nothing():
            for current in oracle.check(follower.initial, list(follower.changes), entries):
                report = current
        self._say(
            f"{text.count(report.versions, 'version')} compared with a recompute from the writers' journals: "
            f"{report.exact} of one transaction, {report.batched} of several, "
            f"{text.count(len(report.problems), 'problem')}"
        )
        return report

    def _check_sources(self, report: oracle.Report) -> None:
        """The journals themselves must be what the databases hold."""
        for source in SOURCES.values():
            tables = Tables(source)
            for entry in journal.read(self._journals[source.name]):
                tables.apply(entry.changes)
            base = writer.database(source, self._plan.folder)
            with base.session() as connection:
                for item in source.tables:
                    rows = connection.execute(f"SELECT * FROM {item.name}").fetchall()
                    if {tuple(row) for row in rows} != set(tables[item.name].values()):
                        report.problems.append(f"the journal of {source.name}.{item.name} is not its table")

    def _check_as_of(self, mediator: MediatorClient, follower: Follower, report: oracle.Report) -> None:
        """Some versions read by query must be what the change stream adds up to."""
        state: oracle.Bag = Counter(follower.initial)
        step = max(len(follower.changes) // 5, 1)
        asked = 0
        for at, change in enumerate(follower.changes, start=1):
            oracle.add(state, change.rows)
            if at % step == 0:
                asked += 1
                if state_as_of(mediator, change.version) != state:
                    report.problems.append(f"the query as of version {change.version} has other rows")
        self._say(f"{asked} versions read back with --as-of")

    def _summary(self, report: oracle.Report, status: pb.ViewStatus, streamed: float) -> None:
        per = status.queries / status.transactions if status.transactions else 0.0
        rows = [
            ("transactions", text.number(report.transactions)),
            ("versions compared", text.number(report.versions)),
            ("  of exactly one transaction", text.number(report.exact)),
            ("  of several (batched by the source)", text.number(report.batched)),
            ("answers compensated", text.number(status.compensations)),
            ("sweeps", text.number(status.batches)),
            ("maintenance queries per transaction", f"{per:.2f}"),
            ("commit to visible, p50", text.seconds(_quantile(report.lags, 0.50))),
            ("commit to visible, p99", text.seconds(_quantile(report.lags, 0.99))),
            ("transactions per second", f"{report.transactions / max(streamed, 0.001):.0f}"),
            ("differences", text.number(len(report.problems))),
            ("seconds, all in all", f"{time.monotonic() - self._started:.0f}"),
        ]
        self._console.print(table(("", "order_book"), rows, right=("order_book",)))
        for problem in report.problems[:20]:
            self._console.print(Text(f"  {problem}", style="red"), soft_wrap=True)
        if not report.problems:
            self._console.print(Text("the view was right at every version", style="bold green"))

    def _say(self, line: str) -> None:
        self._console.print(Text(f"[{time.monotonic() - self._started:5.1f} s] {line}"), soft_wrap=True)


class Logs:
    """The children's output, a file each; the newest lines are kept for when something goes wrong."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._newest: deque[str] = deque(maxlen=_TAIL)
        self._lock = threading.Lock()

    def append(self, name: str, line: str) -> None:
        with self._lock:
            self._newest.append(f"{name} | {line}")
            with (self._folder / f"{name.replace(' ', '-')}.log").open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def open(self, name: str) -> BinaryIO:
        """A file for a process that writes it itself."""
        return (self._folder / f"{name.replace(' ', '-')}.log").open("wb")

    def tail(self) -> list[str]:
        """The newest lines of all children."""
        with self._lock:
            return list(self._newest)


def _check_exits(writers: dict[str, subprocess.Popen[bytes]]) -> None:
    for name, process in writers.items():
        if process.returncode:
            raise LockstepError(
                f"the writer of {name} ended with exit code {process.returncode}; see its log"
            )


def _quantile(values: list[float], share: float) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


@contextmanager
def _nothing() -> Iterator[None]:
    yield
