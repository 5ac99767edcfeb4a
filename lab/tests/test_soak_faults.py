"""Faults of the soak: the same by the same seed, several at once, and in the end everything is up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from lab.soak.deployment import Deployment, Settings, wait_until
from lab.soak.faults import Injector
from lab.soak.kinds import available
from lab.soak.layout import Source, sources_of
from lab.soak.oracle import read_journal
from lab.soak.outages import Hold, Outages
from lab.soak.plan import EVERYTHING, Moment, Plan, moments
from lab.soak.proxy import FAIR

KINDS = ["sqlite-wal", "duckdb-diff", "files-csv"]
PATIENCE = 60.0


def drawn(seed: int, number: int = 400) -> list[Moment]:
    sources = sources_of(KINDS, Path())
    targets: dict[str, tuple[Source, ...]] = dict.fromkeys(EVERYTHING, sources)
    targets["kill jvm"] = ()
    return list(islice(moments(Plan(seed, 2.0, EVERYTHING), targets), number))


def test_the_same_seed_draws_the_same_faults_and_another_one_others() -> None:
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_faults_come_as_often_as_planned_and_some_of_them_together() -> None:
    found = drawn(1)
    faults = [fault for moment in found for fault in moment.faults]
    assert len([moment for moment in found if moment.pause > 10]) > 5
    assert len(faults) / sum(moment.pause for moment in found) == pytest.approx(2.0, rel=0.2)
    assert {fault.kind for fault in faults} == set(EVERYTHING) - {"kill jvm"}
    assert {len(moment.faults) for moment in found} == {1, 2, 3, 4}
    pairs = {
        frozenset((one.kind, other.kind, str(one.source == other.source)))
        for moment in found
        for one in moment.faults
        for other in moment.faults
        if one is not other
    }
    for pair in (
        ("kill wrapper", "False"),
        ("kill wrapper", "kill mediator", "True"),
        ("kill wrapper", "kill source", "True"),
        ("kill wrapper", "kill writer", "False"),
        ("pause wrapper", "cut", "True"),
    ):
        assert frozenset(pair) in pairs


def test_no_two_faults_have_hold_of_the_same_and_not_too_many_processes_are_down() -> None:
    outages = Outages(most_down=2)
    one, two, three = (Hold(f"wrapper {n}", "wrapper", is_down=True) for n in range(3))
    network = Hold("network 0", "network", is_down=False)
    assert outages.begin(one)
    assert not outages.begin(one)
    assert outages.begin(two)
    assert not outages.begin(three)
    assert outages.begin(network)
    outages.end(one)
    assert outages.begin(three)
    overlaps = outages.overlaps
    assert (overlaps.faults, overlaps.most_faults, overlaps.most_down) == (3, 3, 2)
    assert overlaps.pairs == {"wrapper, wrapper": 2, "network, wrapper": 3}


class Pretended(Deployment):
    """Its processes are names that are up or down; `enough` is set when so many were down at once."""

    def __init__(self, settings: Settings, enough: int) -> None:
        super().__init__(settings)
        self.down: set[str] = set()
        self.hurried: set[str] = set()
        self.most_down = 0
        self.crashed = ""
        self.enough = threading.Event()
        self._enough = enough
        self._changing = threading.Lock()

    def hurry(self, source: Source) -> None:
        self.hurried.add(source.name)

    def kill(self, role: str) -> None:
        assert role == "mediator" or role.partition(" ")[2] in self.hurried
        self._go_down(role)

    def start(self, role: str) -> None:
        with self._changing:
            self.down.discard(role)

    @contextmanager
    def stopped(self, role: str) -> Iterator[None]:
        self._go_down(role)
        yield
        self.start(role)

    def has_ended(self, role: str) -> bool:
        return role == self.crashed

    def _go_down(self, role: str) -> None:
        with self._changing:
            assert role not in self.down
            self.down.add(role)
            self.most_down = max(self.most_down, len(self.down))
            if len(self.down) >= self._enough:
                self.enough.set()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Pretended]:
    made = Pretended(Settings(tmp_path, KINDS), enough=3)
    yield made
    for proxy in made.proxies.values():
        proxy.close()


WITHOUT_SOURCES = {kind: weight for kind, weight in EVERYTHING.items() if "source" not in kind}


def test_several_processes_are_down_at_once_and_all_are_up_in_the_end(deployment: Pretended) -> None:
    injector = Injector(deployment, Plan(3, 50.0, WITHOUT_SOURCES, most_down=3), print)
    injector.start()
    assert deployment.enough.wait(PATIENCE)
    injector.stop()
    assert injector.errors == []
    assert deployment.down == set()
    assert all(proxy.weather == FAIR for proxy in deployment.proxies.values())
    assert deployment.most_down == injector.overlaps.most_down == 3
    assert injector.overlaps.faults >= 2


def test_one_at_a_time_if_that_is_asked_for(deployment: Pretended) -> None:
    injector = Injector(deployment, Plan(3, 50.0, WITHOUT_SOURCES, most_down=1), print)
    injector.start()
    assert not deployment.enough.wait(1.0)
    injector.stop()
    assert deployment.most_down == injector.overlaps.most_down == 1


def test_a_process_that_ended_before_it_was_killed_is_an_error(deployment: Pretended) -> None:
    deployment.crashed = "mediator"
    told = threading.Event()
    injector = Injector(deployment, Plan(3, 50.0, {"kill mediator": 1}), lambda _: told.set())
    injector.start()
    assert told.wait(PATIENCE)
    injector.stop()
    assert injector.errors[0] == "mediator ended by itself: "


def test_a_writer_that_is_told_to_hurry_does_not_pause(tmp_path: Path) -> None:
    with Deployment(Settings(tmp_path, ["sqlite-wal"], load=0.001)) as deployment:
        (source,) = deployment.sources
        deployment.start_writer(source)
        assert wait_until(lambda: bool(read_journal(source)), PATIENCE)
        deployment.hurry(source)
        # Some of its transactions are rolled back.
        assert wait_until(lambda: len(read_journal(source)) > 20, PATIENCE)
        deployment.kill(f"writer {source.name}")
        deployment.hurry(source)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql-log", "mariadb-log"])
def test_a_wrapper_that_starts_while_its_source_is_down_comes_up_with_it(tmp_path: Path, kind: str) -> None:
    if reason := available()[1].get(kind):
        pytest.skip(reason)
    with Deployment(Settings(tmp_path, [kind])) as deployment, ThreadPoolExecutor() as pool:
        server, wrapper = f"server {kind.partition('-')[0]}", f"wrapper {deployment.sources[0].name}"
        deployment.kill(server)
        starting = pool.submit(deployment.start, wrapper)
        assert wait_until(lambda: "error: source" in deployment.output(wrapper), PATIENCE)
        assert not starting.done()
        deployment.start(server)
        starting.result(PATIENCE)
        assert not deployment.has_ended(wrapper)
        assert deployment.starts[wrapper] > 1
