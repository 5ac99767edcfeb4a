"""The Strobe family under the oracle: every schedule of small scenarios, random ones of random scenarios."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from algebra.consistency import Level, Scenario
from lab.experiment import Experiment, run
from lab.explore import explore
from lab.history import History
from lab.oracle import check_vectors, judge
from lab.scenario_text import parse_scenario
from lab.schedules import replay
from lab.world import World

FAMILY = ["strobe", "t-strobe", "g-strobe", "c-strobe", "c-tstrobe"]
BY_TRANSACTION = ["t-strobe", "g-strobe", "c-tstrobe"]

EXAMPLE_1 = """
algorithm: strobe
view: SELECT r1.a, r2.b, r3.c, r3.d FROM x.r1 r1, y.r2 r2, z.r3 r3 WHERE r1.b = r2.b AND r2.c = r3.c
source x
  relation r1(a int key, b int)
    (1, 2)
  transaction -r1(1, 2)
source y
  relation r2(b int key, c int)
  transaction +r2(2, 3)
source z
  relation r3(c int key, d int)
    (3, 4)
"""

# The row comes and goes, always the same: C-Strobe must tell its first insertion from a later one.
DELETED_AND_INSERTED_AGAIN = """
algorithm: strobe
view: SELECT r1.a, r2.k FROM x.r1 r1, y.r2 r2 WHERE r1.b = r2.b
source x
  relation r1(a int key, b int)
  transaction +r1(5, 2)
source y
  relation r2(k int key, b int)
    (1, 2)
  transaction -r2(1, 2)
  transaction +r2(1, 2)
  transaction -r2(1, 2)
"""

# Old and new version of a row have one key, and differ only in a column that the view does not show.
MODIFIED = """
algorithm: strobe
view: SELECT r1.a, r2.k FROM x.r1 r1, y.r2 r2 WHERE r1.b = r2.b
source x
  relation r1(a int key, b int)
  transaction +r1(5, 2)
  transaction +r1(6, 3)
source y
  relation r2(k int key, b int)
    (1, 2)
  transaction -r2(1, 2) +r2(1, 3)
"""

# One transaction inserts into two local views of one source, and the rows join.
TWO_LOCAL_VIEWS_OF_ONE_SOURCE = """
algorithm: strobe
view: SELECT a.k AS ak, h.k AS hk, b.k AS bk FROM x.a a, y.h h, x.b b WHERE a.j = h.j AND h.i = b.i
source x
  relation a(k int key, j int)
    (1, 1)
  relation b(k int key, i int)
  transaction +a(2, 1) +b(2, 1)
source y
  relation h(k int key, j int, i int)
    (1, 1, 1)
  transaction -h(1, 1, 1) +h(1, 1, 2)
"""

# One row of a is two rows of the local view a ⋈ b: a single update all the same.
TWO_RELATIONS_IN_ONE_LOCAL_VIEW = """
algorithm: strobe
view: SELECT a.k AS ak, b.k AS bk, h.k AS hk FROM x.a a, x.b b, y.h h WHERE a.j = b.j AND b.i = h.i
source x
  relation a(k int key, j int)
    (1, 1)
  relation b(k int key, j int, i int)
    (1, 1, 1) (2, 1, 1)
  transaction -a(1, 1)
  transaction +a(2, 1)
source y
  relation h(k int key, i int)
    (1, 1)
  transaction -h(1, 1)
"""

EXAMPLE_4 = """
algorithm: strobe
view: SELECT r1.a, r1.b FROM x.r1 r1
source x
  relation r1(a int key, b int)
    (1, 2)
  transaction -r1(1, 2) +r1(3, 4)
"""

GLOBAL = """
algorithm: strobe
view: SELECT r1.a, r2.k FROM x.r1 r1, y.r2 r2 WHERE r1.b = r2.b
source x
  relation r1(a int key, b int)
    (1, 2)
  transaction t of x, y: +r1(5, 2)
source y
  relation r2(k int key, b int)
    (1, 2)
  transaction t of x, y: +r2(3, 2)
