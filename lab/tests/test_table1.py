"""Table 1, on few schedules: what each algorithm is known for shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from algebra.consistency import Level
from cli.main import app
from lab.picture import draw
from lab.table1 import Plan, Table, measure, never_quiet

PLAN = Plan(schedules=3, sources=(2, 4), commits=(0.01, 1.0), transactions=6)


@pytest.fixture(scope="module")
def table() -> Table:
    made = Table()
    for key, history in measure(PLAN):
        made.add(key, history)
    return made


def test_every_algorithm_runs_as_often(table: Table) -> None:
    assert {table.of(name).schedules for name in PLAN.algorithms} == {PLAN.runs // len(PLAN.algorithms)}


@pytest.mark.parametrize("name", ["sweep", "sweep-published", "psweep", "c-strobe", "copies"])
def test_complete_algorithms_are_complete(table: Table, name: str) -> None:
    assert set(table.of(name).levels) == {Level.COMPLETE}


def test_what_the_papers_say_of_messages(table: Table) -> None:
    """Reference: SWEEP paper, Table 1 and sections 5.3 and 6.2; Strobe paper, section 6."""

    def queries(name: str, sources: int) -> float:
        return table.by_sources(name)[sources].queries_per_update

    assert queries("sweep-published", 2) == 1, "n-1"
    assert queries("sweep-published", 4) <= 3, "n-1 at most"
    assert queries("sweep", 4) < queries("sweep-published", 4), "batches are cheaper"
    assert queries("nested-sweep", 4) < queries("sweep-published", 4), "so is dovetailing"
    assert queries("eca", 2) == queries("eca", 4) == 1
    calm, busy = table.by_commits("c-strobe").values()
    assert calm.compensating < busy.compensating
    assert table.of("sweep").compensating == 0, "SWEEP compensates locally"
    assert table.by_commits("ivma")[0.01].levels.keys() != table.by_commits("ivma")[1.0].levels.keys()


def test_strobe_waits_and_sweep_does_not() -> None:
    """Reference: Strobe paper, section 6; SWEEP paper, section 3."""
    assert never_quiet("strobe", 0, transactions=40)[0] == 0
    assert never_quiet("sweep-published", 0, transactions=40)[0] > 0
    assert never_quiet("c-strobe", 0, transactions=40)[0] > 0


def test_the_same_plan_gives_the_same_runs() -> None:
    plan = Plan(algorithms=("sweep", "strobe"), schedules=1, sources=(3,), commits=(1.0,), transactions=4)
    first, again = ([history.actions for _, history in measure(plan)] for _ in range(2))
    assert first == again


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_it_is_drawn(table: Table, tmp_path: Path, suffix: str) -> None:
    draw(table, PLAN.algorithms, tmp_path / f"t{suffix}")
    draw(table, PLAN.algorithms, tmp_path / f"again{suffix}")
    drawn = (tmp_path / f"t{suffix}").read_bytes()
    assert len(drawn) > 1000
    assert drawn == (tmp_path / f"again{suffix}").read_bytes()


def test_the_command_prints_and_refuses() -> None:
    chosen = ["lab", "table1", "--schedules", "1", "--transactions", "3"]
    chosen += ["--algorithm", "sweep", "--algorithm", "strobe"]
    done = CliRunner().invoke(app, [*chosen, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [row["algorithm"] for row in found["algorithms"]] == ["sweep", "strobe"]
    assert found["algorithms"][0]["reached"]["complete"] == 1.0
    printed = CliRunner().invoke(app, chosen).stdout
    assert "complete 100%" in printed
    assert "needed (0/80)" in printed
    for wrong, problem in (
        (("--picture", "t.bmp"), "name it .svg, .png or .pdf"),
        (("--algorithm", "magic"), "unknown maintenance algorithm 'magic'"),
        (("--scenario", "global"), "single updates or source-local transactions"),
    ):
        refused = CliRunner().invoke(app, ["lab", "table1", *wrong])
        assert (refused.exit_code, len(refused.output.splitlines())) == (1, 1)
        assert problem in refused.output
