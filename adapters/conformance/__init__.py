"""The conformance kit: what every adapter must get right, tried on a real source.

Tests: `TestMine = conformance_tests(MyHarness)`. A live source, without writing: `check_source(adapter)`.
"""

from adapters.conformance.case import Case, CaseFailure, CaseSkipped, run_case
from adapters.conformance.cases import CASES
from adapters.conformance.check import CheckResult, check_source
from adapters.conformance.harness import Harness, Quirks, Stored, Writer
from adapters.conformance.operations import (
    Delete,
    Insert,
    Mark,
    Operation,
    Overwrite,
    Row,
    Transaction,
    Update,
)
from adapters.conformance.process import in_process
from adapters.conformance.pytest_kit import conformance_tests
from adapters.conformance.sql_writer import SqlWriter

__all__ = [
    "CASES",
    "Case",
    "CaseFailure",
    "CaseSkipped",
    "CheckResult",
    "Delete",
    "Harness",
    "Insert",
    "Mark",
    "Operation",
    "Overwrite",
    "Quirks",
    "Row",
    "SqlWriter",
    "Stored",
    "Transaction",
    "Update",
    "Writer",
    "check_source",
    "conformance_tests",
    "in_process",
    "run_case",
]
