"""Two SQLite sources with wrappers behind proxies, and mediators that come and go on one warehouse."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from adapters.registry import create
from adapters.spi import SourceConfig
from integration_tests.client import Client
from lab.soak.proxy import Proxy
from mediator.config import MediatorConfig
from mediator.mediator import Mediator
from mediator.server import MediatorServer
from wrapper.limits import WrapperLimits
from wrapper.server import WrapperServer
from wrapper.tests.sqlite_writer import SqliteWriter

PATIENCE = 120.0
VIEW = "SELECT r.k, r.x, s.y FROM one.r AS r JOIN two.s AS s ON r.x = s.x"
ALONE = "SELECT r.k, r.x FROM one.r AS r"


class Site:
    """Everything in this process, so that tests can look inside; what it starts ends with the stack."""

    def __init__(
        self, stack: ExitStack, directory: Path, limits: WrapperLimits | None = None, **settings: Any
    ) -> None:
        self._stack = stack
        self._limits = limits
        self.directory = directory
        self.warehouse = directory / "warehouse"
        self._settings = settings
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
        self.proxies = {name: Proxy() for name in self.configs}
        self.wrappers: dict[str, WrapperServer] = {}
        self.server: MediatorServer | None = None
        """The mediator that was started last."""
        for name in self.configs:
            stack.callback(self.proxies[name].close)
            self.start_wrapper(name)

    def start_wrapper(self, name: str) -> None:
        """A wrapper on any free port; the source's proxy leads to it from now on."""
        wrapper = WrapperServer(create(self.configs[name]), "127.0.0.1:0", limits=self._limits)
        self.proxies[name].target = wrapper.start()
        self.wrappers[name] = wrapper
        self._stack.callback(wrapper.stop, 0)

    def mediator(self, warehouse: Path | None = None, **settings: Any) -> tuple[MediatorServer, Client]:
        config = MediatorConfig(
            "127.0.0.1:0",
            str(warehouse or self.warehouse),
            "duckdb",
            {name: proxy.address for name, proxy in self.proxies.items()},
            **{**self._settings, **settings},
        )
        self.server = server = MediatorServer(config)
        client = Client(server.start(), timeout=PATIENCE)
        self._stack.callback(client.close)
        self._stack.callback(server.stop, 0)
        return server, client


def inside(server: MediatorServer) -> Mediator:
    assert server.mediator is not None
    return server.mediator


def wait_for(server: MediatorServer, what: Callable[[Mediator], bool]) -> None:
    """Return when something holds of the mediator; it is looked at again at every change and every 0.2 s."""
    mediator = inside(server)
    deadline = time.monotonic() + PATIENCE
    while not what(mediator):  # without the lock: it may ask the mediator from outside
        assert time.monotonic() < deadline, "it did not happen"
        with mediator.changed:
            mediator.changed.wait(0.2)
