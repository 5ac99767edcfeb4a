"""One soak: start everything, inject faults under load, let it come to rest, and check every version."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from lab.soak.deployment import Deployment, Settings, wait_until
from lab.soak.faults import Injector, kills
from lab.soak.layout import View
from lab.soak.oracle import Verdict, check, read_journal
from lab.soak.outages import Overlaps
from lab.soak.plan import Plan
from lab.soak.reader import Reader
from lab.soak.recompute import Bag

REST_SECONDS = 300.0
"""When the faults are over, a view that has not gone on for so long will not catch up any more."""
_SAMPLE_SECONDS = 2.0

Say = Callable[[str], None]


@dataclass
class Report:
    """What a soak did and found."""

    seconds: float = 0.0
    rest_seconds: float = 0.0
    """How long the views took to catch up when the faults were over."""
    check_seconds: float = 0.0
    transactions: dict[str, int] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    overlaps: Overlaps = field(default_factory=Overlaps)
    bad_inputs: Counter[str] = field(default_factory=Counter)
    starts: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    """The version of each view that a reader saw last before the faults were over."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What else went wrong: a process that ended by itself, a view that did not come to rest."""
    memory: dict[str, int] = field(default_factory=dict)

    @property
    def differences(self) -> list[str]:
        return [line for verdict in self.verdicts.values() for line in verdict.differences]

    @property
    def is_right(self) -> bool:
        return not self.differences and not self.problems

    @property
    def kills(self) -> int:
        return kills(self.faults)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "seconds": round(self.seconds, 1),
            "rest_seconds": round(self.rest_seconds, 1),
            "check_seconds": round(self.check_seconds, 1),
            "transactions": self.transactions,
            "transactions_per_second": round(sum(self.transactions.values()) / max(self.seconds, 1e-9), 1),
            "faults": dict(self.faults),
            "kills": self.kills,
            "overlaps": {
                "faults": self.overlaps.faults,
                "most_faults": self.overlaps.most_faults,
                "most_down": self.overlaps.most_down,
                "pairs": dict(self.overlaps.pairs),
            },
            "bad_inputs": dict(self.bad_inputs),
            "starts": self.starts,
            "reached_under_faults": self.reached,
            "versions": {
                name: {
                    "checked": verdict.versions,
                    "exact": verdict.exact,
                    "batched": verdict.batched,
                    "loads": verdict.loads,
                    "joined_anew": verdict.joined_anew,
                    "samples": verdict.samples,
                }
                for name, verdict in self.verdicts.items()
            },
            "differences": self.differences,
            "problems": self.problems,
            "peak_memory_bytes": self.memory,
        }


class Soak:
    """One soak of a deployment. `say` gets a line of progress now and then."""

    def __init__(self, settings: Settings, plan: Plan, say: Say = lambda _: None) -> None:
        self._settings, self._plan, self._say = settings, plan, say

    def run(self, seconds: float, until_kills: int = 0) -> Report:
        """Inject faults for so long, or until so many processes were killed; then check everything."""
        report = Report()
        with Deployment(self._settings) as deployment:
            reader = Reader(deployment)
            deployment.start_all()
            for view in deployment.views:
                reader.patiently(lambda view=view: reader.state(view, 0), REST_SECONDS)  # type: ignore[misc]
            self._say("everything runs, both views are loaded")
            samples: dict[str, dict[int, Bag]] = {view.name: {} for view in deployment.views}
            injector = Injector(deployment, self._plan, self._say)
            began = time.monotonic()
            injector.start()
            while (past := time.monotonic() - began) < seconds:
                if until_kills and kills(injector.counts) >= until_kills:
                    break
                time.sleep(min(_SAMPLE_SECONDS, max(0.0, seconds - past)))
                self._sample(reader, deployment, samples)
                faults = sum(injector.counts.values())
                self._say(f"{past:.0f} of {seconds:.0f} s, {faults} faults, {self._versions(samples)}")
            injector.stop()
            report.seconds = time.monotonic() - began
            report.reached = {name: max(seen, default=0) for name, seen in samples.items()}
            report.problems += injector.errors
            for role in deployment.ended():
                report.problems.append(deployment.last_words(role))
                deployment.start(role)
            deployment.stop_writers()
            self._finish(deployment, reader, samples, report)
            report.faults, report.bad_inputs = injector.counts, injector.bad_inputs
            report.overlaps = injector.overlaps
            report.starts, report.memory = dict(deployment.starts), dict(deployment.memory.peak)
        return report

    def _finish(
        self,
        deployment: Deployment,
        reader: Reader,
        samples: Mapping[str, Mapping[int, Bag]],
        report: Report,
    ) -> None:
        """Wait for rest, and compare every version."""
        began = time.monotonic()
        journals = {source.name: read_journal(source) for source in deployment.sources}
        report.transactions = {name: len(journal) for name, journal in journals.items()}
        total = sum(report.transactions.values())
        self._say(f"the faults are over, {total:,} transactions were made; waiting for the views")
        for view in deployment.views:
            goal = {source.name: len(journals[source.name]) for source in view.sources}
            if not self._comes_to_rest(reader, view, goal):
                status = next(s for s in reader.status().views if s.view == view.name)
                report.problems.append(
                    f"view {view.name} does not come to rest: it is {status.state} at "
                    f"{_vector(reader, view)}, its sources are at {goal}; {status.problem}"
                )
        report.rest_seconds = time.monotonic() - began
        for view in deployment.views:
            newest, state = reader.state(view)
            self._say(f"checking {newest + 1:,} versions of {view.name}")
            verdict = check(
                view,
                journals,
                reader.state(view, 0)[1],
                reader.changes(view, newest),
                {**samples[view.name], newest: state},
            )
            report.verdicts[view.name] = verdict
        report.check_seconds = time.monotonic() - began - report.rest_seconds

    def _comes_to_rest(self, reader: Reader, view: View, goal: Mapping[str, int]) -> bool:
        """Whether a view gets there; however long that takes, as long as it goes on."""
        seen: Mapping[str, int] = {}

        def goes_on() -> bool:
            nonlocal seen
            before, seen = seen, _vector(reader, view) or seen
            return seen != before

        while wait_until(goes_on, REST_SECONDS):
            if seen == goal:
                return True
            behind = sum(goal.values()) - sum(seen.values())
            self._say(f"{view.name} is {behind:,} transactions behind")
        return False

    @staticmethod
    def _sample(reader: Reader, deployment: Deployment, samples: Mapping[str, dict[int, Bag]]) -> None:
        """Note what a reader sees now; nothing while the mediator is away."""
        for view in deployment.views:
            try:
                version, state = reader.state(view)
            except grpc.RpcError:
                continue
            samples[view.name][version] = state

    @staticmethod
    def _versions(samples: Mapping[str, Mapping[int, Bag]]) -> str:
        return ", ".join(f"{name} at version {max(seen, default=0):,}" for name, seen in samples.items())


def _vector(reader: Reader, view: View) -> dict[str, int]:
    try:
        return reader.vector(view)
    except (grpc.RpcError, ValueError):
        return {}
