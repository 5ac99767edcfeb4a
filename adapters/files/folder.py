"""The folder: which files a relation has, what tells one state of a file from another, and opening them.

Problem: owners replace files by renaming a new one over the old, or append whole lines, and do not wait for
us. Nothing may be taken of a write that is under way, and a change must never be overlooked.

Chosen way: a file is read through one open descriptor, so that a rename in the meantime changes nothing for
us; its identity (device, inode, size, times) tells whether it is the one that was looked at. File times tick
in milliseconds, on some systems in seconds, so a file that was changed a moment ago could change again
without a trace: its identity is not trusted (`settled`) until it is older than a tick. A file that is gone
leaves its inode to the next one, so one that seems to have grown may be another: only while a file is held
open (`HeldFile`) its inode stands for it.

Nothing outside of the folder is ever opened: names are resolved first, links included.
"""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from adapters.files.options import FORMATS, Options, RelationOptions, format_of
from algebra.errors import ConfigurationError, SourceUnavailableError

TICK_NS = 30_000_000
"""Nanoseconds after which a change of a file is sure to have another time than the one before."""

COARSE_TICK_NS = 2_500_000_000
"""The same, where times are whole seconds."""

_WILD = frozenset("*?[")


@dataclass(frozen=True)
class Identity:
    """What a file looks like from outside; equal identities, once settled, are equal contents."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Identity:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @property
    def settles_ns(self) -> int:
        """The time after which this identity is sure to be told from any later one."""
        coarse = self.modified_ns % 1_000_000_000 == 0 and self.changed_ns % 1_000_000_000 == 0
        return max(self.modified_ns, self.changed_ns) + (COARSE_TICK_NS if coarse else TICK_NS)

    def __str__(self) -> str:
        return f"{self.device}.{self.inode}.{self.size}.{self.modified_ns}.{self.changed_ns}"

    def is_like(self, other: Identity) -> bool:
        """Whether it is the same file, unchanged.

        The time of the last change does not count: it also moves when another file is renamed over this one.
        """
        return replace(other, changed_ns=self.changed_ns) == self

    def is_shorter_than(self, other: Identity) -> bool:
        """Whether the other has this one's inode, and more in it."""
        return (self.device, self.inode) == (other.device, other.inode) and self.size < other.size


class HeldFile:
    """A file that is kept open, so that no other is given its inode for as long as this object lives."""

    def __init__(self, file: BinaryIO) -> None:
        descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, descriptor)
        self._identity = Identity.of(os.fstat(descriptor))

    def is_at(self, identity: Identity) -> bool:
        """Whether a file that was seen while this one is held is this one."""
        return (self._identity.device, self._identity.inode) == (identity.device, identity.inode)


@dataclass(frozen=True)
class RelationFiles:
    """A relation with the files that it has now, by their names relative to the folder, in order."""

    name: str
    options: RelationOptions
    format: str
    files: Mapping[str, Identity]

    @property
    def signature(self) -> str:
        """Equal signatures, once settled, are equal contents."""
        return ";".join(f"{file} {identity}" for file, identity in self.files.items())

    @property
    def settles_ns(self) -> int:
        """The time after which the signature is settled."""
        return max((identity.settles_ns for identity in self.files.values()), default=0)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(identity.size for identity in self.files.values())


@dataclass(frozen=True)
class Marker:
    """The commit file: what it says, and what it looks like."""

    content: str
    identity: Identity

    def __str__(self) -> str:
        return f"{self.identity} {self.content}"


