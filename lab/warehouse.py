"""The warehouse of the simulated network: carries out an algorithm's steps, one message at a time.

This is the lab's driver of `mediator/maintenance/contract.py`. Messages reach the algorithm in exactly the
order in which `receive` actions deliver them. After each message the algorithm runs until it waits again, so
what happens at the warehouse upon a message is one atomic event, as in the papers.
"""

from __future__ import annotations

import datetime
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from algebra.assembly import VERSION
from algebra.engines.contract import Relation
from algebra.position import Position
from algebra.schema import COUNT
from algebra.sweep import Answer
from lab.history import Asked, Committed, Compensated, Failed, History, Received, Replied, State
from lab.scenario import Bag, Row
from lab.world import World, contents, counted_table, python_rows, to_bag
from mediator.maintenance.contract import (
    Answered,
    AnyQuery,
    Install,
    Next,
    Process,
    Read,
    Settle,
    Step,
    Take,
    Update,
    ViewContext,
)
from mediator.update_queue import DeliveredRun, UpdateMessageQueue

_MAX_STEPS = 1_000
"""After so many steps without waiting, an algorithm is held to loop."""
_NO_TIME = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Warehouse:
    """The view, the updates that are not yet in it, and the algorithm between them."""

    def __init__(self, world: World, history: History, send: Callable[[Asked], None]) -> None:
        self._world = world
        self._history = history
        self._send = send
        self._scenario = world.scenario
        self._maintenance = world.scenario.maintenance
        self._view: Bag = Counter(dict(history.states[0].contents))
        self._vector = dict(zip(world.sources, history.states[0].vector, strict=True))
        self._version = 0
        self._delivered = 0
        self._queue = UpdateMessageQueue(world.plan.width, [n.schema for n in world.query.nodes], 0)
        self._updates: list[Update] = []
        self.life = 0
        self._start()

    def _start(self) -> None:
        """A new process, which is given all updates that no version reflects."""
        self._inbox: deque[Update | Answered] = deque(self._updates)
        self._awaited: tuple[Asked, ...] = ()
        self._answers: dict[int, Answer] = {}
        context = ViewContext(
            plan=self._world.plan,
            engine=self._world.engine,
            sources=self._world.node_sources,
            keys=self._world.keys,
            pending=self._pending,
        )
        self._process: Process = self._maintenance.maintain(context)
        self._step: Step | None = None
        self._resume(None)
        self._run()

    def restart(self) -> None:
        """Drop the process, with all it has in flight, and start a new one from the last version."""
        self._process.close()
        self.life += 1
        self._start()

    @property
    def takeable(self) -> int:
        """How many updates a `take` may take now."""
        if not self._scenario.scheduled_takes or not isinstance(self._step, Take):
            return 0
        return min(len(self._queue), self._scenario.batch_limit or len(self._queue))

    def take(self, count: int) -> None:
        """Give the waiting algorithm a prefix of the queue of that length."""
        self._resume(self._queue.prefix(self._delivered, count))
        self._run()

    def receive(self, message: Committed | Replied) -> None:
        """Take in a message, and run until the algorithm waits for the next one."""
        if isinstance(message, Committed):
            self._history.record(Received(message))
            self._log_update(message)
        elif message.asked.life != self.life:
            self._history.record(Received(message, ignored=True))
        else:
            self._history.record(Received(message))
            self._log_answer(message)
        self._run()

    def _log_update(self, message: Committed) -> None:
        self._delivered += 1
        source, position = message.source, Position(message.position)
        deltas = self._world.deltas(source, message.position)
        part_of = self._world.part_of(source, message.position)
        if not self._maintenance.takes_batches:
            update = Update(self._delivered, source, position, deltas, part_of=part_of)
            self._updates.append(update)
            self._inbox.append(update)
            return
        # A transaction whose ΔIS is empty touches the view all the same, and makes a version.
        touched: dict[int, tuple[Relation | None, Sequence[int]]] = {
            node: (None, [0]) for node, home in enumerate(self._world.node_sources) if home == source
        }
        for node, rows in deltas.items():
            touched[node] = (rows.append_column("_tx", pa.array([0] * rows.num_rows, pa.int32())), [0])
        run = self._queue.next_run(
            source, [position], [False], [self._delivered], _NO_TIME, touched, [part_of]
        )
        if run is not None:
            self._queue.log_update(run)

    def _log_answer(self, message: Replied) -> None:
        if any(asked is message.asked for asked in self._awaited):
            self._answers[id(message.asked)] = message.answer
        else:
            self._inbox.append(Answered(message.asked.query, message.answer))

    def _pending(self, node: int, position: Position) -> Relation:
        found = self._queue.pending(node, self._world.node_sources[node], position)
        if found.num_rows:
            self._history.record(Compensated(node, found))
        return found

    def _run(self) -> None:
        """Carry out steps until one has to wait."""
        for _ in range(_MAX_STEPS):
            if self._step is None or not self._carry_out(self._step):
                return
        self._fail("it goes on and on without waiting for a message")

    def _carry_out(self, step: Step) -> bool:
        """Give a step what it waits for; False if that is not there yet."""
        match step:
            case Next():
                if not self._inbox:
                    return False
                self._resume(self._inbox.popleft())
            case tuple():
                if len(self._answers) < len(self._awaited):
                    return False
                answers = tuple(self._answers[id(asked)] for asked in self._awaited)
                self._awaited, self._answers = (), {}
                self._resume(answers)
            case Take():
                if self._scenario.scheduled_takes or not len(self._queue):
                    return False
                limit = self._scenario.batch_limit or len(self._queue)
                self._resume(self._queue.prefix(self._delivered, limit))
            case Read():
                self._resume(self._read(step))
            case Install():
                self._install(step)
                if self._step is not None:
                    self._resume(None)
            case Settle():
                self._settle(step)
                self._resume(None)
        return True

    def _resume(self, value: Any) -> None:
        """Give the process what it waited for; its next step's queries are sent at once."""
        try:
            self._step = self._process.send(value)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            return
        if isinstance(self._step, tuple):
            self._awaited = tuple(self._ask(query) for query in self._step)
        elif isinstance(self._step, Next):
            for query in self._step.queries:
                self._ask(query)

    def _fail(self, problem: str) -> None:
        self._step = None
        self._history.record(Failed(" ".join(problem.split())))

    def _ask(self, query: AnyQuery) -> Asked:
        asked = Asked(self._world.source_of(query), query, self.life)
        self._history.record(asked)
        self._send(asked)
        return asked

    def _read(self, step: Read) -> Relation:
        bag = self._view
        if step.columns:
            assert step.values is not None
            names = self._world.query.schema.names
            indexes = [names.index(column) for column in step.columns]
            wanted = {v for v in python_rows(step.values.select(list(step.columns))) if None not in v}
            bag = Counter({r: n for r, n in bag.items() if tuple(r[i] for i in indexes) in wanted})
        return counted_table(self._world.query.schema, bag)

    def _settle(self, step: Settle) -> None:
        for update in step.reflects:
            self._vector[update.source] = max(self._vector[update.source], update.position.ordinal)
        self._commit(to_bag(step.change.select([*self._world.query.schema.names, COUNT])))
        self._updates = [u for u in self._updates if u.position.ordinal > self._vector[u.source]]

    def _install(self, step: Install) -> None:
        assert step.change.table is not None, "no directory was given"
        changes: dict[int, Bag] = {}
        names = [*self._world.query.schema.names, VERSION]
        for row, count in to_bag(step.change.table.select([*names, COUNT])).items():
            changes.setdefault(row[-1], Counter())[row[:-1]] += count
        for run in step.batch:
            self._install_run(run, changes)
        self._queue.installed(self._version)
        if changes:
            self._fail(f"a change of version {min(changes)}, which is not in the batch")

    def _install_run(self, run: DeliveredRun, changes: dict[int, Bag]) -> None:
        for i, position in enumerate(run.positions):
            self._vector[run.source] = position.ordinal
            self._commit(changes.pop(run.first_version + i, Counter()))

    def _commit(self, change: Bag) -> None:
        """One version more."""
        counts: Counter[Row] = Counter(self._view)
        for row, count in change.items():
            counts[row] += count
        self._view = Counter({row: n for row, n in counts.items() if n})
        self._version += 1
        self._history.record(State(contents(self._view), tuple(self._vector.values())))
