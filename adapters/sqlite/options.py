"""The SQLite adapter's own options, checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from adapters.options import GivenOptions
from adapters.rate_limit import FOOTPRINT_OPTIONS, Footprint
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError

_MEBIBYTE = 1 << 20
_KNOWN = ("journal", "replace", "wal_limit_mb", *FOOTPRINT_OPTIONS)


@dataclass(frozen=True)
class SqliteOptions:
    """How capture works on one source.

    `switch_to_wal` (`journal: wal`, the default; `journal: keep` leaves the mode alone): preparing puts
    the database into write-ahead mode, without which transactions cannot be told apart.
    `capture_replace` (`replace: capture`, the default; `replace: never` promises that no writer uses
    REPLACE and saves writers the triggers for it). `wal_limit` (`wal_limit_mb`, default 64): the size in
    bytes beyond which writers are held for a moment so that the write-ahead log can start over.
    `footprint`: the options that all adapters share; the time limit holds for fetches.
    """

    switch_to_wal: bool = True
    capture_replace: bool = True
    wal_limit: int = 64 * _MEBIBYTE
    footprint: Footprint = field(default_factory=Footprint)

    @classmethod
    def of(cls, config: SourceConfig) -> SqliteOptions:
        if config.capture not in (None, "trigger"):
            raise ConfigurationError(
                f"source {config.name!r}: capture {config.capture!r} is unknown for SQLite; it has: trigger"
            )
        given = GivenOptions.of(config)
        given.refuse_unknown(_KNOWN, "SQLite has")
        return cls(
            switch_to_wal=given.choice("journal", "wal", "keep") == "wal",
            capture_replace=given.choice("replace", "capture", "never") == "capture",
            wal_limit=given.whole("wal_limit_mb", 64, least=1) * _MEBIBYTE,
            footprint=Footprint.of(config),
        )
