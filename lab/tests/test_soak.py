"""The soak itself: a short run; its oracle notices what is wrong; its proxy is a bad network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adapters.servers import postgresql
from cli.main import app
from lab.soak.deployment import Deployment, Settings
from lab.soak.kinds import KINDS, available
from lab.soak.layout import TICKET, sources_of
from lab.soak.proxy import FAIR, Proxy, Weather
from lab.soak.stores import MARKER

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_soak_of_everything(tmp_path: Path) -> None:
    command = ["lab", "soak", "--minutes", "0.5", "--seed", "11", "--dir", str(tmp_path / "soak"), "--json"]
    run = subprocess.run(
        [sys.executable, "-m", "cli.main", *command], capture_output=True, text=True, cwd=ROOT, timeout=540
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
