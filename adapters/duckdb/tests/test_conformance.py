"""The conformance kit on DuckDB files, with trigger capture and with diff capture."""

from __future__ import annotations

from adapters.conformance import conformance_tests
from adapters.duckdb.tests.harnesses import DuckDBDiffHarness, DuckDBHarness

TestTrigger = conformance_tests(DuckDBHarness)
TestDiff = conformance_tests(DuckDBDiffHarness)
