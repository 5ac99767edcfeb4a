"""Random faults, one after the other and side by side, each of which ends by itself.

A fault takes hold of a role (a process, or the network of a source) so that no second one undoes the first;
what was killed is started again. The same seed gives the same sequence of faults; when they strike depends on
the run.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc

from lab.soak import bad_input
from lab.soak.deployment import Deployment
from lab.soak.kinds import KINDS
from lab.soak.layout import Source
from lab.soak.proxy import FAIR, Weather

KILLS: Mapping[str, float] = {
    "kill wrapper": 4,
    "kill writer": 3,
    "kill mediator": 1.5,
    "kill source": 3,
    "kill jvm": 1.5,
}
EVERYTHING: Mapping[str, float] = {
    **KILLS,
    "cut": 3,
    "half-open": 1.5,
    "slow network": 1.5,
    "pause wrapper": 2,
    "pause mediator": 1,
    "pause writer": 1,
    "pause source": 1,
    "lock source": 2,
    "bad input": 4,
}
"""Kinds of fault and how often each comes, relative to the others.

`source` is the server that a source is on; one that is made of files has no process but its writer. What a
deployment does not have, a server or a Java process, is left alone.
"""


@dataclass(frozen=True)
class Plan:
    """How faults come: `rate` of them in a second on average, of these kinds, by weight."""

    seed: int
    rate: float
    kinds: Mapping[str, float]


def kills(counts: Mapping[str, int]) -> int:
    """How many of these faults killed something."""
    return sum(number for kind, number in counts.items() if kind.startswith("kill"))


class Injector:
    """Injects faults into a deployment until it is stopped; `counts` tells how many of each kind.

    A fault that cannot be injected, or undone, is an error: `errors` keeps it, and `say` tells it at once.
    """

    def __init__(self, deployment: Deployment, plan: Plan, say: Callable[[str], None]) -> None:
        self._deployment, self._plan, self._say = deployment, plan, say
        self._random = random.Random(plan.seed)
        self.counts: Counter[str] = Counter()
        self.bad_inputs: Counter[str] = Counter()
        self.errors: list[str] = []
        self._held: set[str] = set()
        self._is_down = False
        self._lock = threading.Lock()
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
        names = [kind for kind in self._plan.kinds if targets[kind]]
        weights = [self._plan.kinds[kind] for kind in names]
        while not self._stopped.wait(self._random.expovariate(self._plan.rate)):
            (kind,) = self._random.choices(names, weights)
            source = self._random.choice(targets[kind])
            self._inject(kind, source, self._random.uniform(0.0, 1.0))

    def _targets(self, kind: str) -> Sequence[Source]:
        """The sources that a kind of fault can be about."""
        sources = self._deployment.sources
        if kind == "kill jvm" and self._deployment.settings.engine == "duckdb":
            return ()
        if kind.endswith(" source") and not kind.startswith("lock"):
            return [source for source in sources if KINDS[source.kind].server]
        return sources

    def _inject(self, kind: str, source: Source, strength: float) -> None:
        verb, _, what = kind.partition(" ")
        role = {
            "mediator": "mediator",
            "jvm": "mediator",
            "wrapper": f"wrapper {source.name}",
            "writer": f"writer {source.name}",
            "source": f"server {KINDS[source.kind].server}",
        }
        works: dict[str, tuple[str, Callable[[], None]]] = {
            "kill": (role.get(what, ""), lambda: self._kill(what, role[what], strength)),
            "pause": (role.get(what, ""), lambda: self._pause(role[what], 0.2 + 2.5 * strength)),
            "cut": (f"network {source.name}", lambda: self._cut(source, strength)),
            "half-open": (
                f"network {source.name}",
                lambda: self._weather(source, Weather(silent=True), 0.5 + 4 * strength),
            ),
            "slow": (
                f"network {source.name}",
                lambda: self._weather(
                    source, Weather(delay=0.02 * strength, rate=20_000), 0.5 + 2 * strength
                ),
            ),
            "lock": (f"writer {source.name}", lambda: self._lock_source(source, 0.2 + 2 * strength)),
            "bad": ("", lambda: self._bad_input(source)),
        }
        held, work = works[verb]
        with self._lock:
            # One process at a time is down: else, on a busy machine, nothing would ever be up to be tested.
            if held in self._held or (verb == "kill" and self._is_down):
                return
            if held:
                self._held.add(held)
            self._is_down = self._is_down or verb == "kill"
        self.counts[kind] += 1

        def run() -> None:
            try:
                work()
            except Exception as error:
                reason = str(error).partition("\n")[0]
                self.errors.append(f"{kind} {source.name}: {type(error).__name__}: {reason}")
                self._say(self.errors[-1])
            finally:
                with self._lock:
                    self._held.discard(held)
                    self._is_down = self._is_down and verb != "kill"

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=run, name=kind, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _kill(self, what: str, role: str, strength: float) -> None:
        if what == "jvm":
            self._deployment.kill_jvm()
        else:
            self._deployment.kill(role)
        time.sleep(strength**3)
        self._deployment.start(role)

    def _pause(self, role: str, seconds: float) -> None:
        with self._deployment.stopped(role):
            time.sleep(seconds)

    def _cut(self, source: Source, strength: float) -> None:
        proxy = self._deployment.proxies[source.name]
        if strength > 0.5:
            proxy.weather = Weather(closed=True)
        proxy.cut()
        time.sleep(2 * strength)
        proxy.weather = FAIR

    def _weather(self, source: Source, weather: Weather, seconds: float) -> None:
        proxy = self._deployment.proxies[source.name]
        proxy.weather = weather
        time.sleep(seconds)
        proxy.weather = FAIR

    def _lock_source(self, source: Source, seconds: float) -> None:
        kind = KINDS[source.kind]
        # Its server may be killed meanwhile.
        with suppress(*kind.failures), kind.locked(source):
            time.sleep(seconds)

    def _bad_input(self, source: Source) -> None:
        with self._lock:
            name, attempt = self._random.choice(bad_input.attempts(self._random))
            address = self._random.choice(
                [self._deployment.address, self._deployment.proxies[source.name].target]
            )
        if address:
            self.bad_inputs[name] += 1
            with suppress(OSError, grpc.RpcError, ValueError):
                attempt(address)
