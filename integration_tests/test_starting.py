"""Processes that start, and that cannot: one line that says why, exit code 1, everything let go of."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from integration_tests.processes import LockstepProcess, run_lockstep
from integration_tests.site import PATIENCE
from lab.soak.deployment import wait_until
from mediator.warehouse.tests.builders import row
from mediator.warehouse.warehouse import Warehouse

ANY = "127.0.0.1:0"


@pytest.fixture
def taken() -> Any:
    """The address of a port on which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


def written(folder: Path, mediator: dict[str, Any], shop: dict[str, Any]) -> Path:
    with closing(sqlite3.connect(folder / "shop.db")) as made:
        made.execute("CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY)")
    document = {
        "mediator": {"listen": ANY, "warehouse": str(folder / "warehouse"), "engine": "duckdb", **mediator},
        "sources": {
            "shop": {
                "adapter": "sqlite",
                "url": f"sqlite:///{folder / 'shop.db'}",
                "listen": ANY,
                "address": "127.0.0.1:1",
                **shop,
            }
        },
    }
    file = folder / "lockstep.yaml"
    file.write_text(json.dumps(document))
    return file


@pytest.mark.parametrize("server", ["mediator", "wrapper"])
@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("listen", "cannot listen on {}: is the address in use?"),
        ("metrics", "cannot serve metrics on {}: Address already in use"),
    ],
)
def test_an_address_that_is_taken(tmp_path: Path, taken: str, server: str, key: str, problem: str) -> None:
    settings = {key: taken}
    file = written(tmp_path, *((settings, {}) if server == "mediator" else ({}, settings)))
    done = run_lockstep(server, str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {problem.format(taken)}\n"
    file = written(tmp_path, {}, {})
    process = LockstepProcess(server, str(file))
    process.wait_ready()  # nothing was left behind that would be in its way
    assert process.stop() == 0, process.output


@pytest.mark.parametrize("section", ["mediator", "sources.shop"])
def test_a_size_that_is_none(tmp_path: Path, section: str) -> None:
    settings = {"embedded_memory": "lots"}
    file = written(tmp_path, *((settings, {}) if section == "mediator" else ({}, settings)))
    done = run_lockstep("doctor", str(file))
    assert done.returncode == 1
    assert done.stdout == (
        f"wrong   configuration: {file}: {section}.embedded_memory: "
        "expected a size with its unit, for example 512MiB\n"
    )


def test_records_of_a_common_start_are_records_still(tmp_path: Path) -> None:
    file = written(tmp_path, {}, {"address": None})
    process = LockstepProcess("--log-format", "json", "up", str(file))
    for awaited in ("lockstep is up", "source shop connected at"):
        assert wait_until(lambda awaited=awaited: awaited in process.output, PATIENCE)  # type: ignore[misc]
    assert process.stop() == 0, process.output
    lines = [line for line in process.output.splitlines() if not line.startswith("lockstep is up")]
    records = [json.loads(line) for line in lines]
    assert {record["process"] for record in records} == {"mediator", "wrapper shop"}
    assert any(record.get("logger") == "mediator.channel" for record in records)


@pytest.mark.parametrize(
    ("options", "variable"), [((), "elsewhere"), (("--warehouse", "elsewhere"), "no warehouse")]
)
def test_a_warehouse_that_is_not_the_files_is_copied_and_looked_at(
    tmp_path: Path, options: tuple[str, ...], variable: str
) -> None:
    """As by the mediator: an option wins over its variable, and that over the file."""
    file = written(tmp_path, {}, {})
    Warehouse(tmp_path / "warehouse").close()
    kept = tmp_path / "elsewhere"
    with Warehouse(kept) as warehouse:
        rows = pa.table({"x": pa.array([1], pa.int64()), "_count": pa.array([1], pa.int64())})
        warehouse.create_view("v", {}, pa.schema([("x", pa.int64())]), rows, row(0))
    given = [str(tmp_path / part) if part == "elsewhere" else part for part in options]
    environment = {"LOCKSTEP_WAREHOUSE": str(tmp_path / variable)}
    copied = run_lockstep(
        "backup", str(file), str(tmp_path / "copy"), "--json", *given, environment=environment
    )
    assert copied.returncode == 0, copied.stderr
    assert json.loads(copied.stdout)["versions"] == {"v": 0}
    seen = run_lockstep("doctor", str(file), "--json", *given, environment=environment)
    (found,) = [line for line in json.loads(seen.stdout) if line["what"] == "warehouse"]
    assert found["detail"].startswith(f"{kept} (there)")


def test_doctor_looks_at_the_address_that_the_mediator_would_take(tmp_path: Path, taken: str) -> None:
    environment = {"LOCKSTEP_MEDIATOR_LISTEN": taken}
    done = run_lockstep("doctor", str(written(tmp_path, {}, {})), "--json", environment=environment)
    (found,) = [line for line in json.loads(done.stdout) if line["what"] == "mediator"]
    assert found["state"] == "wrong"
    assert taken in found["detail"]
