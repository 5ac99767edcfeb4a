"""Faults under way: several at once, each of which ends by itself, at the latest when no more are wanted.

A fault takes hold of a process, or of the network of a source, so that no second one undoes the first; what
was killed is started again. The same seed gives the same sequence of faults; when they strike depends on the
run, and so does which of them are left out because another has hold of the same.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import grpc

from lab.soak import bad_input
from lab.soak.deployment import Deployment
from lab.soak.kinds import KINDS
from lab.soak.layout import Source
from lab.soak.outages import Hold, Outages
from lab.soak.plan import Fault, Plan, moments
from lab.soak.proxy import FAIR, Weather

_HURRY_SECONDS = 0.2
"""The longest time that a writer hurries before something is killed."""


def kills(counts: Mapping[str, int]) -> int:
    """How many of these faults killed something."""
    return sum(number for kind, number in counts.items() if kind.startswith("kill"))


class Injector:
    """Injects faults into a deployment until it is stopped; `counts` tells how many of each kind.

    A fault that cannot be injected, or undone, is an error, and so is a process that has ended before it was
    killed: `errors` keeps them, and `say` tells them at once.
    """

    def __init__(self, deployment: Deployment, plan: Plan, say: Callable[[str], None]) -> None:
        self._deployment, self._plan, self._say = deployment, plan, say
        self._outages = Outages(plan.most_down)
        self.overlaps = self._outages.overlaps
        self.counts: Counter[str] = Counter()
        self.bad_inputs: Counter[str] = Counter()
        self.errors: list[str] = []
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._main = threading.Thread(target=self._run, name="faults", daemon=True)

    def start(self) -> None:
        self._main.start()

    def stop(self) -> None:
        """No new faults; returns when all are over and everything that was killed runs again."""
        self._stopped.set()
        self._main.join()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        targets = {kind: self._targets(kind) for kind in self._plan.kinds}
        for moment in moments(self._plan, targets):
            if self._stopped.wait(moment.pause):
                return
            for fault in moment.faults:
                self._inject(fault)

    def _targets(self, kind: str) -> Sequence[Source]:
        """The sources that a kind of fault can be about."""
        sources = self._deployment.sources
        if kind == "kill jvm" and self._deployment.settings.engine == "duckdb":
            return ()
        if kind.endswith(" source") and not kind.startswith("lock"):
            return [source for source in sources if KINDS[source.kind].server]
        return sources

    def _inject(self, fault: Fault) -> None:
        hold = _hold(fault)
        if hold is not None and not self._outages.begin(hold):
            return
        self.counts[fault.kind] += 1

        def run() -> None:
            try:
                self._work(fault, hold)
            except Exception as error:
                reason = str(error).partition("\n")[0]
                self._note(f"{fault.kind} {fault.source.name}: {type(error).__name__}: {reason}")
            finally:
                if hold is not None:
                    self._outages.end(hold)

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=run, name=fault.kind, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _note(self, error: str) -> None:
        self.errors.append(error)
        self._say(error)

    def _work(self, fault: Fault, hold: Hold | None) -> None:
        source, strength = fault.source, fault.strength
        if hold is None:
            self._bad_input(fault)
        elif fault.kind.startswith("kill"):
            self._kill(fault, hold.name)
        elif fault.kind.startswith("pause"):
            with self._deployment.stopped(hold.name):
                self._last(0.2 + 2.5 * strength)
        elif fault.kind == "cut":
            self._weather(source, Weather(closed=strength > 0.5), 2 * strength, cut=True)
        elif fault.kind == "half-open":
            self._weather(source, Weather(silent=True), 0.5 + 4 * strength)
        elif fault.kind == "slow network":
            self._weather(source, Weather(delay=0.02 * strength, rate=20_000), 0.5 + 2 * strength)
        else:
            self._lock_source(source, 0.2 + 2 * strength)

    def _last(self, seconds: float) -> None:
        """Wait so long, or until no more faults are wanted."""
        self._stopped.wait(seconds)

    def _kill(self, fault: Fault, role: str) -> None:
        # Most of the time everything rests: what is killed then was in the middle of nothing.
        self._deployment.hurry(fault.source)
        self._last(random.Random(fault.seed).uniform(0.0, _HURRY_SECONDS))
        if self._deployment.has_ended(role):
            self._note(self._deployment.last_words(role))
        elif fault.kind == "kill jvm":
            self._deployment.kill_jvm()
        else:
            self._deployment.kill(role)
        self._last(fault.strength**3)
        self._deployment.start(role)

    def _weather(self, source: Source, weather: Weather, seconds: float, cut: bool = False) -> None:
        proxy = self._deployment.proxies[source.name]
        proxy.weather = weather
        if cut:
            proxy.cut()
        self._last(seconds)
        proxy.weather = FAIR

    def _lock_source(self, source: Source, seconds: float) -> None:
        kind = KINDS[source.kind]
        # Its server may be killed meanwhile.
        with suppress(*kind.failures), kind.locked(source):
            self._last(seconds)

    def _bad_input(self, fault: Fault) -> None:
        chance = random.Random(fault.seed)
        name, attempt = chance.choice(bad_input.attempts(chance))
        known = [self._deployment.address, self._deployment.proxies[fault.source.name].target]
        if there := [address for address in known if address]:
            self.bad_inputs[name] += 1
            with suppress(OSError, grpc.RpcError, ValueError):
                attempt(chance.choice(there))


def _hold(fault: Fault) -> Hold | None:
    """What a fault takes hold of; nothing, if it only sends something."""
    verb, _, what = fault.kind.partition(" ")
    source = fault.source
    if verb == "bad":
        return None
    if verb == "lock":
        # Its writer would wait for the lock, and must be there afterwards to go on.
        return Hold(f"writer {source.name}", "lock", is_down=False)
    if verb not in ("kill", "pause"):
        return Hold(f"network {source.name}", "network", is_down=False)
    if what in ("mediator", "jvm"):
        return Hold("mediator", "mediator", is_down=True)
    if what == "source":
        return Hold(f"server {KINDS[source.kind].server}", "source", is_down=True)
    return Hold(f"{what} {source.name}", what, is_down=True)
