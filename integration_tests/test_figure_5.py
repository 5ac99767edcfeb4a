"""Figure 5 of the SWEEP paper, through real gRPC, with its three updates made concurrent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from integration_tests.client import Client
from mediator.config import MediatorConfig
from mediator.mediator import Mediator
from mediator.server import MediatorServer
from mediator.update_queue import UpdateMessageQueue
from wrapper.server import WrapperServer
from wrapper.tests.sqlite_writer import SqliteWriter

VIEW = "SELECT R2.D, R3.F FROM s1.R1, s2.R2, s3.R3 WHERE R1.B = R2.C AND R2.D = R3.E"

RELATIONS = {
    "s1": ("CREATE TABLE R1 (A INTEGER, B INTEGER)", "INSERT INTO R1 VALUES (1, 3), (2, 3)"),
    "s2": ("CREATE TABLE R2 (C INTEGER, D INTEGER)", "INSERT INTO R2 VALUES (3, 7)"),
    "s3": ("CREATE TABLE R3 (E INTEGER, F INTEGER)", "INSERT INTO R3 VALUES (5, 6), (7, 8)"),
}

UPDATES = [
    ("s2", "INSERT INTO R2 VALUES (3, 5)"),
    ("s3", "DELETE FROM R3 WHERE E = 7"),
    ("s1", "DELETE FROM R1 WHERE A = 2"),
]

STATES = [
    {(7, 8): 2},
    {(5, 6): 2, (7, 8): 2},
    {(5, 6): 2},
    {(5, 6): 1},
]


class Warehouse:
    """The three sources of Figure 5 with their writers and wrappers, and a mediator."""

    def __init__(self, stack: ExitStack, directory: Path, engine: str) -> None:
        self.writers = {}
        addresses = {}
        for source, statements in RELATIONS.items():
            path = directory / f"{source}.db"
            self.writers[source] = stack.enter_context(SqliteWriter(path))
            self.writers[source].commit(*statements)
            wrapper = WrapperServer(
                create(SourceConfig(source, "sqlite", f"sqlite:///{path}")), "127.0.0.1:0"
            )
            addresses[source] = wrapper.start()
            stack.callback(wrapper.stop, 0)
        self.server = MediatorServer(
            MediatorConfig("127.0.0.1:0", str(directory / "warehouse"), engine, addresses)
        )
        self.client = Client(self.server.start())
        stack.callback(self.server.stop, 0)

    @property
    def mediator(self) -> Mediator:
        assert self.server.mediator is not None
        return self.server.mediator


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Warehouse]:
    with ExitStack() as stack:
        yield Warehouse(stack, tmp_path, request.param)


def _has(queue: UpdateMessageQueue, size: int) -> bool:
    return len(queue) == size


QUERIES = {"sweep": 4, "sweep-published": 6, "sweep-parallel": 6, "psweep": 6, "copies": 3}
"""At most 2(n-1) for the whole batch; n-1 for each of three updates; n to load the copies."""


@pytest.mark.parametrize("maintenance", QUERIES)
def test_figure_5_shows_each_of_its_four_states(warehouse: Warehouse, maintenance: str) -> None:
    """Reference: SWEEP paper, section 5.2 and Figure 5.

    All three updates are delivered before the first is swept, so every answer shows later updates and must be
    compensated; the states are those of the updates one after the other.
    """
    client = warehouse.client
    client.create_view("V", VIEW, maintenance=maintenance)
    view = warehouse.mediator.view("V")
    with view.installing:
        for delivered, (source, statement) in enumerate(UPDATES, 1):
            warehouse.writers[source].commit(statement)
            with warehouse.mediator.changed:
                queue = view.queue
                assert warehouse.mediator.changed.wait_for(partial(_has, queue, delivered), 60)
    with warehouse.mediator.changed:
        warehouse.mediator.changed.notify_all()
    client.wait_for_version("V", 3)
    assert [client.bag("V", as_of=n) for n in range(4)] == [Counter(state) for state in STATES]
    assert [v.source for v in client.history("V")] == ["s1", "s3", "s2", ""]
    (status,) = client.status().views
    assert status.batches == (1 if maintenance in ("sweep", "copies") else 3)
    assert status.queries <= QUERIES[maintenance]
    assert status.compensations > 0 or maintenance in ("psweep", "copies")
    assert client.verify("V").version == 3
