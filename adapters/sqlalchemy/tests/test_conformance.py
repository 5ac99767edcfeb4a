"""The conformance kit on three databases behind SQLAlchemy.

The whole kit runs on PostgreSQL. What comes after the rows were read is the shadow's and the same for all, so
SQLite and MariaDB have the cases that depend on the database: its types, names and rows, concurrent writers,
drift, rights, and a server that goes away.
"""

from __future__ import annotations

from adapters.conformance import conformance_tests
from adapters.conformance.cases import agreement, drift, names, recovery, rights, rows, types
from adapters.sqlalchemy.tests.harnesses import MariaDBHarness, PostgresHarness, SqliteHarness

DEPEND_ON_THE_DATABASE = tuple(
    case for module in (types, names, rows, agreement, drift, rights, recovery) for case in module.CASES
)

TestPostgresql = conformance_tests(PostgresHarness)
TestSqlite = conformance_tests(SqliteHarness, DEPEND_ON_THE_DATABASE)
TestMariadb = conformance_tests(MariaDBHarness, DEPEND_ON_THE_DATABASE)
