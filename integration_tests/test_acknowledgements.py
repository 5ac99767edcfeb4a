"""Sources may trim what nobody needs: no view holds back more than what it has missed, and never less.

Reference: docs/adr/0021-a-quiet-view-holds-back-nobody.md.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from algebra.arrow_ipc import from_ipc
from algebra.position import Position
from integration_tests.site import ALONE, PATIENCE, Site, inside, wait_for
from integration_tests.test_lost_history import copy_database, put_in_place
from lab.soak.proxy import FAIR, Weather
from mediator import acknowledgements, loader
from mediator.channel import SourceChannel
from mediator.warehouse.records import VersionRow, ViewInstall
from protos.convert import now
from wrapper.tests.sqlite_writer import SqliteWriter

QUIET = "SELECT q.x FROM one.q AS q"
BOTH = "SELECT q.x, s.y FROM one.q AS q JOIN two.s AS s ON q.x = s.x"
MANY = 1100
"""More than SQLite's trimming waits for."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(acknowledgements, "LOOK_SECONDS", 0.0)
    with ExitStack() as stack:
        made = Site(stack, tmp_path)
        made.writers["one"].commit("CREATE TABLE q (x INTEGER)", "INSERT INTO q VALUES (1)")
        yield made


def trimmed(site: Site) -> int:
    [[value]] = site.writers["one"].rows("SELECT value FROM _lockstep_meta WHERE name = 'trimmed'")
    return int(value)


def write_much(site: Site, first: int) -> None:
    for k in range(first, first + MANY):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 3)")


