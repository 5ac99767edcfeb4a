"""Global transactions from two databases to one view, through real gRPC: shown whole, or not at all."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from adapters.duckdb.tests.owner import Owner, OwnerError
from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.global_transaction import GlobalTransaction
from integration_tests.client import Client
from mediator.config import MediatorConfig
from mediator.mediator import Mediator
from mediator.server import MediatorServer
from wrapper.server import WrapperServer
from wrapper.tests.sqlite_writer import SqliteWriter

BALANCES = """
    SELECT g.id AS pair, g.amount AS giro, s.amount AS savings
    FROM bank.giro g JOIN trust.savings s ON s.id = g.id"""

PATIENCE = 60.0


class Trust:
    """The owner of a DuckDB file, in a process of its own; opens it for each transaction, and may wait."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self._path = path
        self._owner = owner

    def commit(self, *statements: str) -> None:
        until(self._opened)
        self._owner.run("BEGIN", *statements, "COMMIT")
        self._owner.close()

    def _opened(self) -> bool:
        try:
            self._owner.open(self._path)
        except OwnerError:
            return False
        return True


class Banks:
    """A bank on SQLite, a trust on DuckDB, their wrappers, and a mediator."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        paths = {"bank": directory / "bank.db", "trust": directory / "trust.duckdb"}
        self.bank = stack.enter_context(SqliteWriter(paths["bank"]))
        self.bank.commit(
            "CREATE TABLE giro (id INTEGER PRIMARY KEY, amount INTEGER)",
            "INSERT INTO giro VALUES (1, 100), (2, 100)",
        )
        self.trust = Trust(paths["trust"], stack.enter_context(Owner()))
        self.trust.commit(
            "CREATE TABLE savings (id BIGINT PRIMARY KEY, amount BIGINT)",
            "INSERT INTO savings VALUES (1, 0), (2, 0)",
        )
        addresses = {}
        for source, adapter in {"bank": "sqlite", "trust": "duckdb"}.items():
            config = SourceConfig(source, adapter, f"{adapter}:///{paths[source]}")
            wrapper = WrapperServer(create(config), "127.0.0.1:0")
            addresses[source] = wrapper.start()
            stack.callback(wrapper.stop, 0)
        self.server = MediatorServer(
            MediatorConfig("127.0.0.1:0", str(directory / "warehouse"), "duckdb", addresses)
        )
        self.client = Client(self.server.start())
        stack.callback(self.server.stop, 0)

    @property
    def mediator(self) -> Mediator:
        assert self.server.mediator is not None
        return self.server.mediator

    def waiting(self, view: str) -> list[GlobalTransaction | None]:
        """The marks of the updates that the view has received and does not show."""
        with self.mediator.changed:
            return [mark for run in self.mediator.view(view).queue.runs for mark in run.marks]


@pytest.fixture
def banks(tmp_path: Path) -> Iterator[Banks]:
    with ExitStack() as stack:
        yield Banks(stack, tmp_path)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def mark(id: str, participants: str = "bank,trust") -> str:
    """What an application runs in each of its transactions that are parts."""
    return f"INSERT INTO _lockstep_global (id, participants) VALUES ('{id}', '{participants}')"


def test_a_transfer_between_sources_is_never_seen_by_halves(banks: Banks) -> None:
    """Reference: Strobe paper, section 5.4."""
    client = banks.client
    client.create_view("balances", BALANCES, maintenance="g-strobe")
    whole = GlobalTransaction("transfer-1", frozenset({"bank", "trust"}))

    banks.bank.commit("UPDATE giro SET amount = 70 WHERE id = 1", mark("transfer-1"))
    until(lambda: banks.waiting("balances") == [whole])
    banks.bank.commit("UPDATE giro SET amount = 90 WHERE id = 2")
    until(lambda: banks.waiting("balances") == [whole, None])
    assert client.bag("balances") == Counter({(1, 100, 0): 1, (2, 100, 0): 1})

    banks.trust.commit("UPDATE savings SET amount = 30 WHERE id = 1", mark("transfer-1"))
    after = Counter({(1, 70, 30): 1, (2, 90, 0): 1})
    until(lambda: client.bag("balances") == after)
    seen = [client.bag("balances", as_of=version.version) for version in client.history("balances")]
    assert all(state in (after, Counter({(1, 100, 0): 1, (2, 100, 0): 1})) for state in seen)


def test_a_part_that_changes_nothing_is_waited_for_and_comes(banks: Banks) -> None:
    client = banks.client
    client.create_view("balances", BALANCES, maintenance="g-strobe")
    banks.bank.commit("UPDATE giro SET amount = 50 WHERE id = 2", mark("audit"))
    until(lambda: len(banks.waiting("balances")) == 1)
    assert client.bag("balances")[(2, 100, 0)] == 1
    banks.trust.commit(mark("audit"))
    until(lambda: client.bag("balances")[(2, 50, 0)] == 1)
    assert banks.waiting("balances") == []


def test_a_mark_that_cannot_be_used_holds_nothing_up(banks: Banks) -> None:
    client = banks.client
    client.create_view("balances", BALANCES, maintenance="g-strobe")
    banks.bank.commit("UPDATE giro SET amount = 1 WHERE id = 1", mark("", "bank,trust"))
    banks.bank.commit("UPDATE giro SET amount = 2 WHERE id = 2", mark("x", "somebody else"))
    banks.bank.commit("INSERT INTO giro VALUES (3, 3)", mark("y", "bank,somebody else"))
    banks.trust.commit("INSERT INTO savings VALUES (3, 0)")
    until(lambda: client.bag("balances") == Counter({(1, 1, 0): 1, (2, 2, 0): 1, (3, 3, 0): 1}))


def test_a_view_that_is_swept_shows_each_part_by_itself(banks: Banks) -> None:
    """Marks are there for whoever heeds them; a part without rows is a version like any other."""
    client = banks.client
    client.create_view("balances", BALANCES)
    banks.bank.commit("UPDATE giro SET amount = 70 WHERE id = 1", mark("transfer"))
    client.wait_for_version("balances", 1)
    banks.trust.commit(mark("transfer"))
    client.wait_for_version("balances", 2)
    states = [client.bag("balances", as_of=n) for n in range(3)]
    assert states[1] == states[2] == Counter({(1, 70, 0): 1, (2, 100, 0): 1})
    assert [v.source for v in client.history("balances")] == ["trust", "bank", ""]
