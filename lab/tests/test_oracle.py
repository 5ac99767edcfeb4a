"""The oracle on histories written by hand, one for each level and for what makes levels hard to tell."""

from __future__ import annotations

from collections import Counter

import pytest

from algebra.consistency import Level
from lab.history import Failed, History, State
from lab.oracle import check_vectors, judge, judge_states
from lab.scenario import Row
from lab.tests.worlds import pair, states
from lab.world import World, contents

ONE, FIVE, NINE = (1, 3), (5, 3), (9, 9)


def level(world: World, *views: list[Row]) -> Level:
    return judge_states(world, states(world, *views)).level


def growing() -> World:
    """The view is {}, then {ONE}, then {ONE, FIVE}."""
    return pair(x="+r1(1, 2); +r1(5, 2)", y_rows="(2, 3)")


def test_every_state_in_order_is_complete() -> None:
    """Reference: Strobe paper, section 4.2, 4. Completeness."""
    assert level(growing(), [], [ONE], [ONE, FIVE]) is Level.COMPLETE


def test_a_state_passed_over_is_strong() -> None:
    """Reference: Strobe paper, section 4.2, 3. Strong consistency."""
    world = growing()
    verdict = judge_states(world, states(world, [], [ONE, FIVE]))
    assert verdict.level is Level.STRONG
    assert verdict.explanation == "before state 1 {(1, 3), (5, 3)} a state of the sources is left out"


def test_states_out_of_order_are_weak() -> None:
    """Reference: Strobe paper, section 4.2, 2. Weak consistency."""
    world = growing()
    verdict = judge_states(world, states(world, [], [ONE, FIVE], [ONE], [ONE, FIVE]))
    assert verdict.level is Level.WEAK
    assert verdict.explanation.startswith("state 2 {(1, 3)} does not follow")


def test_a_state_that_never_was_is_convergent() -> None:
    """Reference: Strobe paper, section 4.2, 1. Convergence."""
    world = growing()
    verdict = judge_states(world, states(world, [], [FIVE], [ONE, FIVE]))
    assert verdict.level is Level.CONVERGENT
    assert verdict.explanation.startswith("state 1 {(5, 3)} is the view over no states")


def test_a_wrong_last_state_is_none() -> None:
    world = growing()
    verdict = judge_states(world, states(world, [], [ONE], [NINE]))
    assert verdict.level is Level.NONE
    assert verdict.explanation == "the last state is {(9, 9)}, the view is {(1, 3), (5, 3)}"


def test_a_row_too_often_is_wrong() -> None:
    assert level(growing(), [], [ONE], [ONE, FIVE, FIVE]) is Level.NONE


def test_an_install_that_changes_nothing_is_no_new_state() -> None:
    assert level(growing(), [], [], [ONE], [ONE], [ONE, FIVE]) is Level.COMPLETE
    assert level(growing(), [], [ONE, FIVE], [ONE, FIVE]) is Level.STRONG


def test_equal_views_are_told_apart_by_what_follows() -> None:
    """The view is empty at first, with r1 alone, with r2 alone, and when r1 is gone again."""
    world = pair(x="+r1(1, 2); -r1(1, 2)", y="+r2(2, 3)")
    # Only if both transactions of x come first can four empty states be complete.
    assert level(world, [], [], [], []) is Level.COMPLETE
    assert level(world, [], [], [ONE], []) is Level.COMPLETE
    assert level(world, [], [ONE], []) is Level.STRONG
    # x cannot go back, so the row comes and goes once.
    assert level(world, [], [ONE], [], [ONE], []) is Level.WEAK
    # Two states are too few for three transactions, whichever the empty ones are.
    assert level(world, [], []) is Level.STRONG


def test_the_order_of_sources_is_free_but_one() -> None:
    """{ONE} is x before y, {FIVE} is y before x; no serial order has both."""
    world = pair(x="+r1(1, 2) -r1(7, 8)", y="+r2(8, 6) -r2(2, 3)", x_rows="(7, 8)", y_rows="(2, 3)")
    first, other = (1, 3), (7, 6)
    assert level(world, [], [first], []) is Level.COMPLETE
    assert level(world, [], [other], []) is Level.COMPLETE
    assert level(world, [], [first], [other], []) is Level.WEAK


def global_world() -> World:
    return pair(x="t1 of x, y: +r1(1, 2); +r1(5, 2)", y="t1 of x, y: -r2(2, 3) +r2(2, 4)", y_rows="(2, 3)")


def test_half_a_global_transaction_is_weak() -> None:
    """Reference: Strobe paper, section 5.4."""
    world = global_world()
    assert level(world, [], [(1, 3)], [(1, 4)], [(1, 4), (5, 4)]) is Level.WEAK
    assert level(world, [], [(1, 4)], [(1, 4), (5, 4)]) is Level.COMPLETE
    assert level(world, [], [(1, 4), (5, 4)]) is Level.STRONG


def test_the_claimed_vectors_of_half_a_global_transaction_prove_nothing() -> None:
    world = global_world()
    claimed = [State(world.view_at(v), v) for v in ((0, 0), (1, 0), (1, 1), (2, 1))]
    assert judge_states(world, claimed).level is Level.WEAK


def test_an_algorithm_that_fails_has_no_level() -> None:
    world = growing()
    history = History(world, [State(world.view_at(world.last), world.last)])
    history.record(Failed("AssertionError: no"))
    assert judge(history).level is Level.NONE
    assert "AssertionError: no" in judge(history).explanation


@pytest.mark.parametrize("vector", [(0, 0), (1, 0), (2, 0)])
def test_a_vector_is_true_if_the_view_over_it_is_the_state(vector: tuple[int, int]) -> None:
    world = growing()
    history = History(world, [State(contents(Counter([ONE])), vector)])
    problems = check_vectors(history)
    assert bool(problems) == (vector != (1, 0))
    if problems:
        assert problems[0].startswith(f"state 0 {{(1, 3)}} claims x@{vector[0]} y@0, where the view is")
