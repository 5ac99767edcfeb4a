"""Connections and read transactions, and the errors of drivers as errors of the contract.

A connection is made for each cycle and closed after it: a cycle every few seconds is rare enough, an idle
connection costs the source more than a new one, and none can be stale after a restart of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError as DriverDataError
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from adapters.rate_limit import DEFAULT_STATEMENT_TIMEOUT, RateLimit
from adapters.sqlalchemy.dialects import Place, connect_arguments, install, level_of, rules_of
from adapters.sqlalchemy.options import NO_ISOLATION, Options
from algebra.errors import ConfigurationError, DataError, LockstepError, SourceUnavailableError

_DENIED = ("permission denied", "denied to user", "access denied", "insufficient privilege", "ora-01031")
_DENIED_CODES = {1044, 1045, 1142, 1143, 1227, 229, 1031}
"""MySQL's, SQL Server's and Oracle's codes for a missing right."""


class Database:
    """The source's database; connects when it is read."""

    def __init__(self, source: str, options: Options) -> None:
        self._source = source
        self._options = options
        self._limit = RateLimit(options.footprint.rate_limit)
        self._engine: Engine | None = None
        self._closed = False

    @property
    def dialect(self) -> str:
        """The name of the dialect, by the url."""
        return self.engine.dialect.name

    @property
    def level(self) -> str:
        """The isolation level that cycles are read by; ConfigurationError if none is known."""
        level = level_of(self.dialect, self._options.isolation)
        if not level:
            raise ConfigurationError(
                f"source {self._source!r}: no isolation level of dialect {self.dialect!r} is known to read "
                f"one state; name it in option `isolation`, or say `isolation: {NO_ISOLATION}` for a view "
                "that converges only"
            )
        return level

    @property
    def engine(self) -> Engine:
        if self._closed:
            raise SourceUnavailableError(f"source {self._source!r}: the adapter is closed")
        if self._engine is None:
            self._engine = self._create()
        return self._engine

    @contextmanager
    def reading(self, places: Iterable[Place] = ()) -> Iterator[Connection]:
        """One read transaction, under the isolation level, with the time limit set.

        Tables at these places are as its snapshot shows them, whatever is done to them as a whole meanwhile.
        """
        level = self.level
        rules = rules_of(self.dialect)
        timeout = self._options.footprint.statement_timeout
        self._limit.pause()
        with self.translated(), self.engine.connect() as connection:
            options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT" if level == NO_ISOLATION else level}
            if self.dialect == "postgresql" and level != NO_ISOLATION:
                options["postgresql_readonly"] = True
            connection = connection.execution_options(**options)
            with connection.begin():
                rules.settings(connection, timeout)
                if level != NO_ISOLATION:
                    rules.hold(connection, places)
                yield connection

    def spend(self) -> None:
        """Note one statement."""
        self._limit.spend()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of SQLAlchemy and of drivers leave the block as errors of the contract."""
        try:
            yield
        except SQLAlchemyError as error:
            raise self._translate(error) from error

    def close(self) -> None:
        """Connect no more; from any thread."""
        self._closed = True
        self._limit.close()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def _create(self) -> Engine:
        url = self._options.url
        driver = url.drivername
        try:
            rules = rules_of(url.get_backend_name())
            arguments = connect_arguments(url, self._options.footprint.statement_timeout)
            engine = sa.create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=arguments)
        except NoSuchModuleError:
            raise ConfigurationError(
                f"source {self._source!r}: no SQLAlchemy dialect {driver!r} is installed; "
                "see the list of databases in docs/sources/sqlalchemy.md"
            ) from None
        except ImportError as error:
            raise ConfigurationError(
                f"source {self._source!r}: the driver of {driver!r} is not installed "
                f"({error.name or error}); install it, or name another in the url, as dialect+driver://"
            ) from None
        except SQLAlchemyError as error:
            raise ConfigurationError(f"source {self._source!r}: {_line(error)}") from None
        if not rules.has_timeout and self._options.footprint.statement_timeout not in (
            0,
            DEFAULT_STATEMENT_TIMEOUT,
        ):
            raise ConfigurationError(
                f"source {self._source!r}: dialect {engine.dialect.name!r} cannot end statements by time; "
                "leave option statement_timeout out"
            )
        install(engine, level_of(engine.dialect.name, self._options.isolation))
        return engine

    def _translate(self, error: SQLAlchemyError) -> LockstepError:
        line = f"source {self._source!r}: {_line(error)}"
        if isinstance(error, DriverDataError):
            return DataError(line, told=f"source {self._source!r}: a value does not fit its type")
        if isinstance(error, DBAPIError) and _is_denied(error):
            return ConfigurationError(
                f"{line}; grant SELECT on every relation that is shown, and what else it names"
            )
        return SourceUnavailableError(line)


def _line(error: Exception) -> str:
    """The driver's own words in one line; never the statement's values."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _is_denied(error: DBAPIError) -> bool:
    if getattr(error.orig, "sqlstate", None) == "42501":
        return True
    code = error.orig.args[0] if error.orig is not None and error.orig.args else None
    text = str(error.orig).lower()
    return code in _DENIED_CODES or any(words in text for words in _DENIED)
