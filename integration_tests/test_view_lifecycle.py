"""Views that are made, read anew, taken up and dropped while something else happens, or breaks half-way."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

from algebra.arrow_ipc import from_ipc
from algebra.decompose import Decomposition
from algebra.errors import INTERNAL_ERROR, NotFoundError, PositionTrimmedError, SourceUnavailableError
from integration_tests.site import ALONE, PATIENCE, VIEW, Site, inside, wait_for
from lab.soak.proxy import FAIR, Weather
from mediator.acknowledgements import Acknowledgements
from mediator.config import ViewSpecConfig
from mediator.maintainer import Maintainer
from mediator.mediator import Mediator
from mediator.service import MediatorService
from mediator.state import MediatorState
from mediator.views import MaintainedView, spec_from_json
from protos.lockstep.v1 import mediator_pb2 as pb
from wrapper.service import WrapperService

OTHER = "SELECT r.x FROM one.r AS r"
APART = "SELECT s.x, s.y FROM two.s AS s"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


def breaks_after_commit(mediator: Mediator) -> None:
    """The next commit that is not of the maintenance thread happens, and then its disk fails."""
    left = [1]

    def fault(step: str) -> None:
        if step == "after versions.commit" and left and threading.current_thread().name != "maintenance":
            left.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    mediator.warehouse._store.steps._fault = fault


def is_at_rest(*rows: tuple[int, int]) -> Callable[[Mediator], bool]:
    """Whether view v shows these rows of relation r beside those that it began with."""

    def at_rest(mediator: Mediator) -> bool:
        shown = mediator.warehouse.read("v", mediator.warehouse.newest("v").version).read_all()
        found = {(row["k"], row["x"]) for row in shown.to_pylist()}
        return found == {(1, 1), (2, 2), *rows}

    return at_rest


def test_a_view_whose_making_failed_after_its_commit_is_kept(site: Site) -> None:
    server, client = site.mediator()
    breaks_after_commit(inside(server))
    with pytest.raises(grpc.RpcError, match="the disk reports errors"):
        client.create_view("v", ALONE)
    wait_for(server, lambda mediator: "v" in mediator.views)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")
    client.wait_for_version("v", 1)
    assert client.bag("v") == Counter({(1, 1): 1, (2, 2): 1, (3, 3): 1})


def test_a_refresh_of_a_paused_view_that_failed_after_its_commit_can_be_repeated(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("v", ALONE)
    mediator = inside(server)
    mediator._state.pause(mediator.views["v"], PositionTrimmedError("lost, for a test"))
    site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")
    breaks_after_commit(mediator)
    with pytest.raises(grpc.RpcError, match="the disk reports errors"):
        client.refresh("v")
    client.refresh("v")
    site.writers["one"].commit("INSERT INTO r VALUES (4, 4)")
    wait_for(server, is_at_rest((3, 3), (4, 4)))
    assert client.view("v").state == "maintained"


def test_a_refresh_of_a_kept_view_that_failed_after_its_commit_stops_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its one version took the place of several transactions, which are queued under other numbers."""
    server, client = site.mediator()
    client.create_view("v", ALONE)
    client.create_view("w", OTHER)
    mediator = inside(server)
    recomputed = mediator._recomputer._recomputed
    writer = site.writers["one"]

    @contextmanager
    def busy(*given: Any, **named: Any) -> Iterator[Any]:
        writer.commit("INSERT INTO r VALUES (4, 4)")
        writer.commit("INSERT INTO r VALUES (5, 5)")
        with recomputed(*given, **named) as found:
            writer.commit("INSERT INTO r VALUES (6, 6)")
            wait_for(server, lambda m: len(m.views["v"].queue) == 3)
            yield found

    monkeypatch.setattr(mediator._recomputer, "_recomputed", busy)
    breaks_after_commit(mediator)
    with pytest.raises(grpc.RpcError, match="the disk reports errors"):
        client.refresh("v")
    writer.commit("INSERT INTO r VALUES (9, 9)")
    wait_for(server, is_at_rest((4, 4), (5, 5), (6, 6), (9, 9)))
    client.wait_for_version("w", 4)
    wait_for(server, lambda m: not m.storage_problem[0])
    monkeypatch.undo()
    assert from_ipc(client.verify("v").arrow).num_rows == 0