class Folder:
    """One folder, looked at and read, never written."""

    def __init__(self, source: str, options: Options) -> None:
        self._source = source
        self._options = options
        self.path = options.folder

    def relations(self) -> dict[str, RelationFiles]:
        """Every relation with its present files; one that lacks its file has none."""
        found = self._files()
        relations: dict[str, RelationFiles] = {}
        configured = self._options.relations
        for name, options in configured.items():
            relations[name] = self._configured(name, options, found)
        if self._options.discover:
            taken = {file for relation in relations.values() for file in relation.files}
            for file in found:
                name, format_ = _stem(file), format_of(file)
                if "/" in file or format_ is None or file in taken:
                    continue
                if self._options.defaults.format not in ("", format_):
                    continue
                if name in relations:
                    if name in configured:
                        continue
                    raise ConfigurationError(
                        f"source {self._source!r} has two files that are called {name!r}; name each under "
                        "`relations` in the options"
                    )
                identity = self.identity(file)
                if identity is not None:
                    options = _with_tabs(self._options.defaults, [file])
                    relations[name] = RelationFiles(name, options, format_, {file: identity})
        return relations

    def marker(self) -> Marker | None:
        """The commit file as it is now, or None if there is none."""
        assert self._options.commit_file is not None
        path = self._inside(self._options.commit_file)
        try:
            with open(path, "rb") as file:
                content = file.read(4096)
                return Marker(content.hex(), Identity.of(os.fstat(file.fileno())))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(self._options.commit_file, error) from error

    def open(self, file: str) -> BinaryIO:
        """The file, open for reading; FileNotFoundError if it is gone."""
        path = self._inside(file)
        try:
            descriptor = os.open(
                path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
            )
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unreadable(file, error) from error
        return os.fdopen(descriptor, "rb")

    def _configured(self, name: str, options: RelationOptions, found: list[str]) -> RelationFiles:
        format_ = options.format or (format_of(options.path) if options.path else "")
        if options.path:
            if not format_:
                raise ConfigurationError(
                    f"source {self._source!r}, relation {name!r}: set option format; the name "
                    f"{options.path!r} does not tell it ({', '.join(FORMATS)})"
                )
            files = [options.path] if not _is_pattern(options.path) else _matching(options.path, found)
        else:
            suffixes = FORMATS[format_] if format_ else tuple(s for all_ in FORMATS.values() for s in all_)
            files = [f for f in found if _stem(f) == name and f.lower().endswith(suffixes)]
            if len(files) > 1:
                raise ConfigurationError(
                    f"source {self._source!r}, relation {name!r} has several files: {', '.join(files)}; "
                    "set option path"
                )
            format_ = format_ or (format_of(files[0]) if files else None) or "csv"
        identities = {file: identity for file in files if (identity := self.identity(file)) is not None}
        return RelationFiles(name, _with_tabs(options, files), format_, identities)

    def _files(self) -> list[str]:
        """All visible files below the folder, relative, in order."""
        if not self.path.is_dir():
            raise SourceUnavailableError(f"source {self._source!r}: there is no folder {self.path}")
        patterns = [o.path for o in self._options.relations.values() if _is_pattern(o.path)]
        deep = any("/" in pattern for pattern in patterns)
        found: list[str] = []
        try:
            for parent, folders, names in os.walk(self.path, onerror=_raise):
                # Hidden files are unfinished ones by custom, and so are editors' and spreadsheets' own.
                visible = [
                    n for n in names if not n.startswith((".", "~")) and n != self._options.commit_file
                ]
                relative = Path(parent).relative_to(self.path)
                found += [(relative / name).as_posix() for name in visible]
                folders[:] = [f for f in folders if not f.startswith(".")] if deep else []
        except OSError as error:
            raise self._unreadable(".", error) from error
        return sorted(found)

    def identity(self, file: str) -> Identity | None:
        """What the file looks like now, or None if it is gone."""
        path = self._inside(file)
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unreadable(file, error) from error
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(f"source {self._source!r}: {file} is no ordinary file")
        return Identity.of(found)

    def _inside(self, file: str) -> str:
        # Not by pathlib, which takes several times as long: there may be thousands of files.
        root = os.path.realpath(self.path)
        path = os.path.realpath(os.path.join(root, file))
        if not path.startswith(os.path.join(root, "")):
            raise ConfigurationError(f"source {self._source!r}: {file} is or leads outside of {self.path}")
        return path

    def _unreadable(self, file: str, error: OSError) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"source {self._source!r}: {self.path / file} cannot be read ({error.strerror or error})"
        )


def _raise(error: OSError) -> None:
    raise error


def _stem(file: str) -> str:
    name = file.rpartition("/")[2]
    return name.rpartition(".")[0] or name


def _with_tabs(options: RelationOptions, files: list[str]) -> RelationOptions:
    """The options; a file that is called so has tabs between its values, unless another delimiter is set."""
    tabs = bool(files) and not options.delimiter and all(file.lower().endswith(".tsv") for file in files)
    return replace(options, delimiter="\t") if tabs else options


def _is_pattern(path: str) -> bool:
    return not _WILD.isdisjoint(path)


def _matching(pattern: str, files: list[str]) -> list[str]:
    """The files whose parts each match the pattern's; `**` stands for any number of folders."""
    from fnmatch import fnmatchcase

    def match(wanted: tuple[str, ...], parts: tuple[str, ...]) -> bool:
        if not wanted:
            return not parts
        if wanted[0] == "**":
            return any(match(wanted[1:], parts[i:]) for i in range(len(parts)))
        return bool(parts) and fnmatchcase(parts[0], wanted[0]) and match(wanted[1:], parts[1:])

    wanted = tuple(pattern.split("/"))
    return [file for file in files if match(wanted, tuple(file.split("/")))]
