"""What a user can set for a folder of files, checked once and typed.

Settings of single relations stand under `relations`; those that make sense for many may also stand beside
it, as the default of all.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from adapters.files.types import named_type
from adapters.options import GivenOptions
from adapters.rate_limit import FOOTPRINT_OPTIONS, Footprint
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError

FORMATS: Mapping[str, tuple[str, ...]] = {
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet",),
    "excel": (".xlsx", ".xlsb", ".xlsm", ".xls", ".ods"),
}
"""Formats by name, with the suffixes that tell them."""

REFUSE, QUARANTINE, EMPTY, WAIT, TAKE = "refuse", "quarantine", "empty", "wait", "take"
TEXT_FORMATS = ("csv", "jsonl")


@dataclass(frozen=True)
class RelationOptions:
    """How the file or files of one relation are read.

    `path`: a file, or a pattern of files of the same shape, inside the folder; empty: the file is found by
    the relation's name. `format`: one of `FORMATS`; empty: by the suffix. `delimiter`, `quote`: of CSV; an
    empty quote means that values are never quoted. `header`: whether CSV and Excel begin with column names.
    `encoding`: of CSV and JSON-lines. `null`: texts that stand for NULL in CSV and Excel when not quoted.
    `sheet`: of Excel; empty: the first. `columns`: declared types by column, in order; what is not declared
    is inferred. `key`: columns that tell every row from every other. `exclude`: columns that are not shown.
    `last_line`: what becomes of a last line without a line end: `wait` until it has one, or `take` it.
    `missing`: `refuse` to go on without the file, or take it for an `empty` relation. `malformed`: `refuse`
    a file with malformed rows, or `quarantine` them.
    """

    path: str = ""
    format: str = ""
    delimiter: str = ""
    quote: str = '"'
    header: bool = True
    encoding: str = "utf-8"
    null: tuple[str, ...] = ("",)
    sheet: str = ""
    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    exclude: frozenset[str] = frozenset()
    last_line: str = WAIT
    missing: str = REFUSE
    malformed: str = REFUSE


@dataclass(frozen=True)
class Options:
    """One folder as configured.

    `folder`: where the files are. `relations`: those that are configured by name. `discover`: whether every
    other supported file is a relation too. `defaults`: for these. `commit_file`: a file in the folder whose
    owner removes it before files are changed and writes it anew when all are; None: every change counts.
    `patience`: seconds that an unfinished or changing file is waited for. `shadow`: the folder that keeps the
    state and the differences. `quarantine`: the file that tells the rows that were left out.
    `quarantine_limit`: with more of them, the files are refused after all. `max_line_mb`: a longer line is
    an error. `poll_seconds`: how often the folder is looked at where the system does not report changes.
    `trim`, `trim_entries`, `trim_seconds`: when acknowledged history is deleted from the shadow.
    `footprint`: the options that all adapters share: relations that are read per second, seconds for a fetch.
    `memory_limit`: what a comparison keeps in memory; beyond it, it spills to a temporary folder.
    """

    folder: Path
    shadow: Path
    quarantine: Path
    relations: Mapping[str, RelationOptions]
    defaults: RelationOptions
    discover: bool
    commit_file: str | None = None
    patience: float = 5.0
    quarantine_limit: int = 1000
    max_line_mb: int = 64
    poll_seconds: float = 1.0
    trim: bool = True
    trim_entries: int = 1000
    trim_seconds: float = 60.0
    memory_limit: str = "1GiB"
    footprint: Footprint = field(default_factory=Footprint)


_DERIVED = ("folder", "defaults", "footprint")
_OWN = tuple(f.name for f in fields(Options) if f.name not in _DERIVED)
_PER_RELATION = tuple(f.name for f in fields(RelationOptions))
_SHARED = tuple(name for name in _PER_RELATION if name not in ("path", "columns", "key", "sheet", "exclude"))


def parse(config: SourceConfig) -> Options:
    """The options of a configured source; ConfigurationError names the first thing that is wrong."""
    folder = _folder(config)
    if config.capture not in (None, "diff"):
        raise ConfigurationError(
            f"source {config.name!r}: capture {config.capture!r} is unknown for files; it has: diff"
        )
    given = GivenOptions.of(config)
    given.refuse_unknown((*_OWN, *_SHARED, *FOOTPRINT_OPTIONS))
    defaults = _relation(given, RelationOptions(), _SHARED)
    relations = {}
    for name, settings in _settings(given, "relations").items():
        inner = GivenOptions(f"source {config.name!r}, relation {name!r}", settings)
        inner.refuse_unknown(_PER_RELATION)
        relations[name] = _relation(inner, defaults, _PER_RELATION)
    shadow = Path(given.text("shadow", str(folder.with_name(folder.name + ".lockstep-shadow"))))
    return Options(
        folder=folder,
        shadow=_outside(config, folder, "shadow", shadow),
        quarantine=_outside(
            config,
            folder,
            "quarantine",
            Path(given.text("quarantine", f"{shadow}.quarantine.jsonl")),
        ),
        relations=relations,
        defaults=defaults,
        discover=given.flag("discover", not relations),
        commit_file=_commit_file(given),
        patience=given.number("patience", 5.0),
        quarantine_limit=given.whole("quarantine_limit", 1000),
        max_line_mb=given.whole("max_line_mb", 64, least=1),
        poll_seconds=given.number("poll_seconds", 1.0, least=0.01),
        trim=given.flag("trim", True),
        trim_entries=given.whole("trim_entries", 1000),
        trim_seconds=given.number("trim_seconds", 60.0),
        memory_limit=given.size("memory_limit", Options.memory_limit),
        footprint=Footprint.of(config),
    )


def format_of(path: str) -> str | None:
    """The format that a file's suffix tells, or None.

    >>> format_of("orders/2024.PARQUET")
    'parquet'
    """
    suffix = PurePosixPath(path).suffix.lower()
    return next((name for name, suffixes in FORMATS.items() if suffix in suffixes), None)


def _folder(config: SourceConfig) -> Path:
    for prefix in ("files:///", "file://"):
        # `file:///data` is absolute, as it always is; `files:///data` is relative, as with other sources.
        if config.url.startswith(prefix) and config.url != prefix:
            path = config.url.removeprefix(prefix)
            if prefix == "files:///" or path.startswith("/"):
                return Path(path)
    raise ConfigurationError(
        f"source {config.name!r}: url {config.url!r} is not files:///relative/folder, "
        "files:////absolute/folder or file:///absolute/folder"
    )


def _outside(config: SourceConfig, folder: Path, option: str, path: Path) -> Path:
    if path.absolute().is_relative_to(folder.absolute()):
        raise ConfigurationError(
            f"source {config.name!r}: option {option} is {path}, inside the folder of the files; "
            "put it elsewhere"
        )
    return path


def _commit_file(given: GivenOptions) -> str | None:
    name = given.text("commit_file", "")
    if name and (PurePosixPath(name).name != name or name in (".", "..") or "\x00" in name):
        raise given.error("commit_file", name, "the name of a file in the folder")
    return name or None


def _relation(given: GivenOptions, base: RelationOptions, names: tuple[str, ...]) -> RelationOptions:
    values = {name: _READ[name](given, name) for name in names if name in given.values}
    options = replace(base, **values)
    for column in options.key:
        if options.columns and not options.header and column not in options.columns:
            raise given.error("key", column, "a column of the relation")
    return options


def _settings(given: GivenOptions, name: str) -> dict[str, Mapping[str, Any]]:
    value = given.values.get(name, {})
    if isinstance(value, Mapping):
        entries = {key: {} if settings is None else settings for key, settings in value.items()}
        if all(isinstance(k, str) and k and isinstance(s, Mapping) for k, s in entries.items()):
            return entries
    raise given.error(name, value, "a mapping of names to settings")


def _one_of(*choices: str) -> Callable[[GivenOptions, str], str]:
    return lambda given, name: given.choice(name, *choices)


def _character(given: GivenOptions, name: str) -> str:
    value = given.text(name, "")
    allowed = len(value) == 1 and value.isascii() and value not in "\r\n\x00"
    if not allowed and not (name == "quote" and value == ""):
        raise given.error(name, value, "a single ASCII character")
    return value


def _encoding(given: GivenOptions, name: str) -> str:
    value = given.text(name, "")
    try:
        return codecs.lookup(value).name
    except LookupError:
        raise given.error(name, value, "an encoding that is known") from None


def _path(given: GivenOptions, name: str) -> str:
    value = given.text(name, "")
    parts = PurePosixPath(value).parts
    if not value or value.startswith("/") or ".." in parts or "\x00" in value:
        raise given.error(name, value, "a path inside the folder; it may not be absolute or hold '..'")
    return value


def _columns(given: GivenOptions, name: str) -> Mapping[str, pa.DataType]:
    value = given.values[name]
    if not isinstance(value, Mapping) or not all(isinstance(column, str) for column in value):
        raise given.error(name, value, "a mapping of columns to types")
    types = {}
    for column, declared in value.items():
        type_ = named_type(declared) if isinstance(declared, str) else None
        if type_ is None:
            raise given.error(
                f"columns.{column}", declared, "a type such as BIGINT, DECIMAL(18,4) or timestamp"
            )
        types[column] = type_
    return types


_READ: Mapping[str, Callable[[GivenOptions, str], Any]] = {
    "path": _path,
    "format": _one_of(*FORMATS),
    "delimiter": _character,
    "quote": _character,
    "header": lambda given, name: given.flag(name, True),
    "encoding": _encoding,
    "null": lambda given, name: given.names(name, or_one=True),
    "sheet": lambda given, name: given.text(name, ""),
    "columns": _columns,
    "key": lambda given, name: given.names(name, or_one=True),
    "exclude": lambda given, name: frozenset(given.names(name, or_one=True)),
    "last_line": _one_of(WAIT, TAKE),
    "missing": _one_of(REFUSE, EMPTY),
    "malformed": _one_of(REFUSE, QUARANTINE),
}
