"""The SQLite adapter's own options, checked."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.rate_limit import Footprint
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError

_MEBIBYTE = 1 << 20
_KNOWN = ("journal", "rate_limit", "replace", "wal_limit_mb")


@dataclass(frozen=True)
class SqliteOptions:
    """How capture works on one source.

    `switch_to_wal` (`journal: wal`, the default; `journal: keep` leaves the mode alone): preparing puts
    the database into write-ahead mode, without which transactions cannot be told apart.
    `capture_replace` (`replace: capture`, the default; `replace: never` promises that no writer uses
    REPLACE and saves writers the triggers for it). `wal_limit` (`wal_limit_mb`, default 64): the size in
    bytes beyond which writers are held for a moment so that the write-ahead log can start over.
    `rate_limit`: see `adapters/rate_limit`. There is no statement timeout: statements run in this process,
    on a snapshot that hinders nobody.
    """

    switch_to_wal: bool = True
    capture_replace: bool = True
    wal_limit: int = 64 * _MEBIBYTE
    rate_limit: float = 0.0

    @classmethod
    def of(cls, config: SourceConfig) -> SqliteOptions:
        if config.capture not in (None, "trigger"):
            raise ConfigurationError(
                f"source {config.name!r}: capture {config.capture!r} is unknown for SQLite; it has: trigger"
            )
        unknown = sorted(set(config.options) - set(_KNOWN))
        if unknown:
            raise ConfigurationError(
                f"source {config.name!r}: unknown option {unknown[0]!r}; SQLite has: {', '.join(_KNOWN)}"
            )
        limit = config.options.get("wal_limit_mb", 64)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ConfigurationError(f"source {config.name!r}: wal_limit_mb must be a whole number above 0")
        return cls(
            switch_to_wal=_choice(config, "journal", "wal", "keep"),
            capture_replace=_choice(config, "replace", "capture", "never"),
            wal_limit=limit * _MEBIBYTE,
            rate_limit=Footprint.of(config).rate_limit,
        )


def _choice(config: SourceConfig, option: str, default: str, other: str) -> bool:
    value = config.options.get(option, default)
    if value not in (default, other):
        raise ConfigurationError(f"source {config.name!r}: {option} must be {default!r} or {other!r}")
    return bool(value == default)
