"""Memory stays bounded: a huge transaction, a long backlog, a stopped mediator, and a source that stays away.

The bounds are stated in docs/operations.md. They are asserted on the peak resident memory of real processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import duckdb
import pytest

from adapters.spi import Changes
from algebra.arrow_ipc import from_ipc
from algebra.engines.contract import Start, ViewChange
from algebra.plan import SweepPlan
from integration_tests.client import Client
from integration_tests.processes import LockstepProcess, run_lockstep
from integration_tests.site import ALONE, PATIENCE, VIEW, Site, inside, wait_for
from lab.soak.deployment import Deployment, Settings, wait_until
from lab.soak.proxy import FAIR, Weather
from lab.soak.reader import Reader
from mediator import channel
from mediator.process import MaintenanceProcess
from mediator.server import MediatorServer
from mediator.update_queue import DeliveredRun, UpdateMessageQueue
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.limits import WrapperLimits
from wrapper.order_assignment import OrderAssignment
from wrapper.tests.exchange import Mediator as ExchangeEnd
from wrapper.tests.sqlite_writer import SqliteWriter
from wrapper.update_processor import DeltaIS

MEDIATOR_BOUND = 1_500_000_000
WRAPPER_BOUND = 1_000_000_000
"""Bytes; for a transaction of a million rows of four columns, with the default settings."""

BACKLOG_BOUND = 600_000_000
BACKLOG_GROWTH = 250_000_000
"""Bytes; for a backlog of any length of small transactions, and what one of five times the length may add to
that: caches of SQLite that fill up, and noise. Read at once, they took 980 MB, of which 560 MB were added."""

ANSWER_GROWTH = 300_000_000
"""Bytes; for an answer of any size during a backlog of any length, with 64 MiB for joins: 200 MB as measured,
with a fifth of the rows as with double. Computed in memory, it failed with that little for joins."""

_BIG = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=120)
connection.execute("BEGIN IMMEDIATE")
connection.execute(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
    "INSERT INTO r0 SELECT 1000 + i, 1000 + i, NULL FROM n", [int(sys.argv[2])])
connection.execute("COMMIT")
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_transaction_of_a_million_rows_and_a_backlog_behind_a_stopped_mediator(tmp_path: Path) -> None:
    rows = 1_000_000
    with Deployment(Settings(tmp_path, ["sqlite-wal", "sqlite-wal"], load=20.0)) as deployment:
        view = deployment.views[0]
        first = deployment.sources[0]
        deployment.start_all(writers=False)
        reader = Reader(deployment)
        reader.patiently(lambda: reader.state(view, 0), PATIENCE)
        with deployment.stopped("mediator"):
            subprocess.run([sys.executable, "-c", _BIG, first.place, str(rows)], check=True)
            _backlog(first.place, 20_000)
        newest = 20_001
        assert wait_until(lambda: _version(reader) >= newest, 2 * PATIENCE), deployment.output("mediator")
        status = reader.status()
        assert status.waiting_rows <= status.limits.umq_rows == 2_000_000
        peak = dict(deployment.memory.peak)
        assert 0 < peak["mediator"] <= MEDIATOR_BOUND, peak
        assert max(n for role, n in peak.items() if role.startswith("wrapper")) <= WRAPPER_BOUND, peak
        assert status.peak_memory_bytes <= MEDIATOR_BOUND


_MANY = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=120)
connection.execute("PRAGMA synchronous = OFF")
connection.execute("CREATE INDEX by_l ON r0 (l)")
for i in range(int(sys.argv[2])):
    connection.execute("UPDATE r0 SET tx = ? WHERE l = -1", [i + 1])
"""


def _backlog(path: str, transactions: int) -> None:
    """Ten minutes' worth at 33 transactions a second, while nobody takes them."""
    subprocess.run([sys.executable, "-c", _MANY, path, str(transactions)], check=True)


