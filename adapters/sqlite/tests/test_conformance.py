"""The conformance kit on SQLite files, in write-ahead mode and with a rollback journal."""

from __future__ import annotations

from adapters.conformance import conformance_tests
from adapters.sqlite.tests.harnesses import RollbackJournalHarness, SqliteHarness

TestWal = conformance_tests(SqliteHarness)
TestRollbackJournal = conformance_tests(RollbackJournalHarness)