def test_a_quiet_view_does_not_hold_back_a_busy_one(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("quiet", QUIET)
    client.create_view("busy", ALONE)
    loaded = inside(server).warehouse.vector("quiet")["one"].ordinal
    write_much(site, 10)
    client.wait_for_version("busy", MANY)
    wait_for(server, lambda _: trimmed(site) > loaded)
    assert inside(server).warehouse.vector("quiet")["one"].ordinal == loaded, "its vector is its own"
    site.writers["one"].commit("INSERT INTO q VALUES (2)")
    client.wait_for_version("quiet", 1)
    assert client.bag("quiet") == Counter({(1,): 1, (2,): 1})


def test_a_view_that_was_quiet_is_taken_up_after_a_restart(site: Site) -> None:
    """Also if the mediator was away when something happened at last: its vector alone would be trimmed."""
    server, client = site.mediator()
    client.create_view("quiet", QUIET)
    client.create_view("busy", ALONE)
    loaded = inside(server).warehouse.vector("quiet")["one"].ordinal
    write_much(site, 10)
    wait_for(server, lambda _: trimmed(site) > loaded)
    server.stop(0)
    site.writers["one"].commit("INSERT INTO q VALUES (2)")
    site.writers["one"].commit("INSERT INTO q VALUES (3)")
    _, client = site.mediator()
    client.wait_for_version("quiet", 2)
    assert client.bag("quiet") == Counter({(1,): 1, (2,): 1, (3,): 1})
    assert [version.version for version in client.history("quiet")] == [2, 1, 0]
    assert from_ipc(client.verify("quiet").arrow).num_rows == 0


def test_what_a_view_waits_for_is_not_trimmed(site: Site) -> None:
    """A view that is stale, and one that is not taken up after a restart, have missed something."""
    server, client = site.mediator(umq_rows=400)
    client.create_view("both", BOTH)
    client.create_view("busy", ALONE)
    site.proxies["two"].weather = Weather(closed=True)
    site.proxies["two"].cut()
    wait_for(server, lambda mediator: not mediator.channels["two"].connected)
    site.writers["one"].commit("INSERT INTO q VALUES (2)")
    missed = inside(server).warehouse.vector("both")["one"].ordinal
    write_much(site, 10)
    client.wait_for_version("busy", MANY)
    assert trimmed(site) <= missed + 1
    server.stop(0)
    server, client = site.mediator(umq_rows=400)
    write_much(site, 10_000)
    client.wait_for_version("busy", 2 * MANY)
    assert "both" in inside(server)._state.detached
    assert trimmed(site) <= missed + 1
    site.proxies["two"].weather = FAIR
    client.wait_for_version("both", 1)
    assert client.bag("both") == Counter({(1, 10): 1, (2, 20): 1})
    wait_for(server, lambda _: trimmed(site) > missed + 1)


@pytest.mark.parametrize("sql", [BOTH, "SELECT s.y FROM two.s AS s"])
def test_a_load_keeps_its_own_sources_from_trimming_and_no_others(
    site: Site, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """It may take long, and another source must not run out of room meanwhile."""
    server, client = site.mediator()
    client.create_view("busy", ALONE)
    load, begun, may_end = loader._load_source, threading.Event(), threading.Event()

    def long(channel: SourceChannel, *given: Any) -> Any:
        if channel.source == "two":
            begun.set()
            assert may_end.wait(PATIENCE)
        return load(channel, *given)

    monkeypatch.setattr(loader, "_load_source", long)
    start = inside(server).warehouse.vector("busy")["one"].ordinal
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(client.create_view, "v", sql)
        try:
            assert begun.wait(PATIENCE)
            write_much(site, 10)
            client.wait_for_version("busy", MANY)
            if sql == BOTH:
                assert trimmed(site) <= start
            else:
                wait_for(server, lambda _: trimmed(site) > start)
        finally:
            may_end.set()
        made.result()
    wait_for(server, lambda _: trimmed(site) > start)
    assert from_ipc(client.verify("v").arrow).num_rows == 0


def test_nothing_is_trimmed_before_it_is_written_down(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("quiet", QUIET)
    client.create_view("busy", ALONE)
    loaded = inside(server).warehouse.vector("quiet")["one"].ordinal
    tried: list[str] = []

    def fault(name: str) -> None:
        if name == "before reached.commit":
            tried.append(name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    inside(server).warehouse._store.steps._fault = fault
    write_much(site, 10)
    client.wait_for_version("busy", MANY)
    wait_for(server, lambda _: len(tried) > 2)
    assert trimmed(site) <= loaded
    inside(server).warehouse._store.steps._fault = None
    wait_for(server, lambda _: trimmed(site) > loaded)
    wait_for(server, lambda _: client.status().problem == "")


def test_a_source_restored_behind_what_was_noted(site: Site) -> None:
    """What was noted of the lost history must not be taken for the new one."""
    server, client = site.mediator(on_lost_history="resync")
    client.create_view("quiet", QUIET)
    client.create_view("busy", ALONE)
    warehouse = inside(server).warehouse
    loaded = warehouse.vector("quiet")["one"]
    copy_database(site.directory / "one.db", site.directory / "backup.db")
    for k in range(4, 7):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
    wait_for(server, lambda _: warehouse.resume_from("quiet")["one"].ordinal == loaded.ordinal + 3)
    put_in_place(site, site.directory / "backup.db")
    client.wait_for_version("quiet", 1)
    assert warehouse.resume_from("quiet")["one"] == warehouse.vector("quiet")["one"] == loaded
    with SqliteWriter(site.directory / "one.db") as writer:
        writer.commit("INSERT INTO q VALUES (2)")
        client.wait_for_version("quiet", 2)
    assert client.bag("quiet") == Counter({(1,): 1, (2,): 1})
    assert from_ipc(client.verify("quiet").arrow).num_rows == 0


def test_a_version_within_a_transaction_whose_install_broke_is_not_taken_for_a_refresh(site: Site) -> None:
    """Algorithms that take single updates show such versions; what was noted of the view holds after them."""
    server, client = site.mediator()
    client.create_view("quiet", QUIET)
    client.create_view("busy", ALONE)
    mediator = inside(server)
    loaded = mediator.warehouse.vector("quiet")["one"].ordinal
    write_much(site, 10)
    wait_for(server, lambda _: trimmed(site) > loaded)
    view = mediator.views["quiet"]
    rows = pa.table({"x": pa.array([], pa.int64()), "_count": pa.array([], pa.int64())})
    tagged = rows.append_column("_version", pa.array([], pa.int64()))
    with view.installing, mediator.changed:
        middle = VersionRow(1, "", Position(0), view.vector, now())
        mediator.warehouse.install([ViewInstall("quiet", [middle], table=tagged)])
        mediator._state.catch_up(view)
        mediator._state.park(view)  # it is followed again at once, from where it has missed nothing
    site.writers["one"].commit("INSERT INTO q VALUES (2)")
    wait_for(server, lambda _: view.version == 2 or bool(view.problem))
    assert (view.problem, client.bag("quiet")) == ("", Counter({(1,): 1, (2,): 1}))