_JOINED = "SELECT o.id, o.customer, i.n, i.amount FROM shop.orders AS o JOIN shop.item AS i ON i.ord = o.id"
_ROWS = 1500
_WRITE = """
import sqlite3, sys
first, last, rows = map(int, sys.argv[2:])
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=120)
connection.execute("PRAGMA synchronous = OFF")
connection.execute("PRAGMA cache_size = -100000")
for i in range(first, last):
    connection.execute("BEGIN IMMEDIATE")
    if i % 2:
        begin = 2000 * (i - 1) + 10
        connection.execute(
            "UPDATE item SET amount = amount + 1 WHERE ord >= ? AND ord < ?", [begin, begin + rows // 2])
        connection.execute("INSERT INTO orders VALUES (?, ?)", [begin, i])
    else:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
            "INSERT INTO item SELECT ? + i, i, 7 FROM n", [rows, 2000 * i])
    connection.execute("COMMIT")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_backlog_of_millions_of_rows_takes_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    """Behind a mediator that was away, over a local view that joins two relations; every version is there.

    In each pair of transactions the first adds rows that join nothing. The second changes half of them, then
    adds what one of them joins with, so its ΔIS needs that row as it was before all that came later.
    """
    path, file = tmp_path / "shop.db", tmp_path / "lockstep.yaml"
    with SqliteWriter(path) as writer:
        writer.commit(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER)",
            "CREATE TABLE item (ord INTEGER, n INTEGER, amount INTEGER)",
            "CREATE INDEX by_ord ON item (ord)",
            "INSERT INTO orders VALUES (-1, 0)",
            "INSERT INTO item VALUES (-1, 0, 0)",
        )
    source = {"adapter": "sqlite", "url": f"sqlite:///{path}", "listen": "127.0.0.1:0"}
    mediator = {"listen": "127.0.0.1:0", "warehouse": "./warehouse", "engine": "duckdb"}
    file.write_text(json.dumps({"mediator": mediator, "sources": {"shop": source}}))
    with ExitStack() as stack:
        wrapper = LockstepProcess("wrapper", str(file))
        stack.callback(wrapper.stop)
        address = wrapper.wait_ready()

        def start_mediator() -> tuple[LockstepProcess, Client]:
            process = LockstepProcess("mediator", str(file), "--source-address", f"shop={address}")
            stack.callback(process.stop)
            return process, Client(process.wait_ready(), timeout=PATIENCE)

        process, client = start_mediator()
        client.create_view("v", _JOINED)
        peaks, done = [], 0
        for transactions in (700, 3500):
            client.close()
            process.stop()
            words = [str(path), str(done), str(done + transactions), str(_ROWS)]
            subprocess.run([sys.executable, "-c", _WRITE, *words], check=True)
            done += transactions
            process, client = start_mediator()
            client.wait_for_version("v", done)
            peaks.append(_wrapper_peak(client))
        assert [version.version for version in client.history("v")] == list(range(done, -1, -1))
        joined = {(2000 * (i - 1) + 10, i, 10, 8) for i in range(1, done, 2)}
        assert set(client.bag("v")) == joined | {(-1, 0, 0, 0)}
        assert client.bag("v", as_of=done - 2).total() == len(joined)
        assert 0 < peaks[0] <= peaks[1] <= BACKLOG_BOUND, peaks
        assert peaks[1] - peaks[0] <= BACKLOG_GROWTH, peaks
        memory = client.status().sources[0].memory
        assert (memory.max_run_rows, memory.embedded_memory) == (200_000, "512MiB")
        shown = run_lockstep("status", "--address", client.address).stdout
        assert "runs of 200,000 rows, joins in 512MiB" in " ".join(shown.split()), shown
        client.close()


_LARGE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=120)
connection.execute("PRAGMA synchronous = OFF")
for i in range(60):
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) "
        "INSERT INTO r SELECT ? + i, hex(zeroblob(200)) || i FROM n", [10000 * i])
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_answer_during_a_backlog_takes_the_memory_of_joins_and_no_more(tmp_path: Path) -> None:
    """Of all rows, none of which was there yet: 250 MB are read, and 250 MB taken back."""
    path, file = tmp_path / "s.db", tmp_path / "lockstep.yaml"
    with SqliteWriter(path) as writer:
        writer.commit("CREATE TABLE r (x INTEGER, y TEXT)")
    source = {
        "adapter": "sqlite",
        "url": f"sqlite:///{path}",
        "listen": "127.0.0.1:0",
        "max_run_rows": 20_000,
        "embedded_memory": "64MiB",
    }
    file.write_text(json.dumps({"sources": {"s": source}}))
    wrapper = LockstepProcess("wrapper", str(file))
    with ExitStack() as stack:
        stack.callback(wrapper.stop)
        mediator = stack.enter_context(ExchangeEnd(wrapper.wait_ready(), "s"))
        mediator.expect("attached")
        (view,) = mediator.decompose("SELECT r.x, r.y FROM s.r r").local_views
        _, start = mediator.load(view)
        mediator.define(view, start)
        mediator.expect("defined")
        subprocess.run([sys.executable, "-c", _LARGE, str(path)], check=True)
        before = _told_peak(mediator)
        answer, position = mediator.result(view, mediator.ask(view, None))
        assert (len(answer), position) == (0, start)
        assert _told_peak(mediator) - before <= ANSWER_GROWTH


def _told_peak(mediator: ExchangeEnd) -> int:
    """The most memory that the wrapper had, as its next heartbeat tells."""
    while not (response := mediator.receive(heartbeats=True)).progress.HasField("memory"):
        pass
    return response.progress.memory.peak_memory_bytes


def _wrapper_peak(client: Client) -> int:
    """The most memory that the wrapper had, as its next heartbeat tells."""
    assert wait_until(lambda: client.status().sources[0].HasField("memory"), PATIENCE)
    return client.status().sources[0].memory.peak_memory_bytes


def _version(reader: Reader) -> int:
    return next(view.version for view in reader.status().views)


def test_what_a_view_misses_while_a_source_is_away_stays_in_the_sources(site: Site) -> None:
    server, client = site.mediator(umq_rows=200)
    client.create_view("v", VIEW)
    client.create_view("alone", ALONE)
    site.proxies["two"].weather = Weather(closed=True)
    site.proxies["two"].cut()
    wait_for(server, lambda mediator: not mediator.channels["two"].connected)
    for k in range(10, 310):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
    client.wait_for_version("alone", 300)
    wait_for(server, lambda mediator: mediator.views["v"].parked)
    status = next(view for view in client.status().views if view.view == "v")
    assert (status.state, status.parked, status.pending) == ("stale", True, 0)
    assert client.status().waiting_rows <= 200
    site.writers["one"].commit("DELETE FROM r WHERE k = 10")
    client.wait_for_version("alone", 301)
    site.proxies["two"].weather = FAIR
    client.wait_for_version("v", 301)
    assert client.bag("v").total() == 301
    assert [version.version for version in client.history("v")] == list(range(301, -1, -1))


def test_a_query_to_a_source_with_a_long_backlog_does_not_fill_the_mediator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sources have much to tell, and each batch of one asks the other: that must not force it out."""
    most, run, transactions = 100, 20, 400
    with ExitStack() as stack:
        site = Site(stack, tmp_path, limits=WrapperLimits(max_run_rows=run), umq_rows=most, max_batch=10)
        server, client = site.mediator()
        client.create_view("v", VIEW)
        server.stop(0)
        for k in range(transactions):
            site.writers["one"].commit(f"INSERT INTO r VALUES ({10 + k}, 1)")
            site.writers["two"].commit(f"UPDATE s SET y = {k} WHERE x = 1")
        waiting: list[int] = []
        log_update = UpdateMessageQueue.log_update

        def noted(self: UpdateMessageQueue, run: DeliveredRun) -> None:
            log_update(self, run)
            waiting.append(self.cost)

        monkeypatch.setattr(UpdateMessageQueue, "log_update", noted)
        server, client = site.mediator()
        client.wait_for_version("v", 2 * transactions)
        assert from_ipc(client.verify("v").arrow).num_rows == 0
    # A run is about so many changed rows; each may be a transaction, and an update of a row is two of them.
    assert max(waiting) <= most + 2 * 3 * run
    assert len(waiting) > 2 * transactions / run


