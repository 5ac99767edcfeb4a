"""The conformance kit on folders of files, in each format."""

from __future__ import annotations

from adapters.conformance import conformance_tests
from adapters.files.tests.harnesses import ExcelHarness, FilesHarness, JsonLinesHarness, ParquetHarness

TestCsv = conformance_tests(FilesHarness)
TestJsonLines = conformance_tests(JsonLinesHarness)
TestParquet = conformance_tests(ParquetHarness)
TestExcel = conformance_tests(ExcelHarness)
