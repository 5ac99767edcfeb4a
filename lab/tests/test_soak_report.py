"""What a soak reports, for people and for programs: what was done to it, what was found, what it took."""

from __future__ import annotations

import io
import json
from collections import Counter

from rich.console import Console

from lab.soak.oracle import Verdict
from lab.soak.outages import Overlaps
from lab.soak.report import show
from lab.soak.run import Report


def report() -> Report:
    return Report(
        seconds=60.0,
        rest_seconds=5.0,
        check_seconds=2.0,
        transactions={"s0": 1200, "s1": 600},
        faults=Counter({"kill wrapper": 7, "cut": 4}),
        overlaps=Overlaps(faults=6, most_faults=5, most_down=3, pairs=Counter({"mediator, wrapper": 8})),
        bad_inputs=Counter({"noise": 9}),
        starts={"mediator": 3},
        reached={"everything": 1500},
        verdicts={"everything": Verdict(versions=1801, exact=1700, batched=100, differences=["it is wrong"])},
        problems=["wrapper s0 ended by itself: why"],
        memory={"mediator": 123_400_000},
    )


def test_people_are_told_everything() -> None:
    out = io.StringIO()
    show(Console(file=out, width=200), report())
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    for line in (
        "60 s: 1,800 transactions (30 a second), 11 faults (7 kills), 9 bad inputs",
        "s0 1,200 20.0",
        "while faults came, everything reached version 1,500",
        "when the faults were over, the views caught up in 5 s, and all versions were checked in 2 s",
        "6 faults struck while another lasted, up to 5 at once; at most 3 processes were down at once",
        "kill wrapper 7",
        "mediator, wrapper 8",
        "noise 9",
        "mediator 2 123.4 MB",
        "everything 1,801 1,700 100 0 0 1",
        "it is wrong",
        "wrapper s0 ended by itself: why",
        "SOMETHING WAS WRONG",
    ):
        assert line in lines


def test_programs_are_told_everything() -> None:
    told = json.loads(json.dumps(report().as_dict()))
    assert told["transactions"] == {"s0": 1200, "s1": 600}
    assert told["transactions_per_second"] == 30.0
    assert told["faults"] == {"kill wrapper": 7, "cut": 4}
    assert told["kills"] == 7
    pairs = {"mediator, wrapper": 8}
    assert told["overlaps"] == {"faults": 6, "most_faults": 5, "most_down": 3, "pairs": pairs}
    assert told["bad_inputs"] == {"noise": 9}
    assert told["reached_under_faults"] == {"everything": 1500}
    assert told["versions"]["everything"]["checked"] == 1801
    assert told["differences"] == ["it is wrong"]
    assert told["problems"] == ["wrapper s0 ended by itself: why"]
    assert told["peak_memory_bytes"] == {"mediator": 123_400_000}
