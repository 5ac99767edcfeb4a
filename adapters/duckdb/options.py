"""What a user can set for a DuckDB source, checked once and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from adapters.rate_limit import Footprint
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
    `rate_limit`: see `adapters/rate_limit`; statements run in this process, so there is no timeout for them.
    `shadow`: the file that keeps the state and the differences of `diff` capture.
    """

    path: Path
    capture: str
    shadow: Path
    lock_timeout: float = 30.0
    exclude: frozenset[str] = frozenset()
    trim: bool = True
    trim_entries: int = 10_000
    trim_seconds: float = 60.0
    rate_limit: float = 0.0


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
    given = dict(config.options)
    known = {field.name for field in fields(Options)} - {"path", "capture"}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ConfigurationError(
            f"source {config.name!r}: unknown option {unknown[0]!r}; a duckdb source has: "
            + ", ".join(sorted(known))
        )
    default_shadow = path.with_name(path.name + ".lockstep-shadow.duckdb")
    return Options(
        path=path,
        capture=capture,
        shadow=Path(_typed(config, given, "shadow", str, str(default_shadow))),
        lock_timeout=_seconds(config, given, "lock_timeout", 30.0),
        exclude=_names(config, given, "exclude"),
        trim=_typed(config, given, "trim", bool, True),
        trim_entries=_typed(config, given, "trim_entries", int, 10_000),
        trim_seconds=_seconds(config, given, "trim_seconds", 60.0),
        rate_limit=Footprint.of(config).rate_limit,
    )


def _typed(config: SourceConfig, given: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = given.get(name, default)
    if not isinstance(value, kind):
        raise ConfigurationError(f"source {config.name!r}: option {name} is {value!r}, not a {kind.__name__}")
    return value


def _seconds(config: SourceConfig, given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigurationError(f"source {config.name!r}: option {name} is {value!r}, not a time in seconds")
    return float(value)


def _names(config: SourceConfig, given: Mapping[str, Any], name: str) -> frozenset[str]:
    value = given.get(name, ())
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ConfigurationError(f"source {config.name!r}: option {name} is {value!r}, not a list of names")
    return frozenset(value)
