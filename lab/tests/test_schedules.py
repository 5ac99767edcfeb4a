from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from lab.explore import explore
from lab.history import Action, Committed, History, Received, Replied, State
from lab.schedules import BIASES, random_schedule, replay
from lab.simulator import Faults, Simulator
from lab.tests.worlds import CHAIN, pair, scenario
from lab.world import World, contents, to_bag


def noticed(history: History) -> tuple[object, ...]:
    """What the warehouse received and installed, in order."""
    seen: list[object] = []
    for event in (event for events in history.events for event in events):
        match event:
            case Received(Committed() as committed):
                seen.append(committed)
            case Received(Replied(asked, answer)):
                seen.append((asked.source, contents(to_bag(answer.rows)), answer.position.ordinal))
            case State():
                seen.append(event)
    return tuple(seen)


def all_schedules(world: World, prefix: tuple[Action, ...] = ()) -> Iterator[History]:
    """Every interleaving, without any reduction."""
    simulator = Simulator(world)
    for action in prefix:
        simulator.do(action)
    actions = simulator.enabled()
    if not actions:
        yield simulator.history
    for action in actions:
        yield from all_schedules(world, (*prefix, action))


@pytest.mark.parametrize("algorithm", ["sweep", "ivma"])
def test_exploration_is_exhaustive_and_never_repeats_itself(algorithm: str) -> None:
    world = pair(x="+r1(1, 2)", y="+r2(2, 4)", x_rows="(5, 2)", y_rows="(2, 3)", algorithm=algorithm)
    explored = [noticed(history) for history in explore(world)]
    every = [noticed(history) for history in all_schedules(world)]
    assert set(explored) == set(every)
    assert len(explored) == len(set(explored)) < len(every)


def test_exploration_covers_every_way_to_take_updates() -> None:
    world = World(scenario(f"takes: scheduled\n{CHAIN}"))
    batches = {tuple(str(a) for a in history.actions if a.kind == "take") for history in explore(world)}
    assert {
        ("take 3",),
        ("take 1", "take 1", "take 1"),
        ("take 1", "take 2"),
        ("take 2", "take 1"),
    } == batches


def test_a_random_schedule_is_replayed_exactly() -> None:
    world = World(scenario(CHAIN))
    for number, bias in enumerate(BIASES):
        history = random_schedule(world, random.Random(number), bias, Faults(cuts=1, restarts=1))
        again = replay(world, history.actions)
        assert again.actions == history.actions
        assert noticed(again) == noticed(history)


def test_the_same_seed_gives_the_same_schedule() -> None:
    world = World(scenario(CHAIN))
    one, other = (random_schedule(world, random.Random(5), BIASES[-1]).actions for _ in range(2))
    assert one == other


def test_biases_range_from_calm_to_concurrent() -> None:
    """How many transactions are committed before the first answer is received, on average."""
    world = World(scenario(CHAIN, "sweep-published"))

    def concurrency(name: str) -> float:
        (bias,) = (bias for bias in BIASES if bias.name == name)
        total = 0
        for seed in range(40):
            actions = [str(a) for a in random_schedule(world, random.Random(seed), bias).actions]
            first = next((i for i, a in enumerate(actions) if a.startswith("answer")), len(actions))
            total += sum(a.startswith("commit") for a in actions[:first])
        return total / 40

    assert concurrency("calm") < concurrency("uniform") < concurrency("commits first")
    assert concurrency("commits first") > 2.9
