"""The conformance kit on MariaDB, with log capture and with trigger capture."""

from __future__ import annotations

from adapters.conformance import conformance_tests
from adapters.mariadb.tests.harnesses import MariaDBHarness, MariaDBTriggerHarness

TestLog = conformance_tests(MariaDBHarness)
TestTrigger = conformance_tests(MariaDBTriggerHarness)
