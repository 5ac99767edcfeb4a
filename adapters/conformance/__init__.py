"""The conformance kit: what every adapter must get right, tried on a real source.

Tests: `TestMine = conformance_tests(MyHarness)`. A live source, without writing: `check_source(adapter)`.
"""

from adapters.conformance.case import Case, CaseFailure, CaseSkipped, run_case
from adapters.conformance.cases import CASES, cases_for
from adapters.conformance.check import CheckResult, check_source
from adapters.conformance.disturbance import (
    CreateTable,
    Disturbance,
    DropTable,
    LoseCapture,
    RebuildTable,
    TruncateTable,
    disturb_table,
    keeps,
)
from adapters.conformance.harness import Harness, Quirks, Stored, Writer
from adapters.conformance.operations import (
    Delete,
    Empty,
    Fill,
    Insert,
    Mark,
    Operation,
    Overwrite,
    Raise,
    RollbackTo,
    Row,
    RowOperation,
    Savepoint,
    Transaction,
    Update,
    effective,
)
from adapters.conformance.process import in_process
from adapters.conformance.pytest_kit import conformance_tests
from adapters.conformance.samples import SAMPLES, Sample
from adapters.conformance.schema_change import (
    AddColumn,
    DropColumn,
    RenameTable,
    RetypeColumn,
    SchemaChange,
    alter_table,
    altered,
)
from adapters.conformance.sql_writer import SqlWriter

__all__ = [
    "CASES",
    "SAMPLES",
    "AddColumn",
    "Case",
    "CaseFailure",
    "CaseSkipped",
    "CheckResult",
    "CreateTable",
    "Delete",
    "Disturbance",
    "DropColumn",
    "DropTable",
    "Empty",
    "Fill",
    "Harness",
    "Insert",
    "LoseCapture",
    "Mark",
    "Operation",
    "Overwrite",
    "Quirks",
    "Raise",
    "RebuildTable",
    "RenameTable",
    "RetypeColumn",
    "RollbackTo",
    "Row",
    "RowOperation",
    "Sample",
    "Savepoint",
    "SchemaChange",
    "SqlWriter",
    "Stored",
    "Transaction",
    "TruncateTable",
    "Update",
    "Writer",
    "alter_table",
    "altered",
    "cases_for",
    "check_source",
    "conformance_tests",
    "disturb_table",
    "effective",
    "in_process",
    "keeps",
    "run_case",
]
