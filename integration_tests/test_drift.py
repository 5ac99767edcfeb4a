"""An owner changes a captured table: the view pauses with a clear error, its last version stays readable, and
`lockstep view refresh` goes on. Over real processes, as users run them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration_tests.client import Bag, Client
from integration_tests.processes import ROOT, LockstepProcess
from wrapper.tests.sqlite_writer import SqliteWriter

PATIENCE = 120.0
VIEW = "SELECT r.k, r.x, s.y FROM one.r AS r JOIN two.s AS s ON r.x = s.x"


@dataclass
class Site:
    """Two SQLite sources, of which `one` drifts, with a wrapper each and a mediator, in three processes."""

    one: SqliteWriter
    two: SqliteWriter
    client: Client
    address: str

    def lockstep(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cli.main", *arguments, "--address", self.address]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)

    def paused(self) -> str:
        """Why the view is paused, as soon as it is."""
        deadline = time.monotonic() + PATIENCE
        while self.client.view("v").state != "paused":
            assert time.monotonic() < deadline, "the view did not pause"
            time.sleep(0.05)
        return self.client.view("v").problem


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        writers = [stack.enter_context(SqliteWriter(tmp_path / f"{name}.db")) for name in ("one", "two")]
        writers[0].commit(
            "CREATE TABLE r (k INTEGER, x INTEGER, note TEXT)",
            "INSERT INTO r VALUES (1, 1, 'a'), (2, 2, 'b')",
        )
        writers[1].commit("CREATE TABLE s (x INTEGER, y INTEGER)", "INSERT INTO s VALUES (1, 10), (2, 20)")
        sources = []
        for name in ("one", "two"):
            file = tmp_path / f"{name}.yaml"
            file.write_text(f"sources: {{{name}: {{adapter: sqlite, url: 'sqlite:///{name}.db'}}}}")
            wrapper = LockstepProcess("wrapper", str(file))
            stack.callback(wrapper.stop)
            sources.append(f"  {name}: {{address: '{wrapper.wait_ready()}'}}")
        file = tmp_path / "mediator.yaml"
        head = "mediator: {listen: '127.0.0.1:0', warehouse: ./warehouse, engine: duckdb}"
        file.write_text("\n".join([head, "sources:", *sources]))
        mediator = LockstepProcess("mediator", str(file))
        stack.callback(mediator.stop)
        address = mediator.wait_ready()
        client = Client(address)
        stack.callback(client.close)
        client.create_view("v", VIEW)
        yield Site(writers[0], writers[1], client, address)


def test_a_view_over_a_table_that_changes(site: Site) -> None:
    expected: Bag = Counter({(1, 1, 10): 1, (2, 2, 20): 1})
    assert site.client.bag("v") == expected

    def drift(k: int, *statements: str) -> None:
        """The owner changes the table and writes to it; the view pauses, and a refresh goes on."""
        nonlocal expected
        site.one.commit(*statements, f"INSERT INTO r (k, x) VALUES ({k}, 1)")
        problem = site.paused()
        assert "one.r has to be prepared again" in problem
        assert "\n" not in problem
        assert site.client.bag("v") == expected, "the last good version stays readable"
        site.client.refresh("v")
        assert site.client.view("v").state == "maintained"
        expected[k, 1, 10] += 1
        assert site.client.bag("v") == expected
        follow(k + 1)

    def follow(k: int) -> None:
        """The view is kept again."""
        version = site.client.view("v").version
        site.one.commit(f"INSERT INTO r (k, x) VALUES ({k}, 2)")
        site.client.wait_for_version("v", version + 1)
        expected[k, 2, 20] += 1
        assert site.client.bag("v") == expected

    drift(10, "ALTER TABLE r ADD COLUMN more TEXT")
    copy = "INSERT INTO copy SELECT k, x, {} FROM r"
    put = ("DROP TABLE r", "ALTER TABLE copy RENAME TO r")
    # A column that the view does not read is retyped, and then dropped.
    drift(20, "CREATE TABLE copy (k INTEGER, x INTEGER, note INTEGER)", copy.format("length(note)"), *put)
    drift(30, "CREATE TABLE copy (k INTEGER, x INTEGER)", copy.replace(", {}", ""), *put)

    # A table that the view reads is renamed: there is nothing to go on with until it is back.
    site.one.commit("ALTER TABLE r RENAME TO q", "INSERT INTO q (k, x) VALUES (40, 1)")
    assert "one.r has to be prepared again: it no longer exists" in site.paused()
    shown = site.lockstep("view", "show", "v")
    assert "paused" in shown.stdout
    assert "it no longer exists" in shown.stdout
    refused = site.lockstep("view", "refresh", "v")
    assert refused.returncode == 1
    assert "'r'" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert site.client.bag("v") == expected, "the last good version stays readable"
    site.one.commit("ALTER TABLE q RENAME TO r")
    refreshed = site.lockstep("view", "refresh", "v")
    assert refreshed.returncode == 0, refreshed.stderr
    expected[40, 1, 10] += 1
    assert site.client.bag("v") == expected
    follow(41)
