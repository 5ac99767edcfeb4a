"""SQLAlchemy's reflected types as Arrow types, and the expression that reads a column as that type.

The reflected type decides; a value that does not fit it is an error, never a guess. What Arrow has no type
for is read as the text that the database itself makes of it, where every type has such a text (PostgreSQL).
Where drivers would convert wrongly, the database does it: MySQL's TIME reaches beyond a day, which Python's
does not, and its FLOAT is sent with six digits unless it is cast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeEngine

Expression = ColumnElement[Any]

_MYSQL = ("mysql", "mariadb")
_UTC = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class ColumnType:
    """How one reflected type is shown and read."""

    arrow: pa.DataType
    read: Callable[[Expression], Expression]

    @property
    def is_number(self) -> bool:
        """Whether values come back exactly as they compare, so that reading can go on after one."""
        return bool(pa.types.is_integer(self.arrow))

    @property
    def is_bindable(self) -> bool:
        """Whether a value that was read can be looked up again: equal to the same row and to no other."""
        arrow = self.arrow
        kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_date)
        return any(kind(arrow) for kind in kinds)


def column_type(dialect: str, type_: TypeEngine[Any], numeric_scale: int) -> ColumnType | None:
    """How a reflected type is shown in a dialect, or None if it is not supported."""
    special = _special(dialect, type_)
    if special is not None:
        return special
    if _is_binary(type_):
        return ColumnType(pa.binary(), _as(sa.LargeBinary()))
    match type_:
        case sa.Boolean():
            # As it is stored: SQLAlchemy would take any number for true.
            return ColumnType(pa.bool_(), _as(sa.SmallInteger()))
        case sa.Integer():
            return ColumnType(_integer(dialect, type_), _as(sa.BigInteger()))
        case sa.Float():
            return _float(dialect, type_)
        case sa.Numeric():
            return _numeric(type_, numeric_scale)
        case sa.Uuid():
            return ColumnType(pa.string(), _as(type_.__class__(as_uuid=False)))
        case sa.String():
            return ColumnType(pa.string(), _as(sa.Text()))
        case sa.DateTime():
            return ColumnType(_UTC if _is_zoned(type_) else pa.timestamp("us"), _as(type_))
        case sa.Date():
            return ColumnType(pa.date32(), _as(type_))
        case sa.Time():
            return None if getattr(type_, "timezone", False) else ColumnType(pa.time64("us"), _as(type_))
    return None


def _special(dialect: str, type_: TypeEngine[Any]) -> ColumnType | None:
    """What a dialect needs otherwise than its types' bases say."""
    name = type_.__class__.__name__.upper()
    if dialect == "postgresql" and (isinstance(type_, _TEXT_IN_POSTGRESQL) or not _is_common(type_)):
        return ColumnType(pa.string(), lambda column: sa.cast(column, sa.Text()))
    if dialect in _MYSQL:
        match name:
            case "TINYINT" if getattr(type_, "display_width", None) == 1:
                return ColumnType(pa.bool_(), _as(sa.SmallInteger()))
            case "TIME" | "JSON" | "SET" | "ENUM" | "UUID" | "INET4" | "INET6":
                return ColumnType(pa.string(), lambda column: sa.cast(column, sa.CHAR()))
            case "YEAR":
                return ColumnType(pa.int16(), _as(sa.SmallInteger()))
            case "BIT":
                return ColumnType(pa.uint64(), _as(type_))
            case "TIMESTAMP":
                return ColumnType(_UTC, _as(type_))
            case "FLOAT":
                return ColumnType(pa.float32(), lambda column: sa.cast(column, sa.DOUBLE()))
    if dialect == "mssql" and name in ("TIMESTAMP", "ROWVERSION"):
        return ColumnType(pa.binary(), _as(sa.LargeBinary()))
    return None


_TEXT_IN_POSTGRESQL = (sa.Enum, sa.JSON, sa.ARRAY, sa.Interval)
_COMMON = (
    sa.Boolean, sa.Integer, sa.Float, sa.Numeric, sa.Uuid, sa.String, sa.DateTime, sa.Date, sa.Time,
)  # fmt: skip
# Their text depends on the locale, or on names that may change.
_REFUSED_IN_POSTGRESQL = ("MONEY", "OID", "REGCLASS", "REGCONFIG")


def _is_common(type_: TypeEngine[Any]) -> bool:
    known = isinstance(type_, _COMMON) or _is_binary(type_)
    return known or type_.__class__.__name__ in _REFUSED_IN_POSTGRESQL


def _is_binary(type_: TypeEngine[Any]) -> bool:
    """Whether values are bytes; each dialect has classes of its own for that, with no public base."""
    try:
        return type_.python_type is bytes
    except NotImplementedError:
        return False


def _as(type_: TypeEngine[Any]) -> Callable[[Expression], Expression]:
    """The column itself, with values converted as for that type."""
    return lambda column: sa.type_coerce(column, type_)


def _integer(dialect: str, type_: sa.Integer) -> pa.DataType:
    unsigned = bool(getattr(type_, "unsigned", False))
    name = type_.__class__.__name__.upper()
    if dialect == "sqlite":
        return pa.int64()
    if name == "TINYINT":
        # SQL Server's has no sign, MySQL's may.
        return pa.uint8() if unsigned or dialect == "mssql" else pa.int8()
    if isinstance(type_, sa.SmallInteger):
        return pa.uint16() if unsigned else pa.int16()
    if isinstance(type_, sa.BigInteger):
        return pa.uint64() if unsigned else pa.int64()
    return pa.uint32() if unsigned else pa.int32()


def _float(dialect: str, type_: sa.Float[Any]) -> ColumnType:
    short = dialect in ("postgresql", "mssql") and type_.__class__.__name__ == "REAL"
    return ColumnType(pa.float32() if short else pa.float64(), _as(sa.Double()))


def _numeric(type_: sa.Numeric[Any], numeric_scale: int) -> ColumnType | None:
    precision, scale = type_.precision, type_.scale
    if precision is None:
        precision, scale = 38, numeric_scale
    scale = scale or 0
    if scale < 0:
        precision, scale = precision - scale, 0
    if max(precision, scale) > 38:
        return None
    exact = sa.Numeric(precision, scale, asdecimal=True)
    return ColumnType(pa.decimal128(max(precision, scale), scale), _as(exact))


def _is_zoned(type_: sa.DateTime) -> bool:
    return bool(type_.timezone) or type_.__class__.__name__.upper() == "DATETIMEOFFSET"
