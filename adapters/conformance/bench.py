"""The bench: one source under test, with its writers and its model, for one case."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

import pyarrow as pa

from adapters.conformance.case import CaseSkipped, fail
from adapters.conformance.disturbance import Disturbance
from adapters.conformance.evaluation import evaluate
from adapters.conformance.harness import Harness, Writer
from adapters.conformance.model import Bag, Change, Model, difference, difference_of_changes, sum_changes
from adapters.conformance.operations import Transaction
from adapters.conformance.reading import Entry, KeyValues, Reading
from adapters.conformance.schema_change import SchemaChange
from adapters.spi import Adapter, Boundaries
from algebra.errors import SourceUnavailableError
from algebra.local_view import LocalView
from algebra.position import Position
from algebra.schema import Catalog, RelationSchema

RETRY_PAUSE = 0.01
"""Seconds between two tries of a source that says it is unavailable now."""

T = TypeVar("T")


class Bench:
    """What a case works with."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.quirks = harness.quirks
        self.truth: list[Change] = []
        """What each committed transaction did, in commit order; those that did nothing are left out."""
        self._writers: dict[int, Writer] = {}
        self._adapter: Adapter | None = None
        self._catalog: Catalog | None = None

    # The source

    def create(self, *tables: RelationSchema) -> None:
        """Make the source with these tables and open an adapter on it."""
        for table in tables:
            for column in table.columns:
                self.require_type(column.type)
        self.model = Model(tables, self.quirks)
        self.harness.create(tables)
        self.open()

    def start(self, *tables: RelationSchema) -> Position:
        """Make the source, prepare it, and return the position from where its history is complete."""
        self.create(*tables)
        self.prepare()
        return self.position()

    def open(self, relations: tuple[str, ...] | None = None) -> Adapter:
        """A new adapter in the place of the one in use, as after a restart."""
        if self._adapter is not None:
            self._adapter.close()
        self._adapter = self.harness.adapter(relations)
        self._catalog = None
        return self._adapter

    def shut(self) -> None:
        """Close the adapter, as when its wrapper is down; `open` opens another."""
        self.adapter.close()
        self._adapter = None

    @property
    def adapter(self) -> Adapter:
        assert self._adapter is not None, "the case has not created its source"
        return self._adapter

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self.patiently(self.adapter.catalog)
        return self._catalog

    def prepare(self, *relations: str) -> list[str]:
        """Prepare these relations (default: all), with the schema that they have now."""
        self._catalog = None
        return self.patiently(lambda: self.adapter.prepare(relations or tuple(self.model.tables)))

    def remove(self) -> list[str]:
        """Remove the capture."""
        return self.patiently(self.adapter.remove)

    def acknowledge(self, position: Position) -> None:
        """Acknowledge a position."""
        self.patiently(lambda: self.adapter.acknowledge(position))

    def wait(self, timeout: float) -> None:
        """Wait as a wrapper does."""
        self.patiently(lambda: self.adapter.wait(timeout))

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.harness.close)
            for writer in self._writers.values():
                stack.callback(writer.close)
            if self._adapter is not None:
                stack.callback(self._adapter.close)

    def alter(self, change: SchemaChange) -> None:
        """Change the schema; the model follows, and the next writers know it."""
        reason = self.quirks.no_drift.get(change.kind)
        if reason:
            raise CaseSkipped(f"no {change.kind}: {reason}")
        self.drop_writers()
        self.patiently(lambda: self.harness.alter(change))
        self.model.alter(change)
        self.truth.clear()

    def disturb(self, *disturbances: Disturbance) -> None:
        """Let these happen; what they did to rows, together, is a transaction of the truth."""
        for kind in (disturbance.kind for disturbance in disturbances):
            reason = self.quirks.no_disturbance.get(kind)
            if reason:
                raise CaseSkipped(f"no {kind}: {reason}")
        self.drop_writers()
        changes = []
        for disturbance in disturbances:
            self.patiently(functools.partial(self.harness.disturb, disturbance))
            changes.append(self.model.disturb(disturbance))
        change = sum_changes(changes)
        if change:
            self.truth.append(change)

    def drop_writers(self) -> None:
        """Let go of all writers, whatever state they are in; the next ones are new."""
        for writer in self._writers.values():
            with suppress(Exception):  # its connection may be gone
                writer.close()
        self._writers.clear()

    # Writing

    def writer(self, number: int = 0) -> Writer:
        """One of the source's writers; the bench closes it."""
        if number not in self._writers:
            self._writers[number] = self.harness.writer(number)
        return self._writers[number]

    def expect(self, transaction: Transaction) -> Change:
        """Note a transaction in the model and in the truth without running it."""
        change = self.model.apply(transaction)
        if change:
            self.truth.append(change)
        return change

    def write(self, *transactions: Transaction) -> None:
        """Run these transactions; the model follows."""
        self.writer().run(transactions)
        for transaction in transactions:
            self.expect(transaction)

    @contextmanager
    def writing(self, *scripts: Sequence[Transaction]) -> Iterator[Callable[[], bool]]:
        """Run each script by a writer of its own; yields a function that says whether all are done."""
        writers = [self.writer(number) for number in range(len(scripts))]
        with ThreadPoolExecutor(len(scripts)) as pool:
            runs = [pool.submit(writer.run, script) for writer, script in zip(writers, scripts, strict=True)]
            yield lambda: all(run.done() for run in runs)
            for run in runs:
                run.result()

    # Reading

    def patiently(self, attempt: Callable[[], T]) -> T:
        """What `attempt` returns, tried again while the source is unavailable, as a wrapper does."""
        deadline = time.monotonic() + self.quirks.patience
        while True:
            try:
                return attempt()
            except SourceUnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_PAUSE)

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """A reading of one snapshot."""
        catalog = self.catalog
        with ExitStack() as stack:
            snapshot = self.patiently(lambda: stack.enter_context(self.adapter.snapshot()))
            yield Reading(snapshot, catalog, self.model)

    def position(self) -> Position:
        """The position of a snapshot taken now."""
        with self.reading() as reading:
            return reading.position

    def entries(self, after: Position) -> list[Entry]:
        """The changes after a position that a snapshot taken now shows."""
        with self.reading() as reading:
            return reading.entries(after)

    def within_patience(self, happened: threading.Event) -> bool:
        """Whether it happened before patience ran out."""
        return happened.wait(self.quirks.patience)

    # Judging

    def require_same(self, what: str, expected: Bag, found: Bag) -> None:
        """Fail unless both bags are equal."""
        text = difference(expected, found)
        if text:
            fail(f"{what}: {text}")

    def require_tables(self, when: str, reading: Reading) -> None:
        """Fail unless every table is as the model has it."""
        for relation, expected in self.model.contents.items():
            self.require_same(f"{when}, fetch of {relation}", expected, reading.table(relation))

    def require_entries(self, what: str, expected: Sequence[Change], found: Sequence[Entry]) -> None:
        """Fail unless each entry does what the next transaction did, or the next few where it may batch."""
        rest = list(expected)
        for index, entry in enumerate(found):
            batched = entry.batched or self.adapter.capabilities.boundaries is Boundaries.BATCHED
            longest = len(rest) if batched else 1
            lengths = range(1, longest + 1)
            length = next((n for n in lengths if sum_changes(rest[:n]) == entry.change), None)
            if length is None:
                following = sum_changes(rest if batched else rest[:1])
                fail(f"{what}, entry {index}: {difference_of_changes(following, entry.change)}")
            rest = rest[length:]
        text = difference_of_changes(sum_changes(rest), {})
        if text:
            fail(f"{what} end before {len(rest)} transactions: {text}")

    def require_agreement(self, start: Position, when: str = "at the end") -> None:
        """Fail unless fetch and changes, in one snapshot, both show what the model has."""
        with self.reading() as reading:
            self.require_tables(when, reading)
            self.require_entries(f"{when}, changes({start})", self.truth, reading.entries(start))

    def require_answer(self, query: LocalView, keys: KeyValues | None = None, what: str = "the query") -> Bag:
        """Fail unless fetch answers the query as the model does; returns the answer."""
        expected = evaluate(query, self.model.tables, self.model.contents, keys)
        with self.reading() as reading:
            found = reading.rows(query, keys)
        self.require_same(what, expected, found)
        return found

    # Applicability

    def require_type(self, type_: pa.DataType) -> None:
        """Skip the case if the source has no such type."""
        if type_ in self.quirks.unsupported:
            raise CaseSkipped(f"no {type_}: {self.quirks.unsupported[type_]}")

    def require_has(self, what: str, reason: str) -> None:
        """Skip the case if the source gives a reason why it has none of that."""
        if reason:
            raise CaseSkipped(f"no {what}: {reason}")

    def require_overlap(self) -> None:
        """Skip the case if the source cannot be read and written at the same time."""
        if not self.quirks.overlap:
            raise CaseSkipped("this source is not read and written at the same time")

    def supported(self, types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Those of the types that the source has."""
        return {name: type_ for name, type_ in types.items() if type_ not in self.quirks.unsupported}
