"""What a user can set for a DuckDB source, checked once and typed."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from adapters.options import GivenOptions
from adapters.rate_limit import FOOTPRINT_OPTIONS, Footprint
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError

TRIGGER = "trigger"
DIFF = "diff"
PREFIX = "duckdb:///"


@dataclass(frozen=True)
class Options:
    """One DuckDB source as configured.

    `path`: the database file. `capture`: `trigger` or `diff`. `lock_timeout`: seconds to wait for a file
    that its owner holds open; 0 tries once. `exclude`: columns (`relation.column`) that are not shown.
    `trim`: whether acknowledged history is deleted from the source. `trim_entries`, `trim_seconds`: a trim
    happens once so many log entries are acknowledged, or so long after the last one; 0 means at once.
    `footprint`: the options that all adapters share; the time limit holds for fetches.
    `shadow`: the folder that keeps the state and the differences of `diff` capture. `memory_limit`: what
    comparisons and joins may keep in memory before they spill to a temporary folder.
    """

    path: Path
    capture: str
    shadow: Path
    lock_timeout: float = 30.0
    memory_limit: str = "1GiB"
    exclude: frozenset[str] = frozenset()
    trim: bool = True
    trim_entries: int = 10_000
    trim_seconds: float = 60.0
    footprint: Footprint = field(default_factory=Footprint)


def parse(config: SourceConfig) -> Options:
    """The options of a configured source; ConfigurationError names the first thing that is wrong."""
    if not config.url.startswith(PREFIX) or config.url == PREFIX:
        raise ConfigurationError(
            f"source {config.name!r}: url {config.url!r} is not duckdb:///relative.duckdb"
            " or duckdb:////absolute.duckdb"
        )
    path = Path(config.url.removeprefix(PREFIX))
    capture = config.capture or TRIGGER
    if capture not in (TRIGGER, DIFF):
        raise ConfigurationError(f"source {config.name!r}: capture {capture!r} is not {TRIGGER} or {DIFF}")
    given = GivenOptions.of(config)
    known = {field.name for field in fields(Options)} - {"path", "capture", "footprint"}
    given.refuse_unknown(known | set(FOOTPRINT_OPTIONS), "a duckdb source has")
    default_shadow = path.with_name(path.name + ".lockstep-shadow")
    return Options(
        path=path,
        capture=capture,
        shadow=Path(given.text("shadow", str(default_shadow))),
        lock_timeout=given.seconds("lock_timeout", 30.0),
        memory_limit=given.size("memory_limit", Options.memory_limit),
        exclude=frozenset(given.names("exclude")),
        trim=given.flag("trim", True),
        trim_entries=given.whole("trim_entries", 10_000),
        trim_seconds=given.seconds("trim_seconds", 60.0),
        footprint=Footprint.of(config),
    )
