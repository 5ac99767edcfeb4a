"""Memory stays bounded: a huge transaction, a long backlog, a stopped mediator, and a source that stays away.

The bounds are stated in docs/operations.md. They are asserted on the peak resident memory of real processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import duckdb
import pytest

from algebra.engines.contract import Start, ViewChange
from algebra.plan import SweepPlan
from integration_tests.client import Client
from integration_tests.processes import LockstepProcess, run_lockstep
from integration_tests.site import ALONE, PATIENCE, VIEW, Site, inside, wait_for
from lab.soak.deployment import Deployment, Settings, wait_until
from lab.soak.proxy import FAIR, Weather
from lab.soak.reader import Reader
from wrapper.tests.sqlite_writer import SqliteWriter

MEDIATOR_BOUND = 1_500_000_000
WRAPPER_BOUND = 1_000_000_000
"""Bytes; for a transaction of a million rows of four columns, with the default settings."""

BACKLOG_BOUND = 600_000_000
BACKLOG_GROWTH = 250_000_000
"""Bytes; for a backlog of any length of small transactions, and what one of five times the length may add to
that: caches of SQLite that fill up, and noise. Read at once, they took 980 MB, of which 560 MB were added."""

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


def test_credit_comes_back_although_nothing_is_installed(site: Site) -> None:
    """A view that is dropped takes its waiting updates along: its source must not wait for them."""
    server, client = site.mediator(umq_rows=50)
    client.create_view("v", VIEW)
    view = inside(server).views["v"]
    with view.installing:
        for k in range(10, 90):
            site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
        wait_for(server, lambda mediator: mediator.channels["one"].owed >= 50)
    client.wait_for_version("v", 80)
    wait_for(server, lambda mediator: mediator.channels["one"].owed == 0)


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