def test_a_source_that_never_ends_is_away_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its update is told in parts without a last one; when it is told in full at last, nothing was lost."""
    parts, lying = OrderAssignment._parts, threading.Event()

    def never_ending(
        changes: Changes, deltas: Mapping[str, DeltaIS], touched: Sequence[int]
    ) -> Iterator[pb.Update]:
        for message in parts(changes, deltas, touched):
            if not lying.is_set() or "w.two" in deltas:
                yield message
                continue
            message.more = True
            for _ in range(100):
                yield message
                message = pb.Update(deltas=message.deltas, more=True)

    monkeypatch.setattr(OrderAssignment, "_parts", staticmethod(never_ending))
    with ExitStack() as stack:
        site = Site(stack, tmp_path, umq_rows=20, assembled_rows=50)
        server, client = site.mediator()
        client.create_view("v", ALONE)
        client.create_view("w", "SELECT s.x, s.y FROM two.s AS s")
        lying.set()
        site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")

        def is_told(_: object) -> bool:
            status = client.status()
            assert status.limits.assembled_rows == 50
            problems = {source.source: source.problem for source in status.sources}
            states = {view.view: view.state for view in status.views}
            refused = "sent more than 50 rows of updates beyond its credit" in problems["one"]
            return refused and states == {"v": "stale", "w": "maintained"}

        wait_for(server, is_told)
        site.writers["two"].commit("INSERT INTO s VALUES (3, 30)")
        client.wait_for_version("w", 1)
        assert client.bag("v") == Counter([(1, 1), (2, 2)])
        lying.clear()
        client.wait_for_version("v", 1)
        assert client.bag("v") == Counter([(1, 1), (2, 2), (3, 3)])
        assert client.view("v").version == 1


def test_credit_comes_back_although_nothing_is_installed(site: Site) -> None:
    """A view that is dropped takes its waiting updates along: its source must not wait for them."""
    server, client = site.mediator(umq_rows=50)
    client.create_view("v", VIEW)
    view = inside(server).views["v"]
    with view.installing:
        for k in range(10, 90):
            site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
        wait_for(server, lambda mediator: mediator.channels["one"].owed >= mediator.config.credit_rows)
    client.wait_for_version("v", 80)
    wait_for(server, lambda mediator: mediator.channels["one"].owed == 0)


def never_done(monkeypatch: pytest.MonkeyPatch, name: str, done: threading.Event) -> None:
    """Have a view that gets message by message be busy with the first one until it is done."""
    go_on = MaintenanceProcess.go_on

    def busy(process: MaintenanceProcess) -> None:
        if process.view.name != name or done.is_set():
            go_on(process)

    monkeypatch.setattr(MaintenanceProcess, "go_on", busy)


def test_views_that_advance_together_do_not_wait_for_one_that_is_always_busy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have a backlog that takes long, or get more than it can do."""
    done = threading.Event()
    never_done(monkeypatch, "v", done)
    server, client = site.mediator()
    client.create_view("v", VIEW, maintenance="psweep")
    client.create_view("alone", ALONE)
    for k in range(3, 6):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
        client.wait_for_version("alone", k - 2)
    assert client.view("v").version == 0
    assert len(inside(server).views["v"].queue) == 3
    done.set()
    client.wait_for_version("v", 3)
    assert client.bag("v") == Counter({(1, 1, 10): 1, (2, 2, 20): 1} | {(k, 1, 10): 1 for k in range(3, 6)})


