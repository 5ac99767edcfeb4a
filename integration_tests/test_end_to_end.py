"""Everything together: separate wrapper, mediator and writer processes over SQLite and DuckDB.

Random transactions run at the same time as the initial load and later. *Every* version must equal the view
recomputed, by plain loops over the writers' own journals, at the vector that the version shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from algebra.arrow_ipc import from_ipc
from integration_tests.deployment import Deployment, file_source
from integration_tests.processes import finish
from protos.lockstep.v1 import mediator_pb2 as pb

KINDS = {"a": "sqlite", "b": "sqlite", "c": "duckdb"}


TINY_RUNS = ", max_run_rows: 2"
"""Nearly every look at a source shows more than one run."""
ENGINES = [
    pytest.param(("duckdb", ""), id="duckdb"),
    pytest.param(("spark", ""), id="spark", marks=pytest.mark.spark),
]


@pytest.fixture
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    engine, settings = request.param
    sources = {name: file_source(kind, tmp_path / f"{name}.{kind}", settings) for name, kind in KINDS.items()}
    with ExitStack() as stack:
        made = Deployment(stack, tmp_path, engine, sources)
        yield made
        for name, process in {"mediator": made.mediator, **made.wrappers}.items():
            assert "Traceback" not in process.output, f"{name}:\n{process.output}"


@pytest.mark.parametrize(
    "deployment",
    [*ENGINES, pytest.param(("duckdb", TINY_RUNS), id="duckdb-in-tiny-runs")],
    indirect=True,
)
def test_every_version_is_right_from_the_load_on(deployment: Deployment) -> None:
    transactions = 150
    writers = deployment.start_writers(transactions, seed=11)
    deployment.client.create_view("v", deployment.view)
    finish(writers)
    states = deployment.check_every_version("v", transactions)
    client = deployment.client
    newest = max(states)
    for version in {0, newest // 3, newest // 2, newest}:
        assert client.bag("v", as_of=version) == states[version]
    client.stub.CompactView(pb.CompactViewRequest(name="v"))
    for version in {0, newest // 2, newest}:
        assert client.bag("v", as_of=version) == states[version], "history survives compaction"
    result = client.verify("v")
    assert (result.version, from_ipc(result.arrow).num_rows) == (newest, 0)
    status = client.status()
    (view,) = status.views
    assert view.queries <= view.batches * 2 * (len(KINDS) - 1), "at most 2(n-1) queries per batch"
    assert view.queries == sum(source.queries for source in status.sources), "counted on the wire"


@pytest.mark.parametrize("deployment", ENGINES, indirect=True)
def test_verify_works_while_the_sources_change(deployment: Deployment) -> None:
    transactions = 100
    deployment.client.create_view("v", deployment.view)
    writers = deployment.start_writers(transactions, seed=23)
    results = [deployment.client.verify("v") for _ in range(3)]
    finish(writers)
    states = deployment.check_every_version("v", transactions)
    for result in results:
        assert from_ipc(result.arrow).num_rows == 0
        assert result.rows == states[result.version].total()
