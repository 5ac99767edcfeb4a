"""Views by the algorithm or the level that they declare, through real gRPC over real SQLite files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.arrow_ipc import from_ipc
from algebra.position import Position
from integration_tests.client import Bag, Client
from mediator.config import MediatorConfig
from mediator.maintenance import ALGORITHMS
from mediator.mediator import Mediator
from mediator.server import MediatorServer
from mediator.warehouse.records import VersionRow, ViewInstall
from protos.convert import now
from protos.lockstep.v1 import mediator_pb2 as pb
from wrapper.server import WrapperServer
from wrapper.tests.sqlite_writer import SqliteWriter

BOTH = "SELECT c.name, o.item FROM crm.customer c JOIN shop.orders o ON o.cust = c.id"
ONE = "SELECT c.name, b.name AS boss FROM crm.customer c JOIN crm.customer b ON b.id = c.boss"
KEYLESS = "SELECT n.text FROM crm.customer c JOIN crm.note n ON n.cust = c.id"

RELATIONS = {
    "crm": (
        "CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, boss INTEGER)",
        "CREATE TABLE note (cust INTEGER, text TEXT)",
        "INSERT INTO customer VALUES (1, 'Ada', 3), (2, 'Ada', 3), (3, 'Ben', NULL)",
    ),
    "shop": (
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, cust INTEGER, item TEXT)",
        "INSERT INTO orders VALUES (1, 1, 'lens'), (2, 2, 'lens'), (3, 3, 'wire')",
    ),
}


class Running:
    """Two sources with their writers and wrappers, and a mediator that can be started anew."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._warehouse = str(directory / "warehouse")
        self._addresses = {}
        self.writers = {}
        for source, statements in RELATIONS.items():
            path = directory / f"{source}.db"
            self.writers[source] = stack.enter_context(SqliteWriter(path))
            self.writers[source].commit(*statements)
            config = SourceConfig(source, "sqlite", f"sqlite:///{path}")
            wrapper = WrapperServer(create(config), "127.0.0.1:0")
            self._addresses[source] = wrapper.start()
            stack.callback(wrapper.stop, 0)
        self._start()
        stack.callback(lambda: self.server.stop(0))

    def _start(self) -> None:
        config = MediatorConfig("127.0.0.1:0", self._warehouse, "duckdb", self._addresses)
        self.server = MediatorServer(config)
        self.client = Client(self.server.start())

    def restart(self) -> None:
        self.server.stop(0)
        self._start()

    @property
    def mediator(self) -> Mediator:
        assert self.server.mediator is not None
        return self.server.mediator


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        yield Running(stack, tmp_path)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def shown(client: Client, view: str, after: int) -> Bag:
    """The sum of all changes after a version, as watchers see them."""
    newest = client.view(view).version
    total: Bag = Counter()
    if newest > after:
        for version, change in client.watch(view, after):
            for row, count in change.items():
                total[row] += count
            if version.version == newest:
                break
    return Counter({row: count for row, count in total.items() if count})


@pytest.mark.parametrize("maintenance", [a.name for a in ALGORITHMS.values() if a.needs_keys])
def test_a_keyed_view_hides_its_keys_and_is_kept(running: Running, maintenance: str) -> None:
    """Reference: Strobe paper, section 5.1."""
    client = running.client
    single = ALGORITHMS[maintenance].single_source
    sql = ONE if single else BOTH
    created = client.create_view("v", sql, maintenance=maintenance)
    names = ["name", "boss"] if single else ["name", "item"]
    assert from_ipc(created.arrow_schema).column_names == names
    assert (created.maintenance.algorithm, created.maintenance.named) == (maintenance, True)
    expected: Bag = Counter({("Ada", "Ben"): 2} if single else {("Ada", "lens"): 2, ("Ben", "wire"): 1})
    assert client.bag("v") == expected

    running.writers["crm"].commit("INSERT INTO customer VALUES (4, 'Ada', 3)")
    running.writers["shop"].commit("INSERT INTO orders VALUES (4, 4, 'lens')")
    running.writers["shop"].commit("UPDATE orders SET id = 9 WHERE id = 1")
    running.writers["crm"].commit("DELETE FROM customer WHERE id = 2")
    running.writers["crm"].commit("UPDATE customer SET id = 7 WHERE id = 4")
    changed: Bag = Counter() if single else Counter({("Ada", "lens"): -1})
    kept: Bag = Counter({row: expected[row] + changed[row] for row in expected})
    until(lambda: client.bag("v") == kept and not client.status().views[0].pending)
    assert shown(client, "v", 0) == changed
    verified = client.verify("v")
    assert (from_ipc(verified.arrow).num_rows, verified.hidden_differences) == (0, 0)

    running.restart()
    client = running.client
    running.writers["crm"].commit("DELETE FROM customer WHERE id = 3")
    kept = Counter() if single else Counter({("Ada", "lens"): 1})
    until(lambda: client.bag("v") == kept)
    assert client.view("v").maintenance.algorithm == maintenance