@pytest.mark.parametrize("busy", ["", "asks", "works"])
def test_a_global_transaction_that_is_never_whole_does_not_fill_the_mediator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    """All that comes after it waits for its other part: up to a bound. Then the view is paused.

    Also if another view is always waiting for answers of its own, or always has something to do.
    """
    asking: property = vars(MaintenanceProcess)["is_asking"]
    always = property(lambda self: (busy == "asks" and self.view.name == "w") or asking.__get__(self))
    monkeypatch.setattr(MaintenanceProcess, "is_asking", always)
    done = threading.Event()
    if busy == "works":
        never_done(monkeypatch, "x", done)
    with ExitStack() as stack:
        site = Site(stack, tmp_path, limits=WrapperLimits(max_run_rows=20))
        for name, table in (("one", "a"), ("two", "b")):
            site.writers[name].commit(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, n INTEGER)",
                f"INSERT INTO {table} VALUES (1, 1)",
            )
        server, client = site.mediator(umq_rows=100, assembled_rows=50)
        sql = "SELECT a.id, a.n, b.n AS m FROM one.a AS a JOIN two.b AS b ON a.id = b.id"
        client.create_view("v", sql, maintenance="g-strobe")
        client.create_view("w", "SELECT a.n FROM one.a AS a")
        client.create_view("x", "SELECT b.n FROM two.b AS b", maintenance="psweep")
        site.writers["two"].commit("UPDATE b SET n = 1")
        mark = "INSERT INTO _lockstep_global (id, participants) VALUES ('never', 'one,two')"
        site.writers["one"].commit("UPDATE a SET n = 2", mark)
        for n in range(3, 203):
            site.writers["one"].commit(f"UPDATE a SET n = {n}")
        wait_for(server, lambda mediator: bool(mediator.views["v"].problem))
        assert client.view("v").problem == (
            "more than 150 rows wait for what has not come, such as another part of a global transaction; "
            "if that is to be waited for, raise umq_rows"
        )
        assert client.bag("v") == Counter([(1, 1, 1)])
        done.set()
        client.wait_for_version("w", 201)
        wait_for(server, lambda mediator: mediator.waiting_rows == 0)
        client.refresh("v")
        assert client.bag("v") == Counter([(1, 202, 1)])


