"""ECA and ECA-Key under the oracle: every schedule of small scenarios, random ones of random scenarios."""

from __future__ import annotations

from dataclasses import replace

import pytest

from algebra.consistency import Level, Scenario
from lab.experiment import Experiment, run
from lab.explore import explore
from lab.oracle import check_vectors, judge
from lab.scenario_text import parse_scenario
from lab.world import World

FAMILY = ["eca", "eca-key"]

# A row that is deleted before the answer to its own insertion comes: the answer holds it nevertheless.
INSERTED_AND_DELETED = """
algorithm: eca
view: SELECT r1.w, r2.y FROM s.r1 r1, s.r2 r2 WHERE r1.x = r2.x
source s
  relation r1(w int key, x int)
    (1, 2)
  relation r2(x int, y int key)
    (2, 4)
  transaction +r2(2, 3)
  transaction -r2(2, 3)
  transaction -r1(1, 2) +r1(4, 2)
"""

# The two insertions of the first transaction join with each other and with what was there.
SEVERAL_RELATIONS = """
algorithm: eca
view: SELECT r1.a, r2.b, r3.c FROM s.r1 r1, s.r2 r2, s.r3 r3 WHERE r1.i = r2.i AND r2.j = r3.j
source s
  relation r1(a int key, i int)
    (1, 1)
  relation r2(b int key, i int, j int)
    (1, 1, 1)
  relation r3(c int key, j int)
    (1, 1)
  transaction +r1(2, 1) +r2(2, 1, 1)
  transaction -r2(1, 1, 1) +r3(2, 1)
  transaction -r1(2, 1) -r3(1, 1) +r3(1, 2)
"""


@pytest.mark.parametrize("algorithm", FAMILY)
@pytest.mark.parametrize("scenario", [INSERTED_AND_DELETED, SEVERAL_RELATIONS], ids=["again", "several"])
def test_every_schedule_is_strongly_consistent(scenario: str, algorithm: str) -> None:
    found = World(replace(parse_scenario(scenario.lstrip()), algorithm=algorithm))
    for history in explore(found):
        verdict = judge(history)
        assert verdict.level >= Level.STRONG, verdict.explanation
        assert check_vectors(history) == []


@pytest.mark.parametrize("kind", [Scenario.SINGLE_UPDATE, Scenario.SOURCE_LOCAL], ids=str)
@pytest.mark.parametrize("algorithm", FAMILY)
class TestRandomSchedules:
    @pytest.mark.parametrize("relations", [2, 3])
    def test_the_promise_is_kept(self, algorithm: str, kind: Scenario, relations: int) -> None:
        result = run(Experiment(algorithm, relations, schedules=63, seed=1, kind=kind))
        assert (result.broken, result.untrue) == (0, 0)

    @pytest.mark.slow
    def test_the_promise_is_kept_when_processes_are_restarted(self, algorithm: str, kind: Scenario) -> None:
        result = run(Experiment(algorithm, 4, schedules=420, seed=5, kind=kind, faults=True))
        assert (result.broken, result.untrue) == (0, 0)
