"""The soak itself: a short run; its oracle notices what is wrong; its proxy is a bad network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adapters.servers import postgresql
from cli.main import app
from lab.soak.deployment import Deployment, Settings
from lab.soak.kinds import KINDS, available
from lab.soak.layout import TICKET, View, sources_of, views_of
from lab.soak.oracle import Bag, Change, Journal, Recompute, check
from lab.soak.proxy import FAIR, Proxy, Weather
from lab.soak.stores import MARKER

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_soak_of_everything(tmp_path: Path) -> None:
    command = ["lab", "soak", "--minutes", "0.5", "--seed", "11", "--dir", str(tmp_path / "soak"), "--json"]
    run = subprocess.run(
        [sys.executable, "-m", "cli.main", *command], capture_output=True, text=True, cwd=ROOT, timeout=280
    )
    report = json.loads(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    assert report["differences"] == report["problems"] == []
    assert sum(report["faults"].values()) > 5
    assert set(report["versions"]) == {"everything", "ends"}
    assert all(found["checked"] > 1 for found in report["versions"].values())
    roles = {"mediator", "wrapper", "writer"}
    if any(KINDS[kind].server for kind in available()[0]):
        roles.add("server")
    assert {role.split()[0] for role in report["peak_memory_bytes"]} == roles


@pytest.fixture
def view(tmp_path: Path) -> View:
    return views_of(sources_of(["sqlite-wal", "sqlite-wal"], tmp_path))[0]


def journals(view: View) -> dict[str, Journal]:
    first, second = view.sources
    return {
        first.name: [[("r0", 1, (1, 2, None)), ("r0b", 1, (2, 3))], [("r0", 1, (1, 2, None))]],
        second.name: [[("r1", 1, (3, 4, None))]],
    }


def states(view: View, order: list[str]) -> list[Bag]:
    """The view before and after each transaction, in that order of sources."""
    oracle = Recompute(view, journals(view))
    vector = {source.name: 0 for source in view.sources}
    found = [oracle.at(vector)]
    for name in order:
        vector = {**vector, name: vector[name] + 1}
        found.append(oracle.at(vector))
    return found


def changes(view: View, order: list[str]) -> list[Change]:
    made = states(view, order)
    deltas = []
    for number, (before, after) in enumerate(pairwise(made)):
        rows = {row: after[row] - before[row] for row in before.keys() | after.keys()}
        deltas.append(Change(number + 1, order[number], False, {r: n for r, n in rows.items() if n}))
    return deltas


def test_the_recompute_joins_in_a_row(view: View) -> None:
    first, second = (source.name for source in view.sources)
    last = states(view, [first, second, first])[-1]
    ticket = (TICKET, TICKET, 2, TICKET, TICKET, TICKET, TICKET, 1)
    assert last == Counter({(1, 2, None, 2, 3, 3, 4, None): 2, ticket: 1})


def test_the_oracle_accepts_what_is_right_and_nothing_else(view: View) -> None:
    first, second = (source.name for source in view.sources)
    order = [first, second, first]
    start, right = states(view, order)[0], changes(view, order)
    assert check(view, journals(view), start, right, {}).differences == []
    lost = check(view, journals(view), start, right[:-1], {})
    assert "ends at" in lost.differences[0]
    twice = [*right[:2], Change(3, first, False, {row: 2 * n for row, n in right[2].rows.items()})]
    assert check(view, journals(view), start, twice, {}).differences
    gap = [right[0], Change(3, second, False, right[1].rows)]
    assert "version 3 follows version 1" in check(view, journals(view), start, gap, {}).differences[0]
    folded = changes(view, order)[:1]
    both = {row: right[1].rows.get(row, 0) + right[2].rows.get(row, 0) for c in right[1:] for row in c.rows}
    folded.append(Change(2, first, False, {row: n for row, n in both.items() if n}))
    assert check(view, journals(view), start, folded, {}).differences
    wrong = [Change(1, first, False, {**right[0].rows, (9,) * 8: 1}), *right[1:]]
    assert "1 rows too much" in check(view, journals(view), start, wrong, {}).differences[0]
    seen = check(view, journals(view), start, right, {1: Counter()})
    assert "a reader saw something else" in seen.differences[0]


def test_every_kind_can_be_written_and_locked(tmp_path: Path) -> None:
    with Deployment(Settings(tmp_path, available()[0])) as deployment:
        for source in deployment.sources:
            kind = KINDS[source.kind]
            relation = source.relations[0]
            with closing(kind.open(source)) as store:
                store.begin()
                store.insert(relation, (1, None, None))
                store.insert(relation, (1, None, None))
                store.delete_one(relation, (1, None, None))
                store.set_ticket(relation, 1)
                changes = [(relation.name, 1, (1, None, None))]
                store.commit(1, changes)
                store.begin()
                store.insert(relation, (2, 2, None))
                store.rollback()
                assert store.last() == 1
                assert store.journal() == [(1, changes)], source.kind
                rows = store.rows(relation)
            assert rows == Counter({(TICKET, TICKET, 1): 1, (1, None, None): 1}), source.kind
            with kind.locked(source):
                pass
            with closing(kind.open(source)) as store:
                assert store.rows(relation) == rows, source.kind


@pytest.mark.parametrize("journaled", [True, False], ids=["after the journal", "before the journal"])
def test_a_folder_of_files_recovers_from_a_kill_in_the_middle_of_a_commit(
    tmp_path: Path, journaled: bool
) -> None:
    (source,) = sources_of(["files-csv"], tmp_path)
    kind, (first, second) = KINDS[source.kind], source.relations
    with closing(kind.open(source)) as store:
        store.create()
        for number in (1, 2):
            store.begin()
            store.insert(first, (number, number, None))
            store.set_ticket(first, number)
            store.commit(number, [(first.name, 1, (number, number, None))])
    # The files are half replaced, and the last line of the journal is whole or torn.
    folder, journal = Path(source.place), Path(source.place + ".journal")
    (folder / MARKER).unlink()
    (folder / f"{second.name}.csv").write_text("l,r\n5,5\n")
    if not journaled:
        journal.write_text(journal.read_text()[:-5])
    with closing(kind.open(source)) as store:
        last = store.last()
        assert last == (2 if journaled else 1)
        expected = [first.ticket(last), *((n, n, None) for n in range(1, last + 1))]
        assert store.rows(first) == Counter(expected)
        assert store.rows(second) == Counter([second.ticket(0)])
    assert (folder / MARKER).exists()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "_binaries", lambda: None)
    usable, absent = available()
    assert {"postgresql-log", "postgresql-trigger", "sqlalchemy-diff"} <= set(absent)
    assert "sqlite-wal" in usable
    done = CliRunner().invoke(app, ["lab", "soak", "--source", "postgresql-log"])
    assert done.exit_code == 1
    assert f"postgresql-log: no PostgreSQL server is installed; {postgresql.INSTALL}" in done.output


def test_the_proxy_passes_cuts_and_falls_silent() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy("{}:{}".format(*server.getsockname()))
    host, _, port = proxy.address.rpartition(":")
    client = socket.create_connection((host, int(port)))
    there, _ = server.accept()
    client.sendall(b"hello")
    assert there.recv(5) == b"hello"
    proxy.weather = Weather(silent=True)
    client.sendall(b"again")
    there.settimeout(0.3)
    with pytest.raises(TimeoutError):
        there.recv(5)
    proxy.weather = FAIR
    there.settimeout(30)
    assert there.recv(5) == b"again"
    proxy.cut()
    client.settimeout(30)
    with pytest.raises(ConnectionError):
        client.recv(1)
    proxy.close()
    server.close()