def break_and_wait(site: Site, server: MediatorServer, source: str) -> None:
    """Break a source's connection; return when the new one has brought its first heartbeat."""
    channel = inside(server).channels[source]
    before = channel.since
    site.proxies[source].cut()
    wait_for(server, lambda _: channel.connected and channel.since > before)
    channel.memory = None
    wait_for(server, lambda _: channel.memory is not None)


def test_a_connection_that_breaks_often_does_not_fill_the_mediator(site: Site) -> None:
    """What waits keeps its share of credit: a new stream is no reason to send as much again."""
    server, client = site.mediator(umq_rows=50)
    client.create_view("v", ALONE)
    view, one = inside(server).views["v"], inside(server).channels["one"]
    with view.installing:
        for k in range(10, 90):
            site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
        wait_for(server, lambda mediator: one.owed >= mediator.config.credit_rows)
        waits = view.queue.cost
        for _ in range(3):
            break_and_wait(site, server, "one")
        assert view.queue.cost == waits
    client.wait_for_version("v", 80)
    wait_for(server, lambda mediator: one.owed == 0)


def test_a_transaction_that_overdrew_its_credit_is_not_lent_again_by_a_new_stream(site: Site) -> None:
    """On a new stream a source begins with no credit, not with a debt; so a debt must not be given back."""
    server, client = site.mediator(umq_rows=50)
    client.create_view("v", ALONE)
    mediator = inside(server)
    view, one = mediator.views["v"], mediator.channels["one"]
    with view.installing:
        site.writers["one"].commit(f"INSERT INTO r VALUES {', '.join(f'({k}, 1)' for k in range(10, 210))}")
        wait_for(server, lambda _: view.queue.cost == 201)
        for _ in range(2):
            break_and_wait(site, server, "one")
    client.wait_for_version("v", 1)
    session = site.wrappers["one"]._processor._session
    assert session is not None
    wait_for(server, lambda _: one.owed == 0 and session.credit > 0)
    assert session.credit == mediator.config.credit_rows == 25