def test_a_paused_view_that_is_refreshed_is_followed_by_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maintenance thread looks at the view in the moment in which it is neither paused nor followed."""
    server, client = site.mediator()
    client.create_view("v", VIEW)
    mediator = inside(server)
    view = mediator.views["v"]
    mediator._state.pause(view, PositionTrimmedError("lost, for a test"))
    wait_for(server, lambda _: view.parked)
    follow = MediatorState.follow
    followers: list[str] = []

    def late(self: MediatorState, followed: MaintainedView) -> None:
        followers.append(threading.current_thread().name)
        if threading.current_thread().name != "maintenance":
            for _ in range(3):  # the maintenance thread has every chance
                with self.changed:
                    self.changed.notify_all()
                    self.changed.wait(0.2)
        follow(self, followed)

    monkeypatch.setattr(MediatorState, "follow", late)
    client.refresh("v")
    assert "maintenance" not in followers
    assert len(followers) == 1
    refreshed = client.view("v").version
    site.writers["two"].commit("INSERT INTO s VALUES (1, 11)")
    site.writers["one"].commit("INSERT INTO r VALUES (4, 1)")
    client.wait_for_version("v", refreshed + 2)
    assert from_ipc(client.verify("v").arrow).num_rows == 0


@pytest.mark.parametrize("source", ["answers", "is away"])
def test_a_view_that_is_dropped_while_it_is_taken_up_stays_dropped(
    site: Site, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    server, client = site.mediator()
    client.create_view("v", ALONE)
    client.create_view("w", OTHER)
    server.stop(0)
    explain = Mediator.explain
    asked, dropped, tried = threading.Event(), threading.Event(), threading.Event()

    def slow(self: Mediator, spec: ViewSpecConfig) -> Decomposition:
        if threading.current_thread().name != "attach" or spec.name != "v" or tried.is_set():
            return explain(self, spec)
        asked.set()
        assert dropped.wait(PATIENCE)
        tried.set()
        if source == "is away":
            raise SourceUnavailableError("nothing answers, for a test")
        return explain(self, spec)

    monkeypatch.setattr(Mediator, "explain", slow)
    server, client = site.mediator()
    assert asked.wait(PATIENCE)
    client.stub.DropView(pb.DropViewRequest(name="v"))
    dropped.set()
    wait_for(server, lambda mediator: "w" in mediator.views)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")
    client.wait_for_version("w", 1)
    assert list(inside(server).views) == ["w"]
    wait_for(server, lambda mediator: not mediator._state.detached)
    client.create_view("v", ALONE)
    assert client.bag("v") == Counter({(1, 1): 1, (2, 2): 1, (3, 3): 1})


def test_a_view_that_was_dropped_while_stored_views_were_looked_for_can_be_made_again(site: Site) -> None:
    """It was found as one that nobody keeps, just before its drop had removed it."""
    server, client = site.mediator()
    with inside(server).changed:
        inside(server)._state.detached["v"] = "waiting for its sources"
    wait_for(server, lambda mediator: not mediator._state.detached)
    client.create_view("v", ALONE)
    assert client.bag("v") == Counter({(1, 1): 1, (2, 2): 1})


@pytest.mark.parametrize("action", ["_begin_round", "_settle", "_park"])
def test_what_was_due_for_a_dropped_view_does_nothing_to_a_new_one_of_its_name(
    site: Site, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """The maintenance thread decides what is due, and carries it out a moment later."""
    spec = {"maintenance": "nested-sweep"} if action == "_settle" else {}
    decided, goes_on = threading.Event(), threading.Event()
    act = getattr(Maintainer, action)

    def late(self: Maintainer, about: Any) -> None:
        if not decided.is_set():
            decided.set()
            assert goes_on.wait(PATIENCE)
        act(self, about)

    monkeypatch.setattr(Maintainer, action, late)
    server, client = site.mediator()
    client.create_view("v", ALONE, **spec)
    if action == "_park":
        inside(server)._state.pause(inside(server).views["v"], PositionTrimmedError("lost, for a test"))
    else:
        site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")
    assert decided.wait(PATIENCE)
    inside(server).drop_view("v")
    client.create_view("v", ALONE, **spec)
    before = client.bag("v")
    goes_on.set()
    site.writers["one"].commit("INSERT INTO r VALUES (4, 4)")
    client.wait_for_version("v", 1)
    assert client.bag("v") == before + Counter({(4, 4): 1})
    assert client.view("v").version == 1
    assert from_ipc(client.verify("v").arrow).num_rows == 0


def test_a_paused_view_that_is_dropped_while_it_is_refreshed_is_not_followed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = site.mediator()
    client.create_view("v", ALONE)
    mediator = inside(server)
    view = mediator.views["v"]
    mediator._state.pause(view, PositionTrimmedError("lost, for a test"))
    wait_for(server, lambda _: view.parked)
    install = mediator.warehouse.install
    drop = threading.Thread(target=mediator.drop_view, args=("v",))

    def dropped_meanwhile(installs: Any) -> Any:
        drop.start()
        wait_for(server, lambda m: "v" not in m.views)
        return install(installs)

    monkeypatch.setattr(mediator.warehouse, "install", dropped_meanwhile)
    client.refresh("v")
    drop.join(PATIENCE)
    assert not mediator.warehouse.views()
    assert mediator.channels["one"]._views.is_empty


@pytest.mark.parametrize("work", ["refresh", "verify"])
def test_a_view_that_was_dropped_before_its_refresh_began_leaves_the_new_one_of_its_name_alone(
    site: Site, work: str
) -> None:
    """Who refreshes several views, or waits until one is free, has found them some time before."""
    server, client = site.mediator()
    client.create_view("v", ALONE)
    mediator = inside(server)
    view = mediator.views["v"]
    mediator.drop_view("v")
    client.create_view("v", f"{ALONE} WHERE r.k > 1")
    with pytest.raises(NotFoundError, match="was dropped"):
        getattr(mediator._recomputer, work)(view, lambda *_: None)
    assert client.bag("v") == Counter({(2, 2): 1})
    site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")
    client.wait_for_version("v", 1)
    assert client.bag("v") == Counter({(2, 2): 1, (3, 3): 1})
    assert from_ipc(client.verify("v").arrow).num_rows == 0


def test_a_view_that_is_made_anew_while_others_are_read_anew_is_not_read_anew(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history of both was lost, and one is read for long: its owner does not wait for the other."""
    server, client = site.mediator(on_lost_history="resync")
    client.create_view("a", ALONE)
    client.create_view("v", ALONE)
    mediator = inside(server)
    refresh = mediator._recomputer.refresh
    refreshed: list[str] = []

    def made_anew_meanwhile(view: MaintainedView, progress: Any) -> tuple[int, int]:
        refreshed.append(view.name)
        if view.name == "a":
            mediator.drop_view("v")
            client.create_view("v", f"{ALONE} WHERE r.k > 1")
        return refresh(view, progress)

    monkeypatch.setattr(mediator._recomputer, "refresh", made_anew_meanwhile)
    acts: list[str] = []
    mediator.on_own_act(lambda act, name, error: acts.append(f"{act} {name} {error}"))
    with mediator.changed:
        for view in mediator.views.values():
            mediator._state.pause(view, PositionTrimmedError("lost, for a test"))
    wait_for(server, lambda m: m.views["a"].version == 1)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")
    client.wait_for_version("a", 2)
    client.wait_for_version("v", 1)
    assert client.bag("v") == Counter({(2, 2): 1, (3, 3): 1})
    assert (refreshed, acts) == (["a"], ["refresh a None"])


