"""The pytest plugin: light in runs that do not use the kit, and what it adds to those that do."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapters.pytest_plugin import pytest_collection_modifyitems

ROOT = Path(__file__).resolve().parents[3]

MODULE = """
from adapters.conformance import conformance_tests
from adapters.conformance.tests.memory_harness import MemoryHarness
from dataclasses import replace

class NoServer(MemoryHarness):
    quirks = replace(MemoryHarness.quirks, no_restart="it never stops")

TestMemory = conformance_tests(NoServer)

def test_other():
    pass
"""


def python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True)


def test_importing_it_imports_nothing_else() -> None:
    heavy = "{'pyarrow', 'duckdb', 'algebra', 'adapters.conformance', 'adapters.spi'}"
    done = python("-c", f"import sys, adapters.pytest_plugin; print(sorted({heavy} & set(sys.modules)))")
    assert done.stdout.strip() == "[]", done.stderr


def test_the_kit_itself_needs_no_pytest() -> None:
    done = python("-c", "import sys, adapters.conformance; print('pytest' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_its_options(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(MODULE)
    installed = any(p.value == "adapters.pytest_plugin" for p in entry_points(group="pytest11"))
    base = ["-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path), "--strict-markers"]
    base += ["-p", "no:cacheprovider", *([] if installed else ["-p", "adapters.pytest_plugin"])]
    cases = ["remove-is-idempotent", "a-source-that-is-down-is-unavailable"]
    chosen = [f"--conformance-case={name}" for name in cases]
    done = python(*base, str(tmp_path), "--conformance-report", *chosen)
    assert "2 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "TestMemory: keeps 1 cases, 1 do not apply" in done.stdout
    assert "a-source-that-is-down-is-unavailable: no restart: it never stops" in done.stdout


class Marked:
    """As much of a collected test as the plugin looks at."""

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(args=("remove-is-idempotent",)) if name == "conformance" else None


def test_a_case_that_does_not_exist_is_refused() -> None:
    config = SimpleNamespace(getoption=lambda name: ["no-such-case"])
    with pytest.raises(pytest.UsageError, match="there is no conformance case 'no-such-case'"):
        pytest_collection_modifyitems(config, [Marked()])  # type: ignore[arg-type, list-item]
