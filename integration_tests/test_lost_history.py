"""History that is lost is noticed, never absorbed; reading anew by difference makes the view right again.

The sources' wrappers run on while their databases are replaced, or lose their capture or their history.
"""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from adapters.registry import create
from algebra.arrow_ipc import from_ipc
from integration_tests.client import Client
from integration_tests.site import ALONE, PATIENCE, VIEW, Site, inside, wait_for
from mediator.channel import SourceChannel
from protos.lockstep.v1 import wrapper_pb2 as pb

ROWS: Counter[tuple[int, ...]] = Counter({(1, 1, 10): 1, (2, 2, 20): 1})


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


def create_followed(site: Site, client: Client) -> None:
    """The view, with a transaction that it has followed: a loss before that might be none to it."""
    client.create_view("v", VIEW)
    site.writers["one"].commit("UPDATE r SET k = k WHERE k = 1")
    client.wait_for_version("v", 1)


def restore(site: Site, further: int) -> Counter[tuple[int, ...]]:
    """Put an old copy in place of source `one`, written that much further; what the view must be then."""
    path = site.directory / "one.db"
    backup = site.directory / "backup.db"
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    copy_database(path, backup)
    for k in range(4, 7):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
    assert site.server is not None
    # Else it would be at a transaction that the copy has too, and could go on there without any loss.
    wait_for(site.server, lambda mediator: mediator.views["v"].version == 5)
    with sqlite3.connect(backup, isolation_level=None) as connection:
        for k in range(100, 100 + further):
            connection.execute("INSERT INTO r VALUES (?, 2)", (k,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    put_in_place(site, backup)
    return ROWS + Counter([(3, 1, 10), *((k, 2, 20) for k in range(100, 100 + further))])


def put_in_place(site: Site, backup: Path) -> None:
    """The copy becomes source `one`; its writer is gone."""
    path = site.directory / "one.db"
    site.writers["one"].__exit__(None, None, None)
    backup.replace(path)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def copy_database(path: Path, backup: Path) -> None:
    """A copy by SQLite's own means, made by a process of its own, as an operator would."""
    program = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('VACUUM INTO ?', [sys.argv[2]])"
    subprocess.run([sys.executable, "-c", program, str(path), str(backup)], check=True)


def restored_before(site: Site) -> Counter[tuple[int, ...]]:
    return restore(site, 0)


def restored_and_written_further(site: Site) -> Counter[tuple[int, ...]]:
    return restore(site, 9)


def capture_reinstalled(site: Site) -> Counter[tuple[int, ...]]:
    adapter = create(site.configs["one"])
    adapter.remove()
    site.writers["one"].commit("INSERT INTO r VALUES (7, 1)")
    adapter.prepare(["r"])
    adapter.close()
    site.writers["one"].commit("INSERT INTO r VALUES (8, 1)")
    return Counter({**ROWS, (7, 1, 10): 1, (8, 1, 10): 1})


def trimmed_behind_its_back(site: Site) -> Counter[tuple[int, ...]]:
    site.proxies["one"].weather = site.proxies["one"].weather.__class__(closed=True)
    site.proxies["one"].cut()
    for k in (7, 8, 9):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
    site.writers["one"].commit(
        "UPDATE _lockstep_meta SET value = (SELECT max(seq) FROM _lockstep_log) WHERE name = 'trimmed'",
        "DELETE FROM _lockstep_log WHERE seq < (SELECT max(seq) FROM _lockstep_log)",
    )
    site.proxies["one"].weather = site.proxies["one"].weather.__class__()
    return ROWS + Counter((k, 1, 10) for k in (7, 8, 9))


def column_added(site: Site) -> Counter[tuple[int, ...]]:
    site.writers["one"].commit("ALTER TABLE r ADD COLUMN extra INTEGER")
    site.writers["one"].commit("INSERT INTO r VALUES (7, 1, 5)")
    return Counter({**ROWS, (7, 1, 10): 1})


LOSSES = [
    restored_before,
    restored_and_written_further,
    capture_reinstalled,
    trimmed_behind_its_back,
    column_added,
]
Loss = Callable[[Site], Counter[tuple[int, ...]]]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_loss_pauses_the_view_and_a_refresh_is_one_version(site: Site, loss: Loss) -> None:
    server, client = site.mediator()
    create_followed(site, client)
    expected = loss(site)
    wait_for(server, lambda mediator: bool(mediator.views["v"].problem))
    paused = client.view("v")
    assert paused.state == "paused"
    assert "one" in paused.problem
    before = client.bag("v")
    assert before == client.bag("v", as_of=paused.version), "readable"
    assert client.refresh("v").version == paused.version + 1
    assert client.bag("v") == expected
    assert client.bag("v", as_of=paused.version) == before, "with its history"
    site.writers["two"].commit("UPDATE s SET y = 22 WHERE x = 2")
    client.wait_for_version("v", paused.version + 2)
    assert client.bag("v") == Counter({(k, x, 22 if x == 2 else y): n for (k, x, y), n in expected.items()})
    assert from_ipc(client.verify("v").arrow).num_rows == 0


@pytest.mark.parametrize("loss", [restored_and_written_further, capture_reinstalled, column_added])
def test_a_loss_is_mended_at_once_where_that_is_wanted(
    site: Site, loss: Loss, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mediator")
    server, client = site.mediator(on_lost_history="resync")
    create_followed(site, client)
    expected = loss(site)
    wait_for(server, lambda _: client.bag("v") == expected)
    loads = [version for version in client.history("v") if version.version and not version.source]
    assert len(loads) == 1, "read anew as one version, marked as a load"
    wait_for(server, lambda _: client.view("v").state == "maintained")
    wait_for(server, lambda _: "view v was read anew: " in caplog.text)
    assert "view v is read anew: source 'one'" in caplog.text
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors if record.name.startswith("mediator")] == []
    assert from_ipc(client.verify("v").arrow).num_rows == 0


def test_an_error_about_an_earlier_view_of_the_name_pauses_no_later_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on its way while the view is dropped and made anew without the column that was wrong."""
    came, goes_on = threading.Event(), threading.Event()
    failed = SourceChannel._failed

    def late(self: SourceChannel, error: pb.ExchangeError) -> None:
        came.set()
        assert goes_on.wait(PATIENCE)
        failed(self, error)

    server, client = site.mediator()
    client.create_view("v", ALONE)
    monkeypatch.setattr(SourceChannel, "_failed", late)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 'three')")
    assert came.wait(PATIENCE)
    inside(server).drop_view("v")
    client.create_view("v", "SELECT r.k FROM one.r AS r")
    goes_on.set()
    site.writers["one"].commit("INSERT INTO r VALUES (4, 2)")
    client.wait_for_version("v", 1)
    assert (client.view("v").state, client.bag("v")) == ("maintained", Counter([(k,) for k in (1, 2, 3, 4)]))


def test_updates_of_a_paused_view_are_not_collected(site: Site) -> None:
    server, client = site.mediator(umq_rows=100)
    client.create_view("v", VIEW)
    client.create_view("w", VIEW.replace("r.k, r.x", "r.k"))
    view = inside(server).views["v"]
    from algebra.errors import DataError

    inside(server)._state.pause(view, DataError("made up"))
    for k in range(10, 160):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
    client.wait_for_version("w", 150)
    assert (len(view.queue), view.parked) == (0, True)
    client.refresh("v")
    refreshed = client.view("v").version
    site.writers["one"].commit("DELETE FROM r WHERE k = 10")
    client.wait_for_version("v", refreshed + 1)
    assert (10, 1, 10) not in client.bag("v")
    assert from_ipc(client.verify("v").arrow).num_rows == 0


def test_a_value_that_does_not_fit_pauses_the_view_with_the_reason(site: Site) -> None:
    """The stream goes on: it must not be opened again and again only to fail at the same value."""
    server, client = site.mediator()
    client.create_view("v", VIEW)
    connected = inside(server).channels["one"].since
    site.writers["one"].commit("INSERT INTO r VALUES (3, 'three')")
    wait_for(server, lambda mediator: bool(mediator.views["v"].problem))
    paused = client.view("v")
    assert paused.state == "paused"
    assert "r.x holds a value that is not int64" in paused.problem
    assert client.bag("v") == ROWS, "readable"
    site.writers["two"].commit("UPDATE s SET y = 22 WHERE x = 2")
    site.writers["one"].commit("UPDATE r SET x = 1 WHERE k = 3")
    client.refresh("v")
    site.writers["one"].commit("INSERT INTO r VALUES (4, 2)")
    wait_for(server, lambda _: client.bag("v").total() == 4)
    assert client.bag("v") == Counter([(1, 1, 10), (2, 2, 22), (3, 1, 10), (4, 2, 22)])
    assert inside(server).channels["one"].since == connected
