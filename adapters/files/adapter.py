"""The files adapter: each cycle takes a state of the folder over into the shadow, which answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar, TypeVar

import duckdb

from adapters.files.folder import Folder
from adapters.files.malformed import QuarantineFile, UnfinishedError
from adapters.files.options import parse
from adapters.files.readers import IncompleteError
from adapters.files.state import ChangedError, DriftedError, FolderState, Memory, Note
from adapters.files.watch import FolderWatch
from adapters.rate_limit import RateLimit
from adapters.shadow.engine import Engine, translated
from adapters.shadow.extent import Extent
from adapters.shadow.history import TrimPolicy, changed
from adapters.shadow.layout import Kept
from adapters.shadow.snapshot import ShadowSnapshot
from adapters.shadow.store import OpenShadow, Shadow
from adapters.spi import Adapter, Boundaries, Capabilities, CaptureProfile, Snapshot, SourceConfig
from algebra.errors import ConfigurationError, DataError, SourceUnavailableError
from algebra.position import Position
from algebra.schema import Catalog, Column, RelationSchema

PAUSE = 0.02
"""Seconds between two looks at files that are being written."""

SMALL_BYTES = 4 << 20
"""Files up to here are read again without a thought, so that a change shows at once."""

DIFF = "diff"

T = TypeVar("T")


class _Unprepared(Extent):
    """The rows of a relation that is not prepared, read for one answer: if that fails, it is asked again."""

    def __init__(self, source: str, rows: Extent) -> None:
        self._source = source
        self._rows = rows

    @property
    def text(self) -> str:
        return self._rows.text

    @contextmanager
    def scanned(self, connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
        try:
            with self._rows.scanned(connection) as scan:
                yield scan
        except (ChangedError, IncompleteError) as error:
            raise SourceUnavailableError(f"source {self._source!r}: {error}") from error
        except DriftedError as error:
            raise changed(self._source, error.relation, error.problem) from error


class _Layered(Mapping[str, RelationSchema]):
    """Prepared relations as they were prepared; others as they are, worked out when they are asked for."""

    def __init__(self, first: Mapping[str, RelationSchema], second: Mapping[str, RelationSchema]) -> None:
        self._first = first
        self._second = second

    def __getitem__(self, name: str) -> RelationSchema:
        return self._first[name] if name in self._first else self._second[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**dict.fromkeys(self._first), **dict.fromkeys(self._second)})

    def __len__(self) -> int:
        return sum(1 for _ in self)


class PublishingError(Exception):
    """The owner is changing files and has removed the commit file: there is nothing to read now."""


class FilesAdapter(Adapter):
    """A folder of files as a source. It is never written; what is kept of it stays beside it."""

    kind: ClassVar[str] = "files"
    captures: ClassVar[Mapping[str, CaptureProfile]] = {
        DIFF: CaptureProfile(
            capabilities=Capabilities(capture=DIFF, boundaries=Boundaries.BATCHED, needs_write=False),
            rights="read the folder and its files; write beside it",
            load="each changed file is read whole; owners are never held up",
            deletes="found by comparing with a shadow",
        )
    }

    def __init__(
        self, config: SourceConfig, *, clock: Callable[[], float] = time.monotonic, reports: bool = True
    ) -> None:
        super().__init__(config)
        self._options = options = parse(config)
        self._clock = clock
        self._folder = Folder(config.name, options)
        self._memory = Memory()
        self._engine = Engine(config.name, clock, memory_limit=options.memory_limit)
        policy = TrimPolicy(
            clock, trim=options.trim, entries=options.trim_entries, seconds=options.trim_seconds
        )
        self._shadow = Shadow(self._engine, options.shadow, os.path.abspath(options.folder), policy)
        self._quarantine = QuarantineFile(config.name, options.quarantine)
        self._watch = FolderWatch(options.folder, options.poll_seconds, clock, reports=reports)
        self._limit = RateLimit(options.footprint.rate_limit)
        self._seen: tuple[str, int] | None = None
        """The signature of the state that was shown last, and the time from which on it can be trusted."""
        self._refused: tuple[tuple[tuple[str, str], ...], DataError] | None = None
        """Files that cannot be taken, with the reason: they are not read again while they stay so."""

    @property
    def capabilities(self) -> Capabilities:
        return self.captures[DIFF].capabilities

    def catalog(self) -> Catalog:
        def read() -> Catalog:
            with self._shadow.opened() as held:
                state = self._look(held.relations)
                names = list(state.schemas) if self.config.relations is None else self.config.relations
                return Catalog(self.config.name, {name: state.schema(name) for name in names})

        with translated(self.config.name):
            return self._patiently(read)

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        configured = self.config.relations
        for name in relations:
            if configured is not None and name not in configured:
                raise ConfigurationError(
                    f"source {self.config.name!r} does not show relation {name!r}; "
                    f"it is configured for: {', '.join(configured)}"
                )
        with translated(self.config.name):
            return self._patiently(lambda: self._prepare(relations, dry_run))

    def remove(self, *, dry_run: bool = False) -> list[str]:
        steps = self._shadow.remove(dry_run=dry_run)
        for file in self._quarantine.files():
            steps.append(f"delete {file}")
            if not dry_run:
                file.unlink(missing_ok=True)
        return steps

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        self._limit.pause()
        with ExitStack() as stack:
            # Only our own work is translated: an error of the caller's block is the caller's.
            with translated(self.config.name):
                if self._shadow.lost:
                    self.prepare(self._shadow.lost)
                held = stack.enter_context(self._shadow.opened())
                snapshot = self._patiently(lambda: self._snapshot(held))
            stack.callback(snapshot.close)
            yield snapshot

    def wait(self, timeout: float) -> None:
        self._watch.wait(self._changed, timeout)

    def wake(self) -> None:
        self._watch.wake()

    def acknowledge(self, position: Position) -> None:
        with translated(self.config.name):
            self._shadow.acknowledge(position)

    def close(self) -> None:
        self._limit.close()
        self._watch.close()
        self._engine.close()
        self._memory.growing.clear()

    # One attempt each

    def _look(self, pinned: Mapping[str, Kept]) -> FolderState:
        """The folder now; PublishingError while its owner is changing it."""
        state = FolderState.look(self._folder, self._options, self.config.name, self._memory)
        if self._options.commit_file and state.marker is None:
            raise PublishingError(f"there is no {self._options.commit_file}: the files are being changed")
        state.pinned = pinned
        return state

    def _prepare(self, relations: Sequence[str], dry_run: bool) -> list[str]:
        with self._shadow.opened() as held:
            before = held.relations
        state = self._look(before)
        self._wait_for_absent(state, before)
        try:
            steps = self._shadow.prepare(state, relations, dry_run=dry_run)
        except DriftedError as error:
            raise ConfigurationError(
                f"source {self.config.name!r}: relation {error.relation!r} {error.problem}, which option "
                "`columns` does not declare; declare it, or name it in option `exclude`"
            ) from error
        read = list(state.malformed)
        if read and not dry_run:
            self._quarantine.replace(read, _all(state.malformed))
            # They are of this very state: the next snapshot need not read them again.
            with self._shadow.opened() as held, held.cycle() as cycle:
                for name in read:
                    cycle.note(name, str(state.note(name)))
        return steps

    def _snapshot(self, held: OpenShadow) -> ShadowSnapshot:
        try:
            state = self._look(held.relations)
        except PublishingError:
            return self._last_published(held)
        # A change after the look wakes `wait` too often, never too seldom.
        self._seen = (state.signature, 0 if state.settled else state.settles_ns)
        self._wait_for_absent(state, held.relations)
        drifted = {} if self._is_shown(held, state) else held.drifted(state)
        if held.prepared and not drifted:
            try:
                self._cycle(held, state)
            except DriftedError as error:
                drifted = {error.relation: error.problem}
        schemas = state.schemas
        if not drifted:
            schemas = _Layered(_schemas(held), schemas)
        return ShadowSnapshot(
            held,
            Catalog(self.config.name, schemas),
            drifted,
            lambda relation: _Unprepared(self.config.name, state.rows(relation)),
            self._options.footprint.statement_timeout,
        )

    def _is_shown(self, held: OpenShadow, state: FolderState) -> bool:
        """Whether the shadow has what the commit file stands for: then nothing else is looked at."""
        for name, kept in held.relations.items():
            note, now = Note.of(kept.note), state.note(name)
            if note is None or note.reading != now.reading or not note.is_committed_by(now.marker):
                return False
        return True

    def _cycle(self, held: OpenShadow, state: FolderState) -> None:
        """Bring the shadow to the folder's state, in one transaction; only what changed is read."""
        kept = {name: Note.of(relation.note) for name, relation in held.relations.items()}
        now = {name: state.note(name) for name in kept}
        stale = [name for name, note in kept.items() if note is None or not note.is_of(now[name])]
        # Not those under the same commit file: their files may have changed, and were not read again.
        moved = [n for n, note in kept.items() if n not in stale and note and note.marker != now[n].marker]
        if not stale and not moved:
            return
        fresh = not all(now[name].settled for name in stale)
        if fresh and state.size(stale) > SMALL_BYTES and not self._is_late:
            # Read a moment later, they need not be read a second time to be sure of them.
            raise ChangedError("the files were changed a moment ago")
        files = tuple((name, str(now[name])) for name in stale)
        if self._refused is not None and self._refused[0] == files:
            raise self._refused[1]
        self._limit.spend(len(stale))  # answers cost the source nothing: they come from the shadow
        try:
            with held.cycle() as cycle:
                for name in stale:
                    cycle.replace(name, state.rows(name), note=str(now[name]))
                for name in moved:
                    cycle.note(name, str(now[name]))
                # Told before it is so: a crash in between must not leave out rows that nobody is told of.
                self._quarantine.replace(stale, _all(state.malformed))
        except DataError as error:
            state.let_go()
            if not fresh:
                self._refused = (files, error)
            raise
        state.let_go()
        self._refused = None

    def _last_published(self, held: OpenShadow) -> ShadowSnapshot:
        """While files are being changed: what was last read as a whole."""
        notes = [Note.of(kept.note) for kept in held.relations.values()]
        if not held.prepared or len({note.marker if note else None for note in notes}) > 1 or None in notes:
            raise PublishingError(f"there is no {self._options.commit_file}: the files are being changed")
        self._seen = ("None", 0)

        def read(relation: str) -> Extent:
            raise SourceUnavailableError(f"source {self.config.name!r}: the files are being changed")

        timeout = self._options.footprint.statement_timeout
        return ShadowSnapshot(held, Catalog(self.config.name, _schemas(held)), {}, read, timeout)

    def _wait_for_absent(self, state: FolderState, relations: Mapping[str, Kept]) -> None:
        """A prepared relation without its file may be about to be replaced: look again, for a while."""
        absent = [] if self._options.commit_file else state.absent(relations)
        if absent and not self._is_late:
            raise IncompleteError(f"relation {absent[0]!r} has no file")

    # Waiting

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """What the attempt returns, tried again while files are being written, for a while."""
        deadline = self._clock() + self._options.patience
        self._is_late = False
        while True:
            try:
                return attempt()
            except UnfinishedError:
                if self._is_late:
                    raise
            except (ChangedError, IncompleteError, PublishingError) as error:
                if self._is_late:
                    raise SourceUnavailableError(
                        f"source {self.config.name!r}: {error}; waited {self._options.patience:g} s. Write "
                        "files under another name first, and rename them when they are whole"
                    ) from error
            self._engine.pause(PAUSE)
            # One more attempt when time is up: it takes an absent file for a dropped one.
            self._is_late = self._clock() >= deadline

    def _changed(self) -> bool:
        """Whether a snapshot taken now could show another state than the last one did."""
        if self._seen is None:
            return True
        signature, trusted = self._seen
        try:
            state = FolderState.look(self._folder, self._options, self.config.name, self._memory)
        except (ChangedError, SourceUnavailableError, ConfigurationError):
            return True
        if self._options.commit_file and state.marker is None:
            return False
        return state.signature != signature or bool(trusted and time.time_ns() > trusted)


def _schemas(held: OpenShadow) -> dict[str, RelationSchema]:
    """The prepared relations as they were prepared."""
    return {
        name: RelationSchema(
            name, tuple(Column(f.name, f.type, f.name not in kept.key) for f in kept.arrow), kept.key
        )
        for name, kept in held.relations.items()
    }


def _all(rows: Mapping[str, Sequence[T]]) -> list[T]:
    return [row for found in rows.values() for row in found]
