"""The command's options become a plan; importing it is cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from algebra.errors import ConfigurationError
from lab.bench import command
from lab.bench.plan import Plan
from lab.bench.processes import ROOT
from lab.bench.results import Mode


def test_importing_the_command_loads_nothing_heavy() -> None:
    heavy = "{'duckdb', 'pyarrow', 'grpc', 'pyspark', 'psutil', 'rich.table'}"
    code = f"import sys, lab.bench.command; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_repeats_are_outermost_and_small_batches_run_shorter_streams(tmp_path: Path) -> None:
    plan = Plan(tmp_path, ("0.01",), ("duckdb",), (Mode.LIVE,), (1, 100, 1000), repeat=2)
    cases = [(case.repeat, case.batch, case.transactions) for case in plan.cases()]
    assert cases == [
        (1, 1, 200),
        (1, 100, 2000),
        (1, 1000, 10_000),
        (2, 1, 200),
        (2, 100, 2000),
        (2, 1000, 10_000),
    ]
    assert plan.longest_stream == 10_000


def test_fewer_transactions_bound_every_run(tmp_path: Path) -> None:
    plan = Plan(tmp_path, transactions=150, freshness=30)
    assert {case.transactions for case in plan.cases()} == {150}


NO_SUBCOMMAND = SimpleNamespace(invoked_subcommand=None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"engine": "flink"}, "'flink' is not one of duckdb, spark, auto"),
        ({"sf": "large"}, "'large' is not a scale factor"),
        ({"batch": "0"}, "'0' is not a positive whole number"),
        ({"batch": ","}, "--batch names nothing"),
        ({"limit": "1"}, "--limit"),
    ],
)
def test_wrong_options_are_one_clear_line(options: dict[str, str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        command.bench(NO_SUBCOMMAND, directory=tmp_path, **options)  # type: ignore[arg-type]