def test_a_wrong_hidden_key_is_found_and_mended(running: Running) -> None:
    client = running.client
    client.create_view("v", BOTH, maintenance="t-strobe")
    view, warehouse = running.mediator.view("v"), running.mediator.warehouse
    wrong = pa.table(
        {
            "name": ["Ben", "Ben"],
            "item": ["wire", "wire"],
            "_key_c_id": [3, 3],
            "_key_o_id": [3, 33],
            "_count": [-1, 1],
            "_version": [1, 1],
        }
    )
    with view.installing, running.mediator.changed:
        row = VersionRow(1, "", Position(0), view.vector, now())
        warehouse.install([ViewInstall("v", [row], table=wrong)])
        view.version = 1
        view.queue.rebase(1, view.vector)
    assert shown(client, "v", 0) == {}
    verified = client.verify("v")
    assert (from_ipc(verified.arrow).num_rows, verified.hidden_differences) == (0, 2)
    assert client.refresh("v").changed_rows == 2
    assert client.verify("v").hidden_differences == 0


@pytest.mark.parametrize(
    ("sql", "declared", "algorithm", "level"),
    [
        (BOTH, {}, "sweep", "complete"),
        (BOTH, {"consistency": "complete"}, "sweep", "complete"),
        (BOTH, {"consistency": "strong"}, "nested-sweep", "strong"),
        (ONE, {"maintenance": "eca"}, "eca", "strong"),
        (ONE, {"maintenance": "ivma", "force": True}, "ivma", "none"),
    ],
)
def test_explain_tells_algorithm_level_and_reasons(
    running: Running, sql: str, declared: dict[str, object], algorithm: str, level: str
) -> None:
    spec = pb.ViewSpec(name="v", sql=sql, **declared)  # type: ignore[arg-type]
    found = running.client.stub.Explain(pb.ExplainRequest(spec=spec)).explanation.maintenance
    assert (found.algorithm, found.consistency) == (algorithm, level)
    assert found.named == ("maintenance" in declared)
    assert found.reasons[0].startswith(f"{algorithm} gives ")
    assert found.reasons[1] == (
        "source crm tells every transaction from the next, but for stretches marked as batched"
    )


@pytest.mark.parametrize(
    ("sql", "declared", "problem"),
    [
        (KEYLESS, {"maintenance": "strobe"}, "it needs a key of every relation, and crm.note has none"),
        (BOTH, {"maintenance": "eca"}, "it needs all relations in one source, and they are in crm and shop"),
        (BOTH, {"maintenance": "ivma"}, "has to be forced"),
        (BOTH, {"maintenance": "t-strobe", "consistency": "complete"}, "cannot be complete: t-strobe gives"),
    ],
)
def test_a_refusal_is_one_line_and_leaves_nothing(
    running: Running, sql: str, declared: dict[str, object], problem: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        running.client.create_view("v", sql, **declared)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    details = refused.value.details() or ""
    assert problem in details
    assert "; algorithms that can: sweep" in details
    assert "\n" not in details
    assert not running.client.status().views
