from __future__ import annotations

from adapters.conformance import conformance_tests
from adapters.conformance.tests.memory_harness import MemoryHarness

TestMemory = conformance_tests(MemoryHarness)
