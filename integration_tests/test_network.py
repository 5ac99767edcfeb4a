"""A bad network between mediator and wrappers: cut, silent, slow; and wrappers that move.

Views stay right and readable; what a source did meanwhile becomes versions when it is back.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from adapters.spi import Snapshot
from algebra.arrow_ipc import from_ipc
from algebra.position import Position
from integration_tests.site import ALONE, PATIENCE, VIEW, Site, inside, wait_for
from lab.soak.proxy import FAIR, Weather
from mediator.backoff import Backoff
from mediator.channel import SourceChannel
from mediator.process import MaintenanceProcess
from wrapper import query_processor


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


def health(address: str, service: str = "") -> int:
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        return int(check(health_pb2.HealthCheckRequest(service=service), timeout=30).status)


def test_a_connection_that_is_cut_again_and_again(site: Site) -> None:
    _, client = site.mediator()
    client.create_view("v", VIEW)
    for k in range(10, 30):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, {k % 2 + 1})")
        if k % 4 == 0:
            site.proxies["one"].cut()
        if k % 6 == 0:
            site.proxies["two"].cut()
        site.writers["two"].commit(f"UPDATE s SET y = {k} WHERE x = 1")
    client.wait_for_version("v", 40)
    expected = Counter({(1, 1, 29): 1, (2, 2, 20): 1})
    expected.update((k, k % 2 + 1, (29, 20)[k % 2]) for k in range(10, 30))
    assert client.bag("v") == expected
    assert [v.version for v in client.history("v")] == list(range(40, -1, -1)), "one each, none twice"
    assert from_ipc(client.verify("v").arrow).num_rows == 0


def test_a_half_open_connection_is_noticed_and_other_views_go_on(site: Site) -> None:
    server, client = site.mediator(keepalive_seconds=0.5)
    client.create_view("v", VIEW)
    client.create_view("alone", ALONE)
    site.proxies["two"].weather = Weather(silent=True)
    wait_for(server, lambda mediator: not mediator.channels["two"].connected)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("alone", 1)
    status = {view.view: view for view in client.status().views}
    assert (status["v"].state, list(status["v"].waits_for)) == ("stale", ["two"])
    assert status["alone"].state == "maintained"
    view = client.view("v")
    assert (view.state, list(view.waits_for), view.problem) == ("stale", ["two"], "waits for two")
    heard_at = next(source.heard_at for source in client.status().sources if source.source == "two")
    assert view.stale_since == heard_at, "since it was last heard of, not since that was noticed"
    assert client.status().started_at.ToNanoseconds() < view.stale_since.ToNanoseconds()
    assert client.bag("v") == Counter({(1, 1, 10): 1, (2, 2, 20): 1}), "readable at its last version"
    site.writers["two"].commit("UPDATE s SET y = 11 WHERE x = 1")
    site.proxies["two"].weather = FAIR
    client.wait_for_version("v", 2)
    assert client.bag("v") == Counter({(1, 1, 11): 1, (2, 2, 20): 1, (3, 1, 11): 1})
    view = client.view("v")
    assert (view.state, view.problem, view.HasField("stale_since")) == ("maintained", "", False)


def test_a_source_that_is_there_but_does_not_answer_holds_up_its_own_views_only(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wrapper goes on to be heard of; behind it may be a table that somebody has locked."""
    server, client = site.mediator(late_seconds=0.5)
    client.create_view("v", VIEW)
    client.create_view("alone", ALONE)
    adapter = site.wrappers["two"]._adapter
    snapshot, answers = adapter.snapshot, threading.Event()

    def locked() -> AbstractContextManager[Snapshot]:
        assert answers.wait(PATIENCE)
        return snapshot()

    monkeypatch.setattr(adapter, "snapshot", locked)
    for k in range(3, 6):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
        client.wait_for_version("alone", k - 2)
    assert inside(server).channels["two"].connected
    view = client.view("v")
    assert (view.version, view.state, view.problem) == (0, "stale", "waits for two")
    assert client.status().started_at.ToNanoseconds() < view.stale_since.ToNanoseconds()
    assert client.view("alone").state == "maintained"
    answers.set()
    client.wait_for_version("v", 3)
    assert client.bag("v") == Counter({(1, 1, 10): 1, (2, 2, 20): 1} | {(k, 1, 10): 1 for k in range(3, 6)})
    assert client.view("v").state == "maintained"
    site.writers["one"].commit("DELETE FROM r WHERE k = 3")
    client.wait_for_version("v", 4)
    client.wait_for_version("alone", 4)


