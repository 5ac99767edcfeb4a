"""The folder at one moment, as the shadow wants it: shapes, schemas, and rows that are read when asked for.

Problem: one state of many files, whose owners do not wait for us and know of no transactions.

Wrong ways: read one file after the other and take what comes (a change of two files shows by half); require
that nothing changes while all are read (a file that is always being appended to is never read).

Chosen way: look at all files twice. If both looks are equal, there was a moment in between at which all of
them were as they look, and that moment is the state. Then read each through an open descriptor, which must be
of the file that was seen: a file that is replaced later keeps its old content there, and one that is appended
to is read up to the size it had. A file that was replaced before it was opened, or changed in place, ends the
attempt, and everything starts over. So does one that was appended to between look and opening, but only the
first time: from then on it, and all others that have grown since the look, are held open, and known to be
those that were seen. They are let go once all was read and they had not grown again.

Types are pinned: a prepared relation keeps the types that it was prepared with, whatever its values would be
taken for now. Only what a file itself declares (column names, Parquet's types) can drift.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import BinaryIO, TypeVar, cast

import pyarrow as pa

from adapters.files.csv_files import CsvReader
from adapters.files.excel_files import ExcelReader
from adapters.files.folder import Folder, HeldFile, Identity, Marker, RelationFiles
from adapters.files.json_files import JsonReader
from adapters.files.malformed import Malformed, MalformedRow
from adapters.files.options import EMPTY, TEXT_FORMATS, Options, RelationOptions
from adapters.files.parquet_files import ParquetReader
from adapters.files.readers import DriftError, FileShape, Guess, IncompleteError, Reader, ShapeError, Task
from adapters.relations import no_such_relation
from adapters.shadow.extent import ArrowExtent, Extent
from adapters.shadow.history import Shape
from adapters.shadow.layout import Kept
from adapters.shadow.store import SourceState
from adapters.shadow.types import duckdb_name
from adapters.spi import TRANSACTION
from algebra.errors import ConfigurationError, DataError, LockstepError
from algebra.schema import COUNT, Column, RelationSchema

T = TypeVar("T")

READERS: Mapping[str, Reader] = {
    "csv": CsvReader(),
    "jsonl": JsonReader(),
    "parquet": ParquetReader(),
    "excel": ExcelReader(),
}


class ChangedError(Exception):
    """A file changed under our hands: start over."""


class DriftedError(Exception):
    """A relation was found to have another shape while its rows were read."""

    def __init__(self, relation: str, problem: str) -> None:
        super().__init__(problem)
        self.relation = relation
        self.problem = problem


Seen = tuple[Identity, RelationOptions]
"""A file as it was looked at: what it was, and how it was read."""


@dataclass
class Memory:
    """What was learned of files, by their names, so that it is not read again and again.

    `unpinned`: the relations whose rows showed that they drifted, with the files that showed it. `growing`:
    files that had more in them, when they were to be read, than when they were looked at.
    """

    shapes: dict[str, tuple[Seen, FileShape | None]] = field(default_factory=dict)
    guesses: dict[str, tuple[Seen, Guess]] = field(default_factory=dict)
    unpinned: dict[str, str] = field(default_factory=dict)
    growing: dict[str, HeldFile] = field(default_factory=dict)

    def keep(self, relations: Mapping[str, RelationFiles]) -> None:
        """Forget all other relations, and the files that none of these has now."""
        files = {file: seen for relation in relations.values() for file, seen in relation.files.items()}
        growing = list(self.growing.items())
        still = {file for file, held in growing if file in files and held.is_at(files[file])}
        for learned, there in (
            (self.shapes, files.keys()),
            (self.guesses, files.keys()),
            (self.unpinned, relations.keys()),
            (self.growing, still),
        ):
            for name in learned.keys() - there:
                learned.pop(name, None)


@dataclass(frozen=True)
class Note:
    """What the shadow keeps with a relation's state: the state of the files that it was read from.

    `files`: their identities. `marker`: the commit file of that state, if one is configured. `settled`:
    whether these are sure to be told from any later ones. `reading`: the options they were read with.
    """

    files: str
    settled: bool
    reading: str
    marker: str

    def __str__(self) -> str:
        return json.dumps([self.files, self.settled, self.reading, self.marker])

    def is_of(self, other: Note) -> bool:
        """Whether the rows kept with this note are sure to be those of the state that `other` is of."""
        same = self.files == other.files or self.is_committed_by(other.marker)
        return same and self.settled and self.reading == other.reading

    def is_committed_by(self, marker: str) -> bool:
        """Whether this commit file is the one that these rows were read under: files do not count then."""
        return bool(self.marker) and self.marker == marker

    @classmethod
    def of(cls, text: str) -> Note | None:
        return cls(*json.loads(text)) if text else None


class FolderState(SourceState):
    """The files as they were at one moment; reading them fails with ChangedError if they are no longer so.

    `marker`: of the commit file, if one is configured. `pinned`: the prepared relations. `growing`: files
    that were held open since before they were looked at.
    """

    def __init__(
        self,
        folder: Folder,
        options: Options,
        source: str,
        relations: Mapping[str, RelationFiles],
        marker: Marker | None,
        memory: Memory,
        growing: Mapping[str, HeldFile],
        now_ns: int,
    ) -> None:
        self._folder = folder
        self._options = options
        self._source = source
        self._relations = relations
        self._memory = memory
        self._growing = growing
        self._grown: set[str] = set()
        self._now_ns = now_ns
        self.marker = marker
        self.pinned: Mapping[str, Kept] = {}
        self.malformed: dict[str, list[MalformedRow]] = {}
        self._columns: dict[str, Mapping[str, pa.DataType] | None] = {}

    @classmethod
    def look(cls, folder: Folder, options: Options, source: str, memory: Memory) -> FolderState:
        """The state of this moment; ChangedError if there was none."""
        now_ns = time.time_ns()
        growing = dict(memory.growing)
        marker = folder.marker() if options.commit_file else None
        relations = folder.relations()
        if relations != folder.relations() or (options.commit_file and marker != folder.marker()):
            raise ChangedError("the files change while they are looked at")
        memory.keep(relations)
        return cls(folder, options, source, relations, marker, memory, growing, now_ns)

    @property
    def signature(self) -> str:
        """Equal signatures, once settled, are equal states."""
        if self._options.commit_file:
            return str(self.marker)
        return "|".join(f"{r.name}: {r.signature}" for r in self._relations.values())

    @property
    def settles_ns(self) -> int:
        """The time after which any later state is sure to have another signature."""
        if self._options.commit_file:
            return self.marker.identity.settles_ns if self.marker else 0
        return max((relation.settles_ns for relation in self._relations.values()), default=0)

    @property
    def settled(self) -> bool:
        """Whether the signature was settled when the state was looked at."""
        return self.settles_ns < self._now_ns

    def size(self, relations: Iterable[str]) -> int:
        """Bytes of the files of these relations."""
        return sum(self._relations[name].size for name in relations if name in self._relations)

    def note(self, relation: str) -> Note:
        """What is to be kept with the relation's rows of this state."""
        files = self._relations.get(relation)
        reading = "" if files is None else hashlib.sha256(repr(files.options).encode()).hexdigest()[:16]
        signature = "" if files is None else files.signature
        settled = files is None or files.settles_ns < self._now_ns
        if self.marker is not None:
            settled = settled and self.marker.identity.settles_ns < self._now_ns
        return Note(signature, settled, reading, str(self.marker or ""))

    def absent(self, relations: Mapping[str, Kept]) -> list[str]:
        """Those of the relations that have no file, though they should."""
        return [name for name in relations if self._is_absent(name)]

    def let_go(self) -> None:
        """All is read: hold no file open any longer but those that had grown again when they were opened."""
        for file in self._memory.growing.keys() - self._grown:
            self._memory.growing.pop(file, None)

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        return _Lazy(self._names, self._shape)

    @cached_property
    def schemas(self) -> Mapping[str, RelationSchema]:
        """Every relation as it is shown, worked out when it is asked for."""
        return _Lazy(self._names, self.schema)

    def schema(self, relation: str) -> RelationSchema:
        columns = self._columns_of(relation) if relation in self._relations else None
        if columns is None:
            raise no_such_relation(self._source, relation, self._names)
        for name, type_ in columns.items():
            remedy = f"name it in option `exclude` of relation {relation!r}, or declare another type for it"
            if name in (COUNT, TRANSACTION):
                raise ConfigurationError(
                    f"column {self._source}.{relation}.{name} has a name that Lockstep reserves; {remedy}"
                )
            if duckdb_name(type_) is None:
                raise ConfigurationError(
                    f"column {self._source}.{relation}.{name} has type {type_}, which is not supported; "
                    f"{remedy}"
                )
        key = self._relations[relation].options.key
        lost = next((name for name in key if name not in columns), None)
        if lost is not None:
            raise ConfigurationError(
                f"source {self._source!r}, relation {relation!r}: option key names {lost!r}, "
                "which is no column"
            )
        shown = tuple(Column(name, type_, name not in key) for name, type_ in columns.items())
        return RelationSchema(relation, shown, key)

    def rows(self, relation: str) -> Extent:
        files = self._relations[relation]
        names = ", ".join(files.files) or "no file"
        schema = pa.schema([(c.name, c.type) for c in self.schema(relation).columns])
        return ArrowExtent(f"{relation} ({names})", schema, self._batches(files, schema))

    # Columns

    @property
    def _names(self) -> list[str]:
        return [name for name in self._relations if not self._is_absent(name)]

    def _is_absent(self, relation: str) -> bool:
        files = self._relations.get(relation)
        if files is None:
            return True
        known = relation in self.pinned or bool(files.options.columns)
        return not files.files and not (files.options.missing == EMPTY and known)

    def _shape(self, relation: str) -> Shape:
        columns = self._columns_of(relation)
        assert columns is not None
        return tuple((name, str(type_)) for name, type_ in columns.items())

    def _columns_of(self, relation: str) -> Mapping[str, pa.DataType] | None:
        if relation not in self._columns:
            if self._is_absent(relation):
                self._columns[relation] = None
            else:
                with self._explained(relation):
                    self._columns[relation] = self._find_columns(self._relations[relation])
        return self._columns[relation]

    def _find_columns(self, files: RelationFiles) -> Mapping[str, pa.DataType]:
        options, pinned = files.options, self._pinned(files)
        shapes = {
            file: shape.without(options.exclude)
            for file in files.files
            if (shape := self._file_shape(files, file)) is not None
        }
        if shapes:
            names, told = _common(shapes, tuple(pinned))
        else:
            declared = tuple(name for name in options.columns if name not in options.exclude)
            names, told = declared or tuple(pinned), {}
        if set(names) != set(pinned):
            pinned = {}  # it drifted: what it is now is found out as if it were new
        else:
            names = tuple(pinned)
        if files.name not in self.pinned and shapes:
            lost = next((name for name in options.columns if name not in names), None)
            if lost is not None:
                raise ShapeError(f"has no column {lost!r}, which option `columns` declares")
        if not names and files.files:
            names = tuple(self._guess(files, ()).candidates)  # only the rows tell
        shown = tuple(name for name in names if name not in options.exclude)
        if not shown:
            raise ShapeError("has no columns")
        known = {**pinned, **told, **options.columns}
        if any(name not in known for name in shown):
            guess = self._guess(files, names)
            for name in shown:
                if name not in known:
                    type_ = guess.type_of(name)
                    if type_ is None:
                        raise ShapeError(f"has values of several types in {name!r}; declare its type")
                    known[name] = type_
        return {name: known[name] for name in shown}

    def _pinned(self, files: RelationFiles) -> Mapping[str, pa.DataType]:
        if files.name not in self.pinned or self._memory.unpinned.get(files.name) == files.signature:
            return {}
        return {f.name: f.type for f in self.pinned[files.name].arrow}

    def _file_shape(self, files: RelationFiles, file: str) -> FileShape | None:
        seen = (files.files[file], files.options)
        known = self._memory.shapes.get(file)
        if known is None or known[0] != seen:
            with self._opened(files, file) as opened:
                shape = READERS[files.format].shape(opened, files.options, self._longest)
            known = self._memory.shapes[file] = (seen, shape)
        return known[1]

    def _guess(self, files: RelationFiles, names: tuple[str, ...]) -> Guess:
        guess = Guess(dict.fromkeys(names))
        for file, identity in files.files.items():
            seen = (identity, files.options)
            known = self._memory.guesses.get(file)
            if known is None or known[0] != seen:
                shape = self._file_shape(files, file)
                order = names if shape is None else shape.names
                with self._opened(files, file) as opened:
                    found = READERS[files.format].infer(opened, order, files.options, self._longest)
                known = self._memory.guesses[file] = (seen, found)
            guess = guess.merged(known[1])
        return guess

    # Rows

    @property
    def _longest(self) -> int:
        return self._options.max_line_mb << 20

    def _batches(self, files: RelationFiles, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        options = files.options
        malformed = Malformed(self._source, files.name, options.malformed, self._options.quarantine_limit)
        with self._explained(files.name):
            for file in files.files:
                task = Task(file, options, schema, options.key, malformed, self._longest)
                with self._opened(files, file) as opened:
                    yield from READERS[files.format].batches(opened, task)
        if self._options.commit_file and self._folder.marker() != self.marker:
            raise ChangedError("the commit file changed while the files were read")
        self.malformed[files.name] = malformed.rows

    @contextmanager
    def _opened(self, files: RelationFiles, file: str) -> Iterator[BinaryIO]:
        """The file as it was seen; ChangedError if it is another one now, or was changed meanwhile."""
        seen = files.files[file]
        appendable = files.format in TEXT_FORMATS
        try:
            opened = self._folder.open(file)
        except FileNotFoundError as error:
            raise ChangedError(f"{file} is gone") from error
        with opened:
            self._check(file, seen, opened, appendable)
            try:
                yield cast(BinaryIO, io.BufferedReader(_Prefix(opened, seen.size))) if appendable else opened
            finally:
                # Also when reading failed: a file that was changed meanwhile explains it better.
                now = Identity.of(os.fstat(opened.fileno()))
                if not (seen.is_like(now) or (appendable and seen.is_shorter_than(now))):
                    raise ChangedError(f"{file} was changed while it was read")

    def _check(self, file: str, seen: Identity, opened: BinaryIO, appendable: bool) -> None:
        """ChangedError if what was opened is not sure to be the file that was seen."""
        now = Identity.of(os.fstat(opened.fileno()))
        if seen.is_like(now):
            return
        if appendable and seen.is_shorter_than(now):
            held = self._growing.get(file)
            if held is not None and held.is_at(now):
                self._grown.add(file)
                return
            with suppress(OSError):
                self._memory.growing[file] = HeldFile(opened)
            self._hold_others()
        raise ChangedError(f"{file} was changed before it was opened")

    def _hold_others(self) -> None:
        """Appended to, or others in their inodes: after the next look there is no doubt about them.

        All of them now, for each that was found later would end an attempt of its own.
        """
        for files in self._relations.values():
            for file, seen in files.files.items() if files.format in TEXT_FORMATS else ():
                with suppress(OSError, LockstepError):
                    now = self._folder.identity(file)
                    held = self._memory.growing.get(file)
                    if now is None or not seen.is_shorter_than(now) or (held and held.is_at(now)):
                        continue
                    with self._folder.open(file) as opened:
                        self._memory.growing[file] = HeldFile(opened)

    @contextmanager
    def _explained(self, relation: str) -> Iterator[None]:
        """What readers find out about a file, said of the relation."""
        files = self._relations[relation]
        name = next(iter(files.files)) if len(files.files) == 1 else f"relation {relation!r}"
        try:
            yield
        except IncompleteError as error:
            raise IncompleteError(f"{name} {error}") from error
        except OSError as error:
            raise IncompleteError(f"{name} cannot be read ({error.strerror or error})") from error
        except DriftError as error:
            self._memory.unpinned[relation] = files.signature
            raise DriftedError(relation, str(error)) from error
        except ShapeError as error:
            kind = DataError if relation in self.pinned else ConfigurationError
            raise kind(f"source {self._source!r}: {name} {error}") from error


class _Prefix(io.RawIOBase):
    """The first bytes of an open file: what was there when it was looked at."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        self._file.seek(self._place)
        data = self._file.read(min(len(buffer), self._size - self._place))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


class _Lazy(Mapping[str, T]):
    """A mapping whose values are worked out when they are asked for, and not for their names alone."""

    def __init__(self, names: list[str], value: Callable[[str], T]) -> None:
        self._all = names
        self._value = value

    def __getitem__(self, name: str) -> T:
        if name not in self._all:
            raise KeyError(name)
        return self._value(name)

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


def _common(
    shapes: Mapping[str, FileShape], pinned: tuple[str, ...]
) -> tuple[tuple[str, ...], dict[str, pa.DataType]]:
    """The columns that all files have; of a pinned relation, those of the first file that has others."""
    first_file, first = next(iter(shapes.items()))
    names = pinned if set(pinned) == set(first.names) else first.names
    for file, shape in shapes.items():
        if pinned and (set(shape.names) != set(pinned)):
            return shape.names, dict(shape.types)
        if set(shape.names) != set(first.names):
            odd = sorted(set(shape.names) ^ set(first.names))[0]
            raise ShapeError(
                f"has files with different columns: {odd!r} is not in both {first_file} and {file}"
            )
        for name, type_ in shape.types.items():
            if type_ != first.types[name]:
                if pinned:
                    return shape.names, dict(shape.types)
                raise ShapeError(
                    f"has files with different types: {name!r} is {first.types[name]} in {first_file} and "
                    f"{type_} in {file}"
                )
    return names, dict(first.types)