def test_a_batch_that_is_too_large_for_the_engine_is_tried_in_smaller_ones(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view is right and must not pause; after a while batches are large again."""
    server, client = site.mediator()
    client.create_view("v", VIEW)
    mediator = inside(server)
    engine = mediator._state.engine
    assemble = engine.assemble
    refused: list[int] = []

    def limited(plan: SweepPlan, starts: Sequence[Start], directory: Path | None) -> ViewChange:
        rows = sum(start.deltas.num_rows for start in starts)
        if rows > 8:
            refused.append(rows)
            raise duckdb.OutOfMemoryException("too many rows for a test")
        return assemble(plan, starts, directory)

    monkeypatch.setattr(engine, "assemble", limited)
    with mediator.views["v"].installing:
        for k in range(10, 60):
            site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
        wait_for(server, lambda found: len(found.views["v"].queue) == 50)
    client.wait_for_version("v", 50)
    assert refused[0] == 50
    assert client.view("v").state == "maintained"
    assert client.bag("v").total() == 52


def test_a_batch_of_too_many_keys_for_one_query_is_tried_in_smaller_ones(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper refuses a larger message with its whole stream, and every view over the source with it."""
    monkeypatch.setattr(channel, "MOST_QUERY_BYTES", 3000)
    server, client = site.mediator()
    client.create_view("v", VIEW)
    with inside(server).views["v"].installing:
        for k in range(10, 410):
            site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, {k})")
        wait_for(server, lambda found: len(found.views["v"].queue) == 400)
    site.writers["two"].commit("INSERT INTO s VALUES (200, 5)")
    client.wait_for_version("v", 401)
    assert client.view("v").state == "maintained"
    assert client.bag("v") == Counter({(1, 1, 10): 1, (2, 2, 20): 1, (200, 200, 5): 1})
    site.writers["one"].commit(f"INSERT INTO r VALUES {', '.join(f'({k}, {k})' for k in range(1000, 1400))}")
    wait_for(server, lambda found: bool(found.views["v"].problem))
    assert "a query to source 'two' would carry" in client.view("v").problem
    assert inside(server).channels["two"].connected
    assert client.view("v").version == 401
    client.refresh("v")
    assert client.bag("v") == Counter({(1, 1, 10): 1, (2, 2, 20): 1, (200, 200, 5): 1})


def test_verifying_changes_nothing_of_what_sources_may_send(site: Site) -> None:
    """Credit that it gave for good would add to the bound, and stop a source while the others are quiet."""
    server, client = site.mediator(umq_rows=60)
    client.create_view("v", VIEW)
    for _ in range(3):
        assert from_ipc(client.verify("v").arrow).num_rows == 0
    for k in range(10, 310):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
    client.wait_for_version("v", 300)
    wait_for(server, lambda mediator: [source.owed for source in mediator.channels.values()] == [0, 0])
    assert from_ipc(client.verify("v").arrow).num_rows == 0


def test_what_waits_for_a_view_that_is_held_keeps_no_other_source_from_going_on(site: Site) -> None:
    """It is verified, say, or one of its sources does not answer; the view beside it needs none of that."""
    site.writers["two"].commit("CREATE TABLE t (k INTEGER)", "INSERT INTO t VALUES (0)")
    server, client = site.mediator(umq_rows=40)
    client.create_view("v", VIEW)
    client.create_view("beside", "SELECT t.k FROM two.t AS t")
    with inside(server).views["v"].installing:
        for k in range(10, 110):
            site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
        wait_for(server, lambda mediator: mediator.channels["one"].owed >= mediator.config.credit_rows)
        for k in range(1, 101):
            site.writers["two"].commit(f"INSERT INTO t VALUES ({k})")
        client.wait_for_version("beside", 100)
        assert inside(server).views["v"].version == 0
    client.wait_for_version("v", 100)
    wait_for(server, lambda mediator: [source.owed for source in mediator.channels.values()] == [0, 0])