"""


def world(scenario: str, algorithm: str) -> World:
    return World(replace(parse_scenario(scenario.lstrip()), algorithm=algorithm))


def lowest(histories: Iterable[History]) -> Level:
    """The level that all of several runs have reached."""
    return min(judge(history).level for history in histories)


class TestEverySchedule:
    @pytest.mark.parametrize("algorithm", FAMILY)
    @pytest.mark.parametrize(
        "scenario",
        [
            EXAMPLE_1,
            DELETED_AND_INSERTED_AGAIN,
            MODIFIED,
            TWO_LOCAL_VIEWS_OF_ONE_SOURCE,
            TWO_RELATIONS_IN_ONE_LOCAL_VIEW,
            EXAMPLE_4,
            GLOBAL,
        ],
        ids=["example 1", "again", "modified", "two local views", "two relations", "example 4", "global"],
    )
    def test_the_promise_is_kept(self, scenario: str, algorithm: str) -> None:
        found = world(scenario, algorithm)
        for history in explore(found):
            verdict = judge(history)
            assert verdict.level >= found.scenario.promise, verdict.explanation

    def test_strobe_shows_the_middle_of_a_transaction_and_t_strobe_does_not(self) -> None:
        """Reference: Strobe paper, section 5.3, Example 4."""
        assert lowest(explore(world(EXAMPLE_4, "strobe"))) == Level.CONVERGENT
        assert lowest(explore(world(EXAMPLE_4, "c-strobe"))) == Level.CONVERGENT
        assert lowest(explore(world(EXAMPLE_4, "t-strobe"))) >= Level.STRONG
        assert lowest(explore(world(EXAMPLE_4, "c-tstrobe"))) == Level.COMPLETE

    def test_t_strobe_shows_a_part_of_a_global_transaction_and_g_strobe_does_not(self) -> None:
        """Reference: Strobe paper, section 5.4."""
        assert lowest(explore(world(GLOBAL, "t-strobe"))) == Level.WEAK
        assert lowest(explore(world(GLOBAL, "c-tstrobe"))) == Level.WEAK
        assert lowest(explore(world(GLOBAL, "g-strobe"))) >= Level.STRONG

    def test_strobe_waits_for_quiescence_and_c_strobe_does_not(self) -> None:
        """Reference: Strobe paper, section 6; Figure 2."""
        assert lowest(explore(world(EXAMPLE_1, "strobe"))) == Level.STRONG
        assert lowest(explore(world(EXAMPLE_1, "c-strobe"))) == Level.COMPLETE


@pytest.mark.parametrize("kind", Scenario, ids=str)
@pytest.mark.parametrize("algorithm", FAMILY)
class TestRandomSchedules:
    def test_the_promise_is_kept(self, algorithm: str, kind: Scenario) -> None:
        result = run(Experiment(algorithm, schedules=63, seed=1, kind=kind))
        assert result.broken == 0
        if algorithm in BY_TRANSACTION:
            assert result.untrue == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("sources", [2, 4])
    def test_the_promise_is_kept_when_processes_are_restarted(
        self, algorithm: str, kind: Scenario, sources: int
    ) -> None:
        result = run(Experiment(algorithm, sources, schedules=210, seed=2, kind=kind, faults=True))
        assert result.broken == 0
        if algorithm in BY_TRANSACTION:
            assert result.untrue == 0


@pytest.mark.parametrize("algorithm", BY_TRANSACTION)
def test_vectors_tell_the_truth(algorithm: str) -> None:
    """A version's vector names exactly the source states that its contents show."""
    for scenario in (MODIFIED, TWO_RELATIONS_IN_ONE_LOCAL_VIEW, GLOBAL):
        for history in explore(world(scenario, algorithm)):
            assert check_vectors(history) == []


def test_in_peace_an_insertion_costs_one_query_for_each_other_source() -> None:
    """Reference: Strobe paper, section 7, third point: "as efficient as conventional algorithms"."""
    for algorithm in FAMILY:
        found = replay(world(EXAMPLE_1, algorithm), [])
        assert found.counts().queries <= 2
        assert found.counts().versions == 2
