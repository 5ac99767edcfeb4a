from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from lab.tests.test_transcripts import FILES, text_of


def lab(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["lab", *arguments])


def test_importing_the_command_loads_nothing_heavy() -> None:
    heavy = "{'duckdb', 'pyarrow', 'grpc', 'pyspark', 'sqlglot', 'rich.table'}"
    code = f"import sys, lab.command; print(sorted({heavy} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"


def test_run_tells_the_levels_and_the_cost() -> None:
    done = lab("run", "sweep", "--schedules", "21", "--faults")
    assert done.exit_code == 0, done.output
    assert "complete" in done.output
    assert "100.0 %" in done.output
    assert "queries per update: " in done.output


def test_run_as_json() -> None:
    done = lab("run", "sweep", "--schedules", "21", "--scenario", "single", "--sources", "2", "--json")
    facts = json.loads(done.output)
    assert facts["levels"] == {"complete": 21}
    assert facts["promised"] == "complete"
    assert facts["below_promise"] == 0


def test_run_shows_and_saves_a_counterexample(tmp_path: Path) -> None:
    file = tmp_path / "wrong.txt"
    done = lab("run", "ivma", "--schedules", "42", "--scenario", "single", "--save", str(file))
    assert done.exit_code == 0, "ivma promises nothing"
    assert "a smallest run that fails:" in done.output
    assert file.read_text(encoding="utf-8") in done.output
    assert lab("replay", str(file)).exit_code == 0


def test_explore_a_file_and_an_algorithm() -> None:
    (file,) = (file for file in FILES if file.stem == "slides-insertion-anomaly")
    facts = json.loads(lab("explore", str(file), "--json").output)
    assert facts["all_schedules"] is True
    assert facts["levels"]["none"] > 0
    assert lab("explore", "sweep-published", "--limit", "5").exit_code == 0


def test_a_level_below_the_promise_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from algebra.consistency import Level, Scenario
    from mediator.maintenance.ivma import Ivma

    monkeypatch.setattr(Ivma, "guarantee", dict.fromkeys(Scenario, Level.STRONG))
    done = lab("run", "ivma", "--schedules", "42", "--scenario", "single", "--json")
    assert done.exit_code == 1
    assert json.loads(done.output)["below_promise"] > 0


def test_replay_shows_what_differs_and_rewrites_it(tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    text = text_of("slides-correct")
    file.write_text(text.replace("level: complete", "level: strong"), encoding="utf-8")
    done = lab("replay", str(file))
    assert done.exit_code == 1
    assert "-level: strong, promised: none" in done.output
    assert "+level: complete, promised: none" in done.output
    assert lab("replay", str(file), "--rewrite").exit_code == 0
    assert file.read_text(encoding="utf-8") == text
    assert json.loads(lab("replay", str(file), "--json").output)[0]["state"] == "same"


def test_errors_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.txt"
    file.write_text("algorithm: sweep\nnonsense\n", encoding="utf-8")
    done = lab("replay", str(file))
    assert done.exit_code == 1
    (line,) = done.output.strip().splitlines()
    assert line.startswith(f"error: {file}: line 2: expected a heading such as")
    assert line.endswith("found 'nonsense'")
    assert "cannot be read" in lab("replay", str(tmp_path / "none.txt")).output
    assert "unknown maintenance algorithm" in lab("run", "swoop").output
