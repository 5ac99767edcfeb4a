"""What a user can set for a SQLAlchemy source, checked once and typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from adapters.options import GivenOptions
from adapters.rate_limit import FOOTPRINT_OPTIONS, Footprint
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError

DIFF = "diff"
NO_ISOLATION = "none"
MODIFIED_AT, VERSION = "modified_at", "version"
_NOT_OPTIONS = {"url", "footprint"}


@dataclass(frozen=True)
class Hint:
    """A column that tells whether a row changed: every change of a row gives it another value.

    `overlap`: for so many seconds after a value was first seen, a later change of the row may leave it as it
    is; 0 means never.
    """

    column: str
    overlap: float


@dataclass(frozen=True)
class Options:
    """One SQLAlchemy source as configured.

    `shadow`: the folder of the state and the differences. `poll_interval`: seconds between two cycles;
    snapshots in between show the state of the last one; 0 means that each snapshot is a cycle. `isolation`:
    the level under which one transaction reads one state, "" for what the dialect is known to have, or `none`
    if it has none. `schemas`: further schemas, whose tables are shown as `schema.table`. `exclude`:
    columns (`relation.column`) that are not shown. `hints`: by relation. `full_every`: seconds after which a
    relation with a hint is compared as a whole; 0 means every time. `chunk_rows`: rows fetched at a time, at
    most. `numeric_scale`: digits after the point of numbers that are declared without. `memory_limit`: what a
    comparison may keep in memory before it spills to a temporary folder. `trim`, `trim_entries`,
    `trim_seconds`: whether acknowledged history is deleted from the shadow, and when that is due.
    `lock_timeout`: seconds to wait for a shadow that another process holds. `footprint`: the common options.
    """

    url: URL
    shadow: Path
    footprint: Footprint
    poll_interval: float = 5.0
    isolation: str = ""
    schemas: tuple[str, ...] = ()
    exclude: frozenset[str] = frozenset()
    hints: Mapping[str, Hint] = field(default_factory=dict)
    full_every: float = 3600.0
    chunk_rows: int = 10_000
    numeric_scale: int = 10
    memory_limit: str = "1GiB"
    trim: bool = True
    trim_entries: int = 1_000
    trim_seconds: float = 60.0
    lock_timeout: float = 30.0


def parse(config: SourceConfig) -> Options:
    """The options of a configured source; ConfigurationError names the first thing that is wrong."""
    where = f"source {config.name!r}"
    try:
        url = make_url(config.url)
    except ArgumentError:
        # Without the text itself, which may hold a password.
        raise ConfigurationError(
            f"{where}: the url is not of the form dialect+driver://user@host/database"
        ) from None
    if config.capture not in (None, DIFF):
        raise ConfigurationError(f"{where}: capture {config.capture!r} is not {DIFF}")
    known = {f.name for f in fields(Options)} - _NOT_OPTIONS | set(FOOTPRINT_OPTIONS) | {"overlap"}
    given = GivenOptions.of(config)
    given.refuse_unknown(known, "a sqlalchemy source has")
    overlap = given.seconds("overlap", 300.0)
    return Options(
        url=url,
        shadow=Path(given.text("shadow", default_shadow(config.name))),
        footprint=Footprint.of(config),
        poll_interval=given.seconds("poll_interval", Options.poll_interval),
        isolation=given.text("isolation", Options.isolation),
        schemas=given.names("schemas"),
        exclude=frozenset(given.names("exclude")),
        hints=_hints(given, overlap),
        full_every=given.seconds("full_every", Options.full_every),
        chunk_rows=given.whole("chunk_rows", Options.chunk_rows, least=1),
        numeric_scale=given.whole("numeric_scale", Options.numeric_scale),
        memory_limit=given.size("memory_limit", Options.memory_limit),
        trim=given.flag("trim", Options.trim),
        trim_entries=given.whole("trim_entries", Options.trim_entries),
        trim_seconds=given.seconds("trim_seconds", Options.trim_seconds),
        lock_timeout=given.seconds("lock_timeout", Options.lock_timeout),
    )


def default_shadow(source: str) -> str:
    """The shadow's folder, in the working directory.

    >>> default_shadow("shop")
    'shop.lockstep-shadow'
    """
    return re.sub(r"[^\w.-]", "_", source) + ".lockstep-shadow"


def _hints(given: GivenOptions, overlap: float) -> Mapping[str, Hint]:
    value = given.values.get("hints", {})
    wanted = f"like {{relation: {{{MODIFIED_AT}: column}}}} or {{relation: {{{VERSION}: column}}}}"
    if not isinstance(value, dict):
        raise given.error("hints", value, wanted)
    found = {}
    for relation, hint in value.items():
        if not isinstance(hint, dict) or len(hint) != 1 or next(iter(hint)) not in (MODIFIED_AT, VERSION):
            raise given.error(f"hints.{relation}", hint, wanted)
        ((kind, column),) = hint.items()
        found[str(relation)] = Hint(str(column), overlap if kind == MODIFIED_AT else 0.0)
    return found
