"""Disturbances: what happened to a table past capture is told or refused, and never absorbed.

Whoever has followed everything stands at the very end of what capture knows, and nothing tells it of what no
capture saw. So after each disturbance, and again after `prepare` has mended what there is to mend, every
position of before is either refused, or followed by all that happened: by the difference, where a capture
compares. The second `prepare` is for another relation: it mends too, and must not hide the loss either.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import Case, case, fail
from adapters.conformance.disturbance import (
    CreateTable,
    Disturbance,
    DropTable,
    LoseCapture,
    RebuildTable,
    TruncateTable,
)
from adapters.conformance.operations import Delete, Insert, Transaction, Update
from adapters.conformance.queries import table
from algebra.errors import ConfigurationError, ResyncRequiredError
from algebra.position import Position

ITEM = table("item", {"id": pa.int64(), "name": pa.string()}, key=["id"])
NOTE = table("note", {"text": pa.string()})

STORIES: tuple[tuple[str, str, tuple[Disturbance, ...]], ...] = (
    ("truncated", "A table is truncated", (TruncateTable(ITEM),)),
    ("rebuilt", "A copy takes the place of a table", (RebuildTable(ITEM, 2),)),
    ("made-again", "A table is dropped and made again", (DropTable(ITEM), CreateTable(ITEM))),
    ("capture-lost", "What capture has of a table is lost", (LoseCapture(ITEM),)),
)
"""Name, sentence, and what happens to `item`."""


@dataclass
class _Follower:
    """Positions of before, each with the number of transactions that it has seen."""

    bench: Bench
    seen: list[tuple[Position, int]] = field(default_factory=list)

    def start(self) -> None:
        """A source with rows that was followed to its end."""
        bench = self.bench
        self.seen.append((bench.start(ITEM, NOTE), 0))
        for transaction in (
            Transaction((Insert("item", ((1, "a"), (2, "b"), (3, "c"))), Insert("note", (("x",),)))),
            Transaction((Update("item", (1, "a"), (1, "z")), Delete("item", (3, "c")))),
        ):
            bench.write(transaction)
            self.seen.append((bench.position(), len(bench.truth)))
        bench.require_agreement(self.seen[0][0], "before it happens")

    def require_nothing_absorbed(self, when: str, *, is_prepared: bool) -> None:
        """Fail unless each position is refused, or followed by everything."""
        for position, number in self.seen:
            try:
                found = self.bench.entries(position)
            except ResyncRequiredError:
                continue
            except ConfigurationError as error:
                if is_prepared:
                    fail(f"{when}, changes({position}) raised ConfigurationError: {error}")
                continue
            self.bench.require_entries(f"{when}, changes({position})", self.bench.truth[number:], found)

    def mend(self) -> None:
        """Prepare, as a wrapper does that is started, and go on from there."""
        bench = self.bench
        self.require_nothing_absorbed("before prepare", is_prepared=False)
        for relations in (("note",), ("item", "note"), ("item", "note")):
            bench.prepare(*relations)
            self.require_nothing_absorbed(f"after prepare of {', '.join(relations)}", is_prepared=True)
        again, known = bench.position(), len(bench.truth)
        bench.write(
            Transaction((Insert("item", ((8, "later"),)), Insert("note", (("z",),)))),
            Transaction((Delete("item", (7, "unseen")),)),
        )
        with bench.reading() as reading:
            bench.require_tables("when it is prepared again", reading)
            found = reading.entries(again)
        bench.require_entries(f"when it is prepared again, changes({again})", bench.truth[known:], found)
        bench.open()
        self.require_nothing_absorbed("in an adapter opened afterwards", is_prepared=True)


UNSEEN = Transaction((Insert("item", ((7, "unseen"),)),))
"""Of `item` alone: where no capture sees it, there is nothing after the end of what capture knows."""


def _while_watched(happens: tuple[Disturbance, ...], bench: Bench) -> None:
    follower = _Follower(bench)
    follower.start()
    bench.disturb(*happens)
    bench.write(UNSEEN)
    follower.mend()


def _while_down(happens: tuple[Disturbance, ...], bench: Bench) -> None:
    follower = _Follower(bench)
    follower.start()
    bench.shut()
    bench.disturb(*happens)
    bench.write(UNSEEN)
    bench.open()
    follower.mend()


@case
def made_again_after_it_was_forgotten(bench: Bench) -> None:
    """A dropped table that a prepare of another relation has forgotten is not taken, when it is made again,
    for the one of before."""
    follower = _Follower(bench)
    follower.start()
    bench.shut()
    bench.disturb(DropTable(ITEM))
    bench.open(("note",))
    bench.prepare("note")
    bench.position()
    bench.shut()
    bench.disturb(CreateTable(ITEM))
    bench.write(UNSEEN)
    bench.open()
    follower.mend()


CASES = (
    *(
        Case(
            f"{name}-while-{when}",
            f"{sentence} while the adapter {what}: positions of before are refused, or told all of it.",
            functools.partial(check, happens),
        )
        for name, sentence, happens in STORIES
        for when, what, check in (
            ("watched", "is open", _while_watched),
            ("down", "is closed", _while_down),
        )
    ),
    made_again_after_it_was_forgotten,
)