def test_a_watch_does_not_go_on_with_another_view_of_the_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions of a view that was made anew are no changes of what the client has seen."""
    server, client = site.mediator()
    client.create_view("v", ALONE)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")
    client.wait_for_version("v", 1)
    looked, goes_on = threading.Event(), threading.Event()
    wait_for_version = MediatorService._wait_for_version

    def late(self: MediatorService, name: str, seen: int, context: grpc.ServicerContext) -> None:
        looked.set()
        assert goes_on.wait(PATIENCE)
        wait_for_version(self, name, seen, context)

    monkeypatch.setattr(MediatorService, "_wait_for_version", late)
    watch = client.watch("v", 0)
    assert next(watch)[0].version == 1
    assert looked.wait(PATIENCE)
    inside(server).drop_view("v")
    client.create_view("v", f"{ALONE} WHERE r.k > 1")
    for k in (4, 5):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, {k})")
    wait_for(server, lambda mediator: mediator.warehouse.newest("v").version == 2)
    goes_on.set()
    with pytest.raises(grpc.RpcError, match="view 'v' was dropped meanwhile"):
        next(watch)
    assert [version.version for version, _ in islice(client.watch("v", 0), 2)] == [1, 2]


def test_a_stored_view_that_cannot_be_taken_up_keeps_no_other_from_it(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = site.mediator()
    client.create_view("a", ALONE)
    client.create_view("b", ALONE)
    client.create_view("c", ALONE)
    server.stop(0)
    stored = spec_from_json

    def read(data: dict[str, Any]) -> ViewSpecConfig:
        if data["name"] == "b":
            raise TypeError("nobody expects this")
        return stored({**data, "of_tomorrow": 1} if data["name"] == "a" else data)

    monkeypatch.setattr("mediator.mediator.spec_from_json", read)
    server, client = site.mediator()
    client.wait_for_version("c", 0)
    wait_for(server, lambda mediator: "c" in mediator.views and "of_tomorrow" in mediator.problem("a"))
    tried = [record for record in caplog.records if "is tried again" in record.message]
    assert [record.args for record in tried] == [("b",)], "once, however often it is tried"
    assert inside(server).problem("b") == INTERNAL_ERROR


@contextmanager
def loads_that_hang(monkeypatch: pytest.MonkeyPatch, source: str) -> Iterator[threading.Event]:
    """A source that is connected and begins a load, but does not answer; set once one has begun."""
    load, begun, goes_on = WrapperService._load, threading.Event(), threading.Event()

    def hanging(self: WrapperService, *arguments: Any) -> Iterator[Any]:
        if self._processor.source == source:
            begun.set()
            assert goes_on.wait(PATIENCE)
        yield from load(self, *arguments)

    monkeypatch.setattr(WrapperService, "_load", hanging)
    try:
        yield begun
    finally:
        goes_on.set()


ABSENT = Weather(closed=True)


def test_a_load_that_hangs_keeps_no_stored_view_of_other_sources_from_being_taken_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = site.mediator()
    client.create_view("w", APART)
    server.stop(0)
    site.proxies["two"].weather = ABSENT
    with loads_that_hang(monkeypatch, "one") as begun:
        server, client = site.mediator(views=(ViewSpecConfig("v", ALONE),))
        assert begun.wait(PATIENCE)
        site.proxies["two"].weather = FAIR
        wait_for(server, lambda mediator: "w" in mediator.views)
        site.writers["two"].commit("INSERT INTO s VALUES (3, 30)")
        client.wait_for_version("w", 1)
    wait_for(server, lambda mediator: "v" in mediator.views)


def test_a_view_that_cannot_be_taken_up_yet_holds_up_none_of_other_sources(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = site.mediator()
    client.create_view("v", ALONE)
    client.create_view("w", APART)
    server.stop(0)
    explain, goes_on = Mediator.explain, threading.Event()

    def slow(self: Mediator, spec: ViewSpecConfig) -> Decomposition:
        assert spec.name != "v" or goes_on.wait(PATIENCE)
        return explain(self, spec)

    monkeypatch.setattr(Mediator, "explain", slow)
    server, client = site.mediator()
    try:
        wait_for(server, lambda mediator: "w" in mediator.views)
        client.refresh("w")
        assert "v" not in inside(server).views
    finally:
        goes_on.set()
    wait_for(server, lambda mediator: "v" in mediator.views)


def test_a_view_that_is_read_anew_and_hangs_holds_up_none_of_other_sources(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = site.mediator(on_lost_history="resync")
    client.create_view("v", ALONE)
    client.create_view("w", APART)
    mediator = inside(server)
    with loads_that_hang(monkeypatch, "one") as begun:
        mediator._state.pause(mediator.views["v"], PositionTrimmedError("lost, for a test"))
        assert begun.wait(PATIENCE)
        mediator._state.pause(mediator.views["w"], PositionTrimmedError("lost, for a test"))
        wait_for(server, lambda m: m.views["w"].version == 1 and not m.views["w"].problem)
        assert mediator.views["v"].lost_history
    wait_for(server, lambda m: m.views["v"].version == 1)


def test_a_mediator_that_waits_for_a_load_that_hangs_can_be_stopped(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acts: list[str] = []
    with loads_that_hang(monkeypatch, "one") as begun:
        server, _ = site.mediator(views=(ViewSpecConfig("v", ALONE), ViewSpecConfig("w", OTHER)))
        inside(server).on_own_act(lambda act, name, error: acts.append(f"{act} {name} {error}"))
        assert begun.wait(PATIENCE)
        server.stop(0)
        assert "attach" not in [thread.name for thread in threading.enumerate()]
    assert acts == [], "neither made nor refused"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("what", ["list", "status"])
def test_a_view_that_is_dropped_while_all_are_told_of_is_left_out(
    site: Site, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    server, client = site.mediator()
    for name in ("u", "v", "w"):
        client.create_view(name, ALONE)
    listed = MediatorService._names

    def dropped_meanwhile(self: MediatorService) -> list[str]:
        names = listed(self)
        inside(server).drop_view("v")
        return names

    monkeypatch.setattr(MediatorService, "_names", dropped_meanwhile)
    if what == "list":
        told = [view.spec.name for view in client.stub.ListViews(pb.ListViewsRequest()).views]
    else:
        told = [view.view for view in client.status().views]
    assert told == ["u", "w"]


def test_a_source_may_not_trim_what_a_view_needs_whose_drop_may_yet_fail(site: Site) -> None:
    """If it fails, the view is taken up again, and needs what came after its vector."""
    server, client = site.mediator()
    client.create_view("v", ALONE)
    client.create_view("w", OTHER)
    mediator = inside(server)
    view = mediator.views["v"]
    acknowledgements = Acknowledgements(mediator._state)
    with view.installing:
        drop = threading.Thread(target=mediator.drop_view, args=("v",))
        drop.start()
        wait_for(server, lambda m: "v" not in m.views)
        site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")
        client.wait_for_version("w", 1)
        with mediator.changed:
            needed = acknowledgements._needed({"w": mediator.views["w"].resume_from})
        assert needed["one"] == view.vector["one"] < mediator.views["w"].vector["one"]
    drop.join(PATIENCE)
    with mediator.changed:
        needed = acknowledgements._needed({"w": mediator.views["w"].resume_from})
    assert needed["one"] == mediator.views["w"].vector["one"]


@pytest.mark.parametrize("what", ["a drop that failed", "a creation that failed after its commit"])
def test_a_source_may_not_trim_what_a_stored_view_needs_that_is_not_found_yet(
    site: Site, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It is looked for now and then, and not while another view is read."""
    server, client = site.mediator()
    mediator = inside(server)
    monkeypatch.setattr(mediator, "_find_detached", lambda: None)
    client.create_view("w", OTHER)
    if what == "a drop that failed":
        client.create_view("v", ALONE)

        def fault(step: str) -> None:
            if step == "before views.commit":
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        mediator.warehouse._store.steps._fault = fault
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            mediator.drop_view("v")
        mediator.warehouse._store.steps._fault = lambda _: None
    else:
        breaks_after_commit(mediator)
        with pytest.raises(grpc.RpcError, match="the disk reports errors"):
            client.create_view("v", ALONE)
    stored = mediator.warehouse.vector("v")["one"]
    site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")
    client.wait_for_version("w", 1)
    with mediator.changed:
        needed = Acknowledgements(mediator._state)._needed({"w": mediator.views["w"].resume_from})
    assert needed["one"] == stored < mediator.views["w"].vector["one"]
    monkeypatch.undo()
    client.wait_for_version("v", 1)
    assert client.bag("v") == Counter({(1, 1): 1, (2, 2): 1, (3, 3): 1})


def test_folders_of_large_batches_do_not_pile_up(site: Site) -> None:
    """Columns whose names Delta Lake does not take are written anew, so nothing that was staged stays."""
    server, client = site.mediator()
    client.create_view("v", 'SELECT r.k, r.x AS "the x" FROM one.r AS r')
    data = site.warehouse / "data"
    for number in (1, 2):
        site.writers["one"].commit(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
            f"INSERT INTO r SELECT {10_000 * number} + i, 1 FROM n"
        )
        client.wait_for_version("v", number)
    assert list(data.rglob("staged-*")) == []
    assert client.bag("v").total() == 2 + 2 * 2000
    # As a process that was killed may have left it.
    (changes,) = data.glob("*/changes")
    (changes / "staged-left").mkdir()
    inside(server).warehouse.recover()
    assert not (changes / "staged-left").exists()