def test_a_source_that_is_back_when_its_view_is_given_up_costs_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decided a moment before, and the source may answer in between."""
    given_up: list[str] = []
    give_up = MaintenanceProcess.give_up

    def noted(process: MaintenanceProcess) -> None:
        give_up(process)
        given_up.append(process.view.name)

    monkeypatch.setattr(MaintenanceProcess, "is_overdue", property(lambda process: process.is_asking))
    monkeypatch.setattr(MaintenanceProcess, "give_up", noted)
    _, client = site.mediator()
    client.create_view("v", VIEW)
    site.proxies["two"].weather = Weather(delay=0.2)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("v", 1)
    assert given_up
    assert client.view("v").state == "maintained"
    assert client.bag("v") == Counter({(1, 1, 10): 1, (2, 2, 20): 1, (3, 1, 10): 1})


def test_a_slow_network_is_only_slow(site: Site) -> None:
    _, client = site.mediator()
    client.create_view("v", VIEW)
    for proxy in site.proxies.values():
        proxy.weather = Weather(delay=0.01, rate=50_000)
    for k in range(10, 20):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
    client.wait_for_version("v", 10)
    assert client.bag("v").total() == 12


def test_a_wrapper_that_moves_goes_on_where_the_view_is(site: Site) -> None:
    """It holds nothing that matters: stopped here, started there, and nothing is lost or repeated."""
    _, client = site.mediator()
    client.create_view("v", VIEW)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("v", 1)
    before = site.proxies["one"].target
    site.wrappers["one"].stop(0)
    site.writers["one"].commit("INSERT INTO r VALUES (4, 1)")
    site.start_wrapper("one")
    assert site.proxies["one"].target != before
    site.writers["one"].commit("DELETE FROM r WHERE k = 3")
    client.wait_for_version("v", 3)
    assert client.bag("v") == Counter({(1, 1, 10): 1, (2, 2, 20): 1, (4, 1, 10): 1})


def test_history_is_trimmed_at_the_source_only_after_the_commit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = site.mediator()
    client.create_view("v", VIEW)
    writer = site.writers["one"]
    acknowledged: list[tuple[Position, Position]] = []
    acknowledge = SourceChannel.acknowledge

    def noted(channel: SourceChannel, position: Position) -> None:
        if channel.source == "one":
            acknowledged.append((position, inside(server).warehouse.vector("v")["one"]))
        acknowledge(channel, position)

    monkeypatch.setattr(SourceChannel, "acknowledge", noted)
    with inside(server).views["v"].installing:  # nothing can be committed
        for k in range(4, 4 + 1100):  # more than trimming waits for
            writer.commit(f"INSERT INTO r VALUES ({k}, 3)")
        wait_for(server, lambda mediator: len(mediator.views["v"].queue) == 1100)
        assert writer.rows("SELECT value FROM _lockstep_meta WHERE name = 'trimmed'") == [[0]]
    client.wait_for_version("v", 1100)
    wait_for(
        server,
        lambda _: writer.rows("SELECT value FROM _lockstep_meta WHERE name = 'trimmed'")[0][0] > 0,
    )
    [[trimmed]] = writer.rows("SELECT value FROM _lockstep_meta WHERE name = 'trimmed'")
    assert trimmed <= inside(server).warehouse.vector("v")["one"].ordinal
    assert acknowledged
    assert all(position <= committed for position, committed in acknowledged)


def test_health_tells_whether_the_source_answers(site: Site) -> None:
    server, _ = site.mediator()
    address = site.proxies["one"].target
    wait_for(server, lambda _: health(address) == health_pb2.HealthCheckResponse.SERVING)
    assert health(address, "lockstep.v1.WrapperService") == health_pb2.HealthCheckResponse.SERVING
    path = site.directory / "one.db"
    path.rename(site.directory / "moved.db")
    wait_for(server, lambda _: health(address) == health_pb2.HealthCheckResponse.NOT_SERVING)
    assert health(address, "lockstep.v1.WrapperService") == health_pb2.HealthCheckResponse.NOT_SERVING
    wait_for(server, lambda mediator: mediator.channels["one"].state == "unavailable")
    assert "one.db" in inside(server).channels["one"].problem
    (site.directory / "moved.db").rename(path)
    wait_for(server, lambda _: health(address) == health_pb2.HealthCheckResponse.SERVING)
    wait_for(server, lambda mediator: mediator.channels["one"].connected)


def test_pauses_between_attempts_grow_and_vary() -> None:
    chance = iter([0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0])
    pauses = Backoff(0.2, 5.0, uniform=lambda: next(chance))
    assert [pauses.next() for _ in range(6)] == [0.2, 0.4 * 0.75, 0.8 * 0.5, 1.6, 3.2, 5.0]
    pauses.reset()
    assert pauses.next() == 0.2


def test_health_tells_also_that_a_source_says_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to it may be half-open: then no error comes, and no answer."""
    server, _ = site.mediator()
    address, wrapper = site.proxies["one"].target, site.wrappers["one"]
    wait_for(server, lambda _: health(address) == health_pb2.HealthCheckResponse.SERVING)
    snapshot = wrapper._adapter.snapshot
    answers = threading.Event()

    def silent() -> AbstractContextManager[Snapshot]:
        assert answers.wait(PATIENCE)
        return snapshot()

    monkeypatch.setattr(query_processor, "OVERDUE_SECONDS", 2.0)
    monkeypatch.setattr(wrapper._adapter, "snapshot", silent)
    wait_for(server, lambda _: health(address) == health_pb2.HealthCheckResponse.NOT_SERVING)
    assert not wrapper._processor.reachable
    answers.set()
    wait_for(server, lambda _: health(address) == health_pb2.HealthCheckResponse.SERVING)
