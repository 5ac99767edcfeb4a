from __future__ import annotations

import random

import pytest

from algebra import consistency
from algebra.consistency import Level
from lab.errors import ScenarioError
from lab.generate import generate
from lab.scenario_text import format_scenario, parse_scenario
from lab.tests.worlds import CHAIN, scenario
from mediator.maintenance import ALGORITHMS

EVERYTHING = """\
# What is shown.
#
# In two paragraphs.
Reference: nowhere
algorithm: sweep
nodes: relations
batch limit: 2
takes: scheduled
view: SELECT r1.a, r2.c FROM x.r1 r1 JOIN y.r2 r2 ON r1.b = r2.b
source x
  relation r1(a int key, b text key, f double, t boolean)
    (1, 'it''s', -1.5, true) (2, null, null, false)
  transaction -r1(2, null, null, false) +r1(2, 'q', 0.0, null)
  transaction t1 of x, y: +r1(3, '', 1.0, true)
source y
  relation r2(b text, c int)
    ('q', 7)[2]
  transaction t1 of x, y: -r2('q', 7)[2]
"""


def test_a_scenario_is_printed_as_it_was_written() -> None:
    made = parse_scenario(EVERYTHING)
    assert format_scenario(made) == EVERYTHING
    assert made.kind is consistency.Scenario.GLOBAL
    assert made.sources[1].rows[0].count == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_generated_scenarios_survive_printing(algorithm: str) -> None:
    for seed in range(8):
        for kind in consistency.Scenario:
            made = generate(random.Random(seed), algorithm, sources=1 + seed % 6, kind=kind)
            made.check()
            assert parse_scenario(format_scenario(made)) == made


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("-r1(1, 2)", "-r1(1, 7)", r"line 7: x.r1 does not hold \(1, 7\) often enough"),
        ("-r1(1, 2)", "-r1(1, 2", r"line 7: expected '\)', found the end of the line"),
        ("-r1(1, 2)", "-r1(1, 'p')", "line 7: 'p' is no value of x.r1.b"),
        ("-r1(1, 2)", "-r1(1)", "line 7: x.r1 has 2 columns"),
        ("-r1(1, 2)", "+r1(1, 3)", "line 7: two rows of x.r1 have the same key"),
        ("-r1(1, 2)", "-r9(1, 2)", "line 7: source x has no relation 'r9'"),
        ("a int key", "a number", "line 5: unknown type 'number'"),
        ("source y", "database y", "line 8: expected a heading"),
        ("r1.b = r2.b", "r1.b = r2.q", "line 3: unknown column 'q'"),
        ("transaction +r2(2, 3)", "transaction t1 of x, y: +r2(2, 3)", "t1 has parts in y, but says x, y"),
        ("transaction +r2(2, 3)", "transaction +r2(2, 3) -r2(2, 3)", "a transaction of y changes nothing"),
        ("source z", "source y", "two sources have the same name"),
    ],
)
def test_errors_name_the_line(old: str, new: str, message: str) -> None:
    assert old in CHAIN
    with pytest.raises(ScenarioError, match=message):
        scenario(CHAIN.replace(old, new, 1))


def test_an_unknown_algorithm_is_named_with_its_line() -> None:
    with pytest.raises(ScenarioError, match="line 1: unknown maintenance algorithm 'swoop'"):
        scenario(CHAIN, "swoop")


def test_options_of_the_algorithm_are_printed_as_they_were_written() -> None:
    made = scenario(f"options: max_taken 3\n{CHAIN}", "nested-sweep")
    assert made.options == (("max_taken", 3),)
    assert made.maintenance.max_taken == 3  # type: ignore[attr-defined]
    assert parse_scenario(format_scenario(made)) == made


def test_an_option_that_the_algorithm_does_not_have_is_named_with_its_line() -> None:
    with pytest.raises(ScenarioError, match="line 1: sweep has no option 'max_taken'"):
        scenario(f"options: max_taken 3\n{CHAIN}")
    with pytest.raises(ScenarioError, match="line 2: expected a number"):
        scenario(f"options: max_taken few\n{CHAIN}", "nested-sweep")


def test_a_missing_heading_is_named() -> None:
    with pytest.raises(ScenarioError, match="no 'view:' line"):
        parse_scenario("algorithm: sweep\nsource x\n")


def test_global_transactions_need_a_serial_order() -> None:
    text = """
view: SELECT r1.a FROM x.r1 r1 JOIN y.r2 r2 ON r1.b = r2.b
source x
  relation r1(a int, b int)
  transaction t1 of x, y: +r1(1, 1)
  transaction t2 of x, y: +r1(2, 2)
source y
  relation r2(b int)
  transaction t2 of x, y: +r2(2)
  transaction t1 of x, y: +r2(1)
"""
    with pytest.raises(ScenarioError, match="contradicting orders"):
        scenario(text)


def test_the_promise_follows_from_the_transactions() -> None:
    assert scenario(CHAIN).kind is consistency.Scenario.SINGLE_UPDATE
    modified = scenario(CHAIN.replace("-r1(1, 2)", "-r1(1, 2) +r1(1, 3)"))
    assert modified.kind is consistency.Scenario.SOURCE_LOCAL
    assert modified.promise is Level.COMPLETE
    assert scenario(CHAIN, "ivma").promise is Level.NONE
