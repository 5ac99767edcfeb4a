"""The conformance kit on PostgreSQL, followed through its log and through triggers."""

from __future__ import annotations

from adapters.conformance import conformance_tests
from adapters.postgresql.tests.harnesses import LogHarness, TriggerHarness

TestLog = conformance_tests(LogHarness)
TestTrigger = conformance_tests(TriggerHarness)
