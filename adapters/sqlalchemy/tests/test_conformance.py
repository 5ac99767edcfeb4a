"""The conformance kit on three databases behind SQLAlchemy."""

from __future__ import annotations

from adapters.conformance import conformance_tests
from adapters.sqlalchemy.tests.harnesses import MariaDBHarness, PostgresHarness, SqliteHarness

TestSqlite = conformance_tests(SqliteHarness)
TestPostgresql = conformance_tests(PostgresHarness)
TestMariadb = conformance_tests(MariaDBHarness)
