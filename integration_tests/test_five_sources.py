"""One view over five kinds of sources: PostgreSQL, MariaDB, SQLite, DuckDB and a folder of CSV files.

Each has its own writer process, all at the same time; every version must equal the recompute at its vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from adapters.mariadb.tests.server import shared_server
from adapters.servers.postgresql import PostgresServer, why_not
from algebra.arrow_ipc import from_ipc
from integration_tests.deployment import Deployment, Source, file_source
from integration_tests.processes import finish
from integration_tests.random_writer import Size

# Seven tables in a chain: few enough rows per value that the join stays small.
SIZE = Size(values=8, rows=12)
TRANSACTIONS = 60


@pytest.fixture(params=["log", "trigger"])
def deployment(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployment]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    capture = request.param
    folder = tmp_path / "files"
    folder.mkdir()
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer.started())
        maria = shared_server()
        postgres_url, maria_url = postgres.url(postgres.create_database()), maria.url(maria.create_database())
        monkeypatch.setenv("MARIADB_URL", maria_url)  # it has a password, which no file may hold
        made = Deployment(
            stack,
            tmp_path,
            "duckdb",
            {
                "a": file_source("sqlite", tmp_path / "a.db"),
                "b": Source(
                    "postgresql",
                    postgres_url,
                    f"adapter: postgresql, url: '{postgres_url}', capture: {capture}, relations: [t]",
                ),
                "c": file_source("duckdb", tmp_path / "c.duckdb"),
                "d": Source(
                    "mariadb", maria_url, f"adapter: mariadb, url: '${{MARIADB_URL}}', capture: {capture}"
                ),
                "e": Source("csv", str(folder), f"adapter: files, url: 'file:///{folder}'"),
            },
        )
        yield made
        for name, process in {"mediator": made.mediator, **made.wrappers}.items():
            assert "Traceback" not in process.output, f"{name}:\n{process.output}"


@pytest.mark.slow
def test_every_version_over_five_kinds_of_sources_is_right(deployment: Deployment) -> None:
    writers = deployment.start_writers(TRANSACTIONS, seed=31, size=SIZE)
    deployment.client.create_view("v", deployment.view)
    finish(writers)
    states = deployment.check_every_version("v", TRANSACTIONS)
    result = deployment.client.verify("v")
    assert (result.version, from_ipc(result.arrow).num_rows) == (max(states), 0)
