"""Small scenarios that several tests share."""

from __future__ import annotations

from collections import Counter

from lab.history import State
from lab.scenario import Row, Scenario
from lab.scenario_text import parse_scenario
from lab.world import World, contents

CHAIN = """
view: SELECT r1.a, r1.b, r2.c, r3.d FROM x.r1 r1, y.r2 r2, z.r3 r3 WHERE r1.b = r2.b AND r2.c = r3.c
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
  transaction +r3(5, 6)
"""
"""Strobe's Example 1 with a third transaction that changes nothing of the view."""

PAIR = """
view: SELECT r1.a, r2.c FROM x.r1 r1 JOIN y.r2 r2 ON r1.b = r2.b
source x
  relation r1(a int, b int)
    {x_rows}
  {x_transactions}
source y
  relation r2(b int, c int)
    {y_rows}
  {y_transactions}
"""


def scenario(text: str, algorithm: str = "sweep") -> Scenario:
    return parse_scenario(f"algorithm: {algorithm}\n{text}")


def pair(x: str = "", y: str = "", x_rows: str = "", y_rows: str = "", algorithm: str = "sweep") -> World:
    """A world of two sources that join; transactions separated by `;`."""
    text = PAIR.format(
        x_rows=x_rows,
        y_rows=y_rows,
        x_transactions="\n  ".join(f"transaction {t.strip()}" for t in x.split(";") if t.strip()),
        y_transactions="\n  ".join(f"transaction {t.strip()}" for t in y.split(";") if t.strip()),
    )
    return World(scenario(text, algorithm))


def states(world: World, *views: list[Row]) -> list[State]:
    """A sequence of warehouse states that claims nothing true about its vectors."""
    return [State(contents(Counter(rows)), world.origin) for rows in views]
