"""The PostgreSQL server of a test session: import the fixture into a `conftest.py` or a test module.

from adapters.postgresql.tests.server import postgres_server  # noqa: F401
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adapters.servers.postgresql import PostgresServer, why_not


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's server; skips, with the command that installs one, where there is none."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with PostgresServer.started() as server:
        yield server
