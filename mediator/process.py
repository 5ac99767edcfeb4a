"""A view's maintenance process: its algorithm's generator, and what it waits for.

The algorithm yields steps; the process says when a step can be answered, and answers it. It never blocks:
queries are sent and their answers come as events, so that one thread serves all views.

For algorithms that receive messages one by one, the inbox holds updates and answers exactly in the order in
which the channels delivered them. A source's channel delivers both from one thread, so the order of one
source's messages is the order on its stream.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from algebra.engines.contract import Relation
from algebra.errors import SourceUnavailableError
from algebra.keys import among
from algebra.position import Position
from algebra.schema import COUNT
from algebra.sweep import Answer
from mediator.channel import SourceChannel
from mediator.maintenance.contract import (
    Answered,
    AnyQuery,
    Next,
    Read,
    SourceQuery,
    Step,
    Take,
    Term,
    Update,
    ViewContext,
)
from mediator.open_queries import query_by_keys, query_by_terms
from mediator.state import MediatorState
from mediator.update_queue import DeliveredRun
from mediator.views import MaintainedView
from mediator.whole_view import whole_view

ANSWER_SECONDS = 30.0
"""How long a disconnected source may leave a query unanswered before the process is put off."""


class MaintenanceProcess:
    """One run of a view's algorithm, from its last version on. The mediator's lock guards its inbox."""

    def __init__(self, state: MediatorState, view: MaintainedView) -> None:
        self._state = state
        self.view = view
        self.waits_for: Step = Take()
        self.began_at = self.asking_seconds = 0.0
        self.taken = 0
        """Transactions of the present batch."""
        self._epoch = view.epoch
        self._receives = not view.maintenance.takes_batches
        self._numbers = itertools.count(1)
        self._inbox: deque[DeliveredRun | Update | Answered] = deque()
        self._asked: list[tuple[SourceChannel, Future[Answer], AnyQuery]] = []
        self._asked_at = 0.0
        self._away_since: float | None = None
        self._staged: list[Path] = []
        self._generator = view.maintenance.maintain(
            ViewContext(
                plan=view.plan,
                engine=state.engine,
                sources=[local.source for local in view.local_views],
                keys=view.decomposition.keys,
                pending=self._pending,
                stage=self._stage,
            )
        )

    # What the driver asks

    def start(self) -> None:
        """Run the algorithm up to its first step, with everything that is queued in its inbox."""
        with self._state.changed:
            if self._receives:
                for run in self.view.queue.runs:
                    self.deliver(run)
                self.view.on_update = self.deliver
        self._go_on(None)

    @property
    def is_outdated(self) -> bool:
        """Whether the view was dropped, refreshed or redefined since: then the process has the wrong past."""
        return self._epoch != self.view.epoch or not self._state.keeps(self.view)

    @property
    def is_asking(self) -> bool:
        """Whether sources owe it answers."""
        return bool(self._asked)

    @property
    def is_ready(self) -> bool:
        """Whether the step it waits for can be answered by the process itself. Needs the lock."""
        match self.waits_for:
            case tuple():
                return all(future.done() for _, future, _ in self._asked)
            case Next():
                return bool(self._inbox)
            case Read():
                return True
        return False

    def go_on(self) -> None:
        """Answer the step it waits for, and run the algorithm up to its next one."""
        match self.waits_for:
            case tuple():
                self.asking_seconds += self.waited_seconds
                asked, self._asked = self._asked, []
                self._go_on(tuple(future.result() for _, future, _ in asked))
            case Next():
                with self._state.changed:
                    message = self._next_message()
                    if isinstance(message, Answered):
                        # With the lock held: a channel may be looking there for the query of the next answer.
                        (index,) = (i for i, (_, _, q) in enumerate(self._asked) if q is message.query)
                        del self._asked[index]
                if isinstance(message, Answered):
                    message = self._projected(message)
                self._go_on(message)
            case Read(columns, values):
                self._go_on(self._read(columns, values))

    def take(self, batch: Sequence[DeliveredRun]) -> None:
        """Answer a `Take`."""
        self.taken = sum(len(run) for run in batch)
        self._go_on(batch)

    def installed(self) -> None:
        """Answer an `Install` or a `Settle`: it is committed."""
        self._staged.clear()
        self._go_on(None)

    @property
    def owing(self) -> list[str]:
        """The sources that owe it answers."""
        return sorted({channel.source for channel, future, _ in self._asked if not future.done()})

    @property
    def is_late(self) -> bool:
        """Whether answers are owed for so long that others should not wait for it."""
        return bool(self.owing) and self.waited_seconds > self._state.config.late_seconds

    @property
    def waited_seconds(self) -> float:
        """How long ago it asked its last queries."""
        return time.monotonic() - self._asked_at

    @property
    def is_overdue(self) -> bool:
        """Whether an answer is owed by a source that has been away for long."""
        if all(future.done() or channel.connected for channel, future, _ in self._asked):
            self._away_since = None
            return False
        self._away_since = self._away_since or time.monotonic()
        return time.monotonic() - self._away_since > ANSWER_SECONDS

    def give_up(self) -> None:
        """End what waits for a source that is away, so that others need not wait for it."""
        away = [c.source for c, future, _ in self._asked if not future.done() and not c.connected]
        if away:  # else it is back, or has answered, since it was looked at
            raise SourceUnavailableError(f"source {away[0]!r} has been away for {ANSWER_SECONDS:.0f} s")

    def close(self) -> None:
        """End it; nothing of what it computed is kept, every update is still queued."""
        with self._state.changed:
            if self.view.on_update == self.deliver:
                self.view.on_update = None
            self._inbox.clear()
        for channel, future, _ in self._asked:
            channel.abandon([future])
        self._asked.clear()
        self._generator.close()
        for directory in self._staged:
            self._state.warehouse.discard(directory)
        self._staged.clear()

    # What arrives

    def deliver(self, run: DeliveredRun) -> None:
        """Put a run into the inbox. Called with the lock held, while it is delivered: so it cannot fail."""
        self._inbox.append(run)

    def _next_message(self) -> Update | Answered:
        """Take the first message of the inbox; of a run, its first transaction. Needs the lock."""
        message = self._inbox.popleft()
        if isinstance(message, DeliveredRun):
            message, *others = self._updates(message)
            self._inbox.extendleft(reversed(others))
        return message

    def _updates(self, run: DeliveredRun) -> list[Update]:
        """Each transaction of a run by itself."""
        return [
            Update(
                next(self._numbers),
                run.source,
                run.positions[i],
                deltas,
                run.batched[i],
                run.observed_at,
                run.marks[i],
            )
            for i, deltas in enumerate(run.deltas(self.view.plan.width))
        ]

    def _answered(self, query: AnyQuery, future: Future[Answer]) -> None:
        with self._state.changed:
            wanted = self._receives and any(f is future for _, f, _ in self._asked)
            if wanted and future.exception() is None:
                self._inbox.append(Answered(query, future.result()))
            self._state.changed.notify_all()

    # What the algorithm gets

    def _go_on(self, received: Any) -> None:
        step = self._generator.send(received)
        while isinstance(step, tuple) and not step:
            step = self._generator.send(())
        self.waits_for = step
        match step:
            case tuple():
                self._asked_at = time.monotonic()
                self._ask(step)
            case Next(queries):
                self._ask(queries)

    def _ask(self, queries: Sequence[AnyQuery]) -> None:
        self.view.counters.queries += len(queries)
        for query in queries:
            if isinstance(query, SourceQuery):
                # All its local views were defined together, so any of them tells how far they have come.
                local = self.view.local_views[0]
                channel = self._state.channels[local.source]
                terms = [(term.sign, self._by_occurrence(term)) for term in query.terms]
                request = query_by_terms(local.name, whole_view(self.view.decomposition), terms)
            else:
                local = self.view.local_views[query.node]
                channel = self._state.channels[local.source]
                request = query_by_keys(local, query.keys)
            # All is ready for the answer before the query leaves: one that nobody takes at once could be
            # overtaken by an update that comes after it.
            future: Future[Answer] = Future()
            self._asked.append((channel, future, query))
            future.add_done_callback(partial(self._answered, query))
            channel.ask(request, future)

    def _by_occurrence(self, term: Term) -> dict[str, Relation]:
        """A term's rows by the alias of the relation they stand for, with that relation's column names."""
        given = {}
        for node, rows in term.substituted.items():
            local = self.view.local_views[node]
            names = [c if c == COUNT else local.output(c).source.column for c in rows.column_names]
            given[local.occurrences[0].alias] = rows.rename_columns(names)
        return given

    def _projected(self, message: Answered) -> Answered:
        """The answer to terms as rows of the view: `whole_view` names its columns as partial results do."""
        if not isinstance(message.query, SourceQuery):
            return message
        rows = self._state.engine.project(self.view.plan.query, message.answer.rows)
        return Answered(message.query, Answer(rows, message.answer.position))

    def _pending(self, node: int, position: Position) -> Relation:
        with self._state.changed:
            found = self.view.queue.pending(node, self.view.local_views[node].source, position)
        self.view.counters.compensations += bool(found.num_rows)
        return found

    def _read(self, columns: tuple[str, ...], values: Relation | None) -> Relation:
        stored = self._state.warehouse.read(self.view.name, self.view.version).read_all()
        return stored if values is None else among(stored, values.select(list(columns)))

    def _stage(self) -> Path:
        directory = self._state.warehouse.stage_directory(self.view.name)
        self._staged.append(directory)
        return directory

    def discard_staged(self) -> None:
        """Remove a folder for large results that was not needed."""
        for directory in self._staged:
            self._state.warehouse.discard(directory)
        self._staged.clear()

    @property
    def failed(self) -> BaseException | None:
        """The error that a source answered with, if one did."""
        for _, future, _ in self._asked:
            if future.done() and (error := future.exception()) is not None:
                return error
        return None
