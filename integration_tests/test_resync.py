"""A broken stream of changes pauses the view, keeps it readable, and a refresh makes it right again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.arrow_ipc import from_ipc
from integration_tests.client import Client
from mediator.config import MediatorConfig
from mediator.server import MediatorServer
from wrapper.server import WrapperServer
from wrapper.tests.sqlite_writer import SqliteWriter

VIEW = "SELECT r.k, r.x, s.y FROM one.r AS r JOIN two.s AS s ON r.x = s.x"


class Site:
    """Two SQLite sources with wrappers; mediators come and go on the same warehouse."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self._warehouse = directory / "warehouse"
        self.configs = {
            name: SourceConfig(name, "sqlite", f"sqlite:///{directory / name}.db") for name in ("one", "two")
        }
        self.writers = {
            name: stack.enter_context(SqliteWriter(directory / f"{name}.db")) for name in self.configs
        }
        self.writers["one"].commit(
            "CREATE TABLE r (k INTEGER, x INTEGER)", "INSERT INTO r VALUES (1, 1), (2, 2)"
        )
        self.writers["two"].commit(
            "CREATE TABLE s (x INTEGER, y INTEGER)", "INSERT INTO s VALUES (1, 10), (2, 20)"
        )
        self._addresses = {}
        for name, config in self.configs.items():
            wrapper = WrapperServer(create(config), "127.0.0.1:0")
            self._addresses[name] = wrapper.start()
            stack.callback(wrapper.stop, 0)

    def mediator(self) -> tuple[MediatorServer, Client]:
        server = MediatorServer(
            MediatorConfig("127.0.0.1:0", str(self._warehouse), "duckdb", self._addresses)
        )
        client = Client(server.start())
        self._stack.callback(client.close)
        return server, client


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


def wait_until_paused(server: MediatorServer, view: str) -> str:
    mediator = server.mediator
    assert mediator is not None
    with mediator.changed:
        assert mediator.changed.wait_for(lambda: view in mediator.views and mediator.views[view].problem, 60)
    return mediator.problem(view)


def test_a_view_resumes_where_it_stopped(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("v", VIEW)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("v", 1)
    server.stop(0)
    site.writers["two"].commit("UPDATE s SET y = 11 WHERE x = 1")
    site.writers["one"].commit("DELETE FROM r WHERE k = 1")
    server, client = site.mediator()
    client.wait_for_version("v", 3)
    assert client.bag("v") == Counter({(2, 2, 20): 1, (3, 1, 11): 1})
    assert client.bag("v", as_of=1) == Counter({(1, 1, 10): 1, (2, 2, 20): 1, (3, 1, 10): 1})
    server.stop(0)


def test_trimmed_history_pauses_the_view_and_a_refresh_goes_on(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("v", VIEW)
    server.stop(0)
    for k in range(3, 6):
        site.writers["one"].commit(("INSERT INTO r VALUES (?, 1)", (k,)))
    adapter = create(SourceConfig("one", "sqlite", site.configs["one"].url, options={}))
    adapter.remove()  # the owner takes capture away: its history is gone
    adapter.close()

    server, client = site.mediator()
    problem = wait_until_paused(server, "v")
    assert "one" in problem
    assert client.view("v").state == "paused"
    assert client.bag("v") == Counter({(1, 1, 10): 1, (2, 2, 20): 1}), "the last good version stays readable"

    result = client.refresh("v")
    assert (result.version, result.changed_rows) == (1, 3)
    expected = Counter({(2, 2, 20): 1, **{(k, 1, 10): 1 for k in (1, 3, 4, 5)}})
    assert client.bag("v") == expected
    assert client.view("v").state == "maintained"

    site.writers["one"].commit("DELETE FROM r WHERE k = 5")
    site.writers["two"].commit("INSERT INTO s VALUES (2, 22)")
    client.wait_for_version("v", 3)
    expected = Counter({(2, 2, 20): 1, (2, 2, 22): 1, **{(k, 1, 10): 1 for k in (1, 3, 4)}})
    assert client.bag("v") == expected
    assert from_ipc(client.verify("v").arrow).num_rows == 0
    server.stop(0)


def test_refresh_of_a_healthy_view_changes_nothing(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("v", VIEW)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("v", 1)
    result = client.refresh("v")
    assert (result.version, result.changed_rows) == (2, 0)
    site.writers["one"].commit("INSERT INTO r VALUES (4, 2)")
    client.wait_for_version("v", 3)
    assert client.bag("v")[(4, 2, 20)] == 1
    server.stop(0)
