"""The SQLAlchemy adapter: cycles of comparison with a shadow, and snapshots that are answered from it.

A cycle opens one read transaction under an isolation level that reads one state, reflects the tables, reads
the prepared ones as a whole or by hints (`hints.py`), and commits what differs to the shadow as one entry.
Cycles are `poll_interval` apart; a snapshot in between shows the state of the last one and does not touch the
source. A cycle that takes longer than the interval is followed by a pause as long as itself, so the source is
never read more than half of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from adapters.shadow.engine import Engine, translated
from adapters.shadow.extent import Extent
from adapters.shadow.history import TrimPolicy
from adapters.shadow.snapshot import ShadowSnapshot
from adapters.shadow.store import OpenShadow, Shadow
from adapters.spi import Adapter, Boundaries, Capabilities, CaptureProfile, Snapshot, SourceConfig
from adapters.sqlalchemy.catalog import SourceTables, possible_places, read_tables
from adapters.sqlalchemy.database import Database
from adapters.sqlalchemy.dialects import address
from adapters.sqlalchemy.hints import check_hint, refresh
from adapters.sqlalchemy.options import DIFF, NO_ISOLATION, parse
from adapters.sqlalchemy.reading import ReadState
from algebra.errors import ConfigurationError
from algebra.position import Position
from algebra.schema import Catalog

SHORTEST_WAIT = 0.02
"""Seconds between two looks at the source where `poll_interval` sets none."""

BETWEEN_CYCLES = "relations that are not prepared are joined with others only by a cycle; prepare them"


@dataclass(frozen=True)
class Seen:
    """What the last cycle saw beside the rows: what is shown, and which relations drifted."""

    catalog: Catalog
    drifted: Mapping[str, str]
    due: float


class SqlAlchemyAdapter(Adapter):
    """Any database with a SQLAlchemy dialect as a source. `wall` tells the time of day, `clock` intervals."""

    kind: ClassVar[str] = "sqlalchemy"
    captures: ClassVar[Mapping[str, CaptureProfile]] = {
        DIFF: CaptureProfile(
            Capabilities(capture=DIFF, boundaries=Boundaries.BATCHED, needs_write=False),
            rights="SELECT on the relations; write beside the wrapper",
            load="each cycle reads the captured tables whole, or by a hint the keys and what changed",
            deletes="found by comparing with a shadow",
        )
    }

    def __init__(
        self,
        config: SourceConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(config)
        self._options = options = parse(config)
        self._clock = clock
        self._wall = wall
        self._database = Database(config.name, options)
        self._engine = Engine(config.name, clock, memory_limit=options.memory_limit)
        policy = TrimPolicy(
            clock, trim=options.trim, entries=options.trim_entries, seconds=options.trim_seconds
        )
        self._shadow = Shadow(
            self._engine, options.shadow, address(options.url), policy, lock_timeout=options.lock_timeout
        )
        self._seen: Seen | None = None
        self._woken = threading.Event()

    @property
    def capabilities(self) -> Capabilities:
        best = self.captures[DIFF].capabilities
        # Without one state per cycle an entry may hold a part of a transaction, whose rest comes later.
        return replace(best, total_order=False) if self._options.isolation == NO_ISOLATION else best

    def catalog(self) -> Catalog:
        with self._reading() as state:
            return state.tables.catalog(self.config.relations)

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        configured = self.config.relations
        for name in relations:
            if configured is not None and name not in configured:
                raise ConfigurationError(
                    f"source {self.config.name!r} does not show relation {name!r}; "
                    f"it is configured for: {', '.join(configured)}"
                )
        with self._reading() as state:
            self._check_hints(state.tables, relations)
            with translated(self.config.name):
                steps = self._shadow.prepare(state, relations, dry_run=dry_run)
        if steps and not dry_run:
            # The new relations are younger than the others: nothing is shown before the next cycle.
            self._seen = None
        return steps

    def remove(self, *, dry_run: bool = False) -> list[str]:
        if not dry_run:
            self._seen = None
        return self._shadow.remove(dry_run=dry_run)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        with ExitStack() as stack:
            # Only our own work is translated: an error of the caller's block is the caller's.
            with translated(self.config.name):
                if self._shadow.lost:
                    self.prepare(self._shadow.lost)
                source = _LazyState(self._reading, stack)
                held = stack.enter_context(self._shadow.opened())
                seen, apart = self._seen, BETWEEN_CYCLES
                if seen is None or not held.prepared or self._clock() >= seen.due:
                    seen, apart = self._cycle(held, source), ""
                self._seen = seen if held.prepared else None
                timeout = self._options.footprint.statement_timeout
                snapshot = ShadowSnapshot(held, seen.catalog, seen.drifted, source.rows, timeout, apart)
                stack.callback(snapshot.close)
            yield snapshot

    def wait(self, timeout: float) -> None:
        due = SHORTEST_WAIT
        if self._seen is not None:
            due = max(due, self._seen.due - self._clock())
        self._woken.wait(min(due, timeout))
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def acknowledge(self, position: Position) -> None:
        with translated(self.config.name):
            self._shadow.acknowledge(position)

    def close(self) -> None:
        self._woken.set()
        self._database.close()
        self._engine.close()

    def _cycle(self, held: OpenShadow, source: _LazyState) -> Seen:
        began, now = self._clock(), self._wall()
        state = source.opened(held.relations)
        drifted = held.drifted(state)
        if held.prepared and not drifted:
            self._check_hints(state.tables, tuple(held.relations))
            with held.cycle(now) as cycle:
                for name, kept in held.relations.items():
                    hint = self._options.hints.get(name)
                    if hint is None:
                        cycle.replace(name, state.rows(name))
                    else:
                        refresh(cycle, state, kept, hint, self._options.full_every, now)
        shown = state.tables.present(self.config.relations)
        if held.relations.keys() >= shown.relations.keys():
            # Everything is answered from the shadow: the source need not keep the transaction open.
            source.close()
        ended, interval = self._clock(), self._options.poll_interval
        return Seen(shown, drifted, ended + max(interval, ended - began) if interval else ended)

    def _check_hints(self, tables: SourceTables, relations: Sequence[str]) -> None:
        for relation in tables.select(relations):
            if relation.name in self._options.hints:
                check_hint(self.config.name, relation, self._options.hints[relation.name])

    @contextmanager
    def _reading(self, captured: Iterable[str] = ()) -> Iterator[ReadState]:
        schemas = self._options.schemas
        places = [place for name in captured for place in possible_places(name, schemas)]
        with self._database.reading(places) as connection:
            tables = read_tables(connection, self.config.name, self._options, self.config.relations)
            yield ReadState(self._database, connection, tables, self._options.chunk_rows)


class _LazyState:
    """The read transaction of one snapshot, opened when it is first needed."""

    def __init__(
        self, reading: Callable[[Iterable[str]], AbstractContextManager[ReadState]], stack: ExitStack
    ) -> None:
        self._reading = reading
        self._stack = stack.enter_context(ExitStack())
        self._state: ReadState | None = None

    def opened(self, captured: Iterable[str] = ()) -> ReadState:
        if self._state is None:
            self._state = self._stack.enter_context(self._reading(captured))
        return self._state

    def rows(self, relation: str) -> Extent:
        """All rows of a relation that is not prepared."""
        return self.opened().rows(relation)

    def close(self) -> None:
        self._state = None
        self._stack.close()
