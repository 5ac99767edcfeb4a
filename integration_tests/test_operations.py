"""Operators' business over real processes: draining, copies of the warehouse that go on, doctor."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from adapters.servers.ports import free_port
from integration_tests.processes import ROOT
from integration_tests.site import PATIENCE, VIEW, Site, wait_for
from lab.soak.deployment import Deployment, Settings, wait_until
from lab.soak.layout import View
from lab.soak.oracle import check, read_journal
from lab.soak.reader import Reader


def lockstep(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    settings = Settings(tmp_path, ["sqlite-wal", "duckdb-trigger"], mediator={"on_lost_history": "resync"})
    with Deployment(settings) as made:
        yield made


def rest(deployment: Deployment, reader: Reader, view: View) -> Mapping[str, list[object]]:
    """Stop writing, and wait until the view has everything; the journals."""
    deployment.stop_writers()
    journals = {source.name: read_journal(source) for source in deployment.sources}
    goal = {name: len(journal) for name, journal in journals.items()}
    assert wait_until(lambda: reader.vector(view) == goal, PATIENCE), deployment.output("mediator")
    return journals  # type: ignore[return-value]


def test_a_drained_deployment_goes_on_and_a_copy_of_its_warehouse_does_too(deployment: Deployment) -> None:
    view = deployment.views[0]
    reader = Reader(deployment)
    deployment.start_all()
    reader.patiently(lambda: reader.state(view, 0), PATIENCE)
    assert wait_until(lambda: reader.state(view)[0] > 5, PATIENCE)

    copy = deployment.directory / "copy"
    done = lockstep("backup", str(deployment.file), str(copy), "--json")
    assert done.returncode == 0, done.stderr
    copied = json.loads(done.stdout)["versions"][view.name]

    changes = reader.changes(view, 1 << 60)
    next(changes)  # a client that watches while the mediator drains
    for role in ("mediator", f"wrapper {deployment.sources[0].name}"):
        process = deployment.processes[role]
        process.signal(signal.SIGTERM)
        assert process._process.wait(PATIENCE) == 0, deployment.output(role)
        assert "Traceback" not in deployment.output(role)
    watched = [change.version for change in changes]  # it ended in good order, or this would raise
    assert watched == list(range(2, 2 + len(watched)))
    before = deployment.output("mediator").count("listening")
    deployment.start(f"wrapper {deployment.sources[0].name}")
    deployment.start("mediator")
    assert wait_until(lambda: deployment.output("mediator").count("listening") == before + 1, PATIENCE)
    journals = rest(deployment, reader, view)
    newest, _ = reader.state(view)
    verdict = check(view, journals, reader.state(view, 0)[1], reader.changes(view, newest), {})  # type: ignore[arg-type]
    assert verdict.differences == []

    # The copy, restored elsewhere, with sources that went on and trimmed what the original acknowledged.
    deployment.processes["mediator"].signal(signal.SIGTERM)
    deployment.processes["mediator"]._process.wait(PATIENCE)
    deployment.file.write_text(deployment.file.read_text().replace("./warehouse", str(copy)))
    deployment.start("mediator")
    deployment.start_writer(deployment.sources[0])
    deployment.start_writer(deployment.sources[1])
    reader.patiently(lambda: reader.state(view, 0), PATIENCE)
    assert wait_until(lambda: reader.state(view)[0] > copied + 5, PATIENCE), deployment.output("mediator")
    journals = rest(deployment, reader, view)
    newest, _ = reader.state(view)
    verdict = check(view, journals, reader.state(view, 0)[1], reader.changes(view, newest), {})  # type: ignore[arg-type]
    assert verdict.differences == []
    assert verdict.versions == newest + 1


def test_a_mediator_drains_in_bounded_time_while_a_source_is_gone(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(stack, tmp_path)
        server, client = site.mediator()
        client.create_view("v", VIEW)
        site.wrappers["two"].stop(0)
        site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
        wait_for(server, lambda mediator: not mediator.channels["two"].connected)
        server.stop(1.0)
        assert not [thread for thread in server.mediator._threads if thread.is_alive()]  # type: ignore[union-attr]


def test_doctor_says_what_is_wrong(tmp_path: Path) -> None:
    with Deployment(Settings(tmp_path, ["sqlite-wal", "duckdb-trigger"])) as deployment:
        text = deployment.file.read_text().replace('"listen": "127.0.0.1:0", "relations', '"relations')
        document = json.loads(text)
        for section in document["sources"].values():
            section["listen"] = f"127.0.0.1:{free_port()}"
        deployment.file.write_text(json.dumps(document))
        good = lockstep("doctor", str(deployment.file), "--json")
        states = {finding["what"]: finding for finding in json.loads(good.stdout)}
        assert good.returncode == 0, good.stdout
        first, second = (source.name for source in deployment.sources)
        assert states[f"source {first}"]["detail"] == "2 relations, capture by trigger, to be installed"
        assert states[f"wrapper {second}"]["state"] == "warning"
        assert {"configuration", "mediator", "warehouse", "clock"} <= set(states)

        document["sources"][first]["url"] = "sqlite:///nowhere.db"
        document["sources"]["elsewhere"] = {"address": "127.0.0.1:3"}
        deployment.file.write_text(json.dumps(document))
        (tmp_path / "warehouse").mkdir()
        (tmp_path / "warehouse" / "format.json").write_text('{"format": 99}')
        bad = lockstep("doctor", str(deployment.file), "--json")
        states = {finding["what"]: finding for finding in json.loads(bad.stdout)}
        assert bad.returncode == 1
        wrong = {what for what, finding in states.items() if finding["state"] == "wrong"}
        assert wrong == {f"source {first}", "wrapper elsewhere", "warehouse"}
        assert "format 99" in states["warehouse"]["detail"]
    missing = lockstep("doctor", str(tmp_path / "none.yaml"))
    assert missing.returncode == 1
    assert "there is no such file" in missing.stdout
