"""Values as people read them, and as JSON carries them."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protos.lockstep.v1 import types_pb2

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""What moves a terminal's cursor, changes its state or ends a line; C1 has ESC and a letter in one."""
_LEFT_BY_JSON = re.compile("[\x7f-\x9f\u2028\u2029]")


def visible(text: str) -> str:
    """The text on one line, with control characters spelled out, so that it cannot steer a terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """The same for a text of several lines, such as a trace."""
    return "\n".join(map(visible, text.split("\n")))


def visible_json(value: Any, indent: int | None = None) -> str:
    """The value as JSON that cannot steer a terminal either."""
    document = json.dumps(value, indent=indent, ensure_ascii=False)
    return _LEFT_BY_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def cell(value: Any) -> str:
    """The value on one line; control characters are spelled out, so that data cannot steer a terminal."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, bool):
        return "true" if value else "false"
    return visible(str(value))


def plain(value: Any) -> Any:
    """The value as JSON carries it without loss: exact decimals, times and bytes become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def number(value: int) -> str:
    """The number with thousands separated."""
    return f"{value:,}"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return ""
    return f"{value * 1000:.0f} ms" if abs(value) < 1 else f"{value:.1f} s"


def size(value: int) -> str:
    """A number of bytes in the unit that suits it."""
    amount, units = float(value), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def moment(value: datetime | None) -> str:
    """A moment in local time."""
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S") if value else ""


def vector(value: Mapping[str, types_pb2.Position]) -> str:
    """A vector as `source@ordinal` for each source."""
    return " ".join(f"{source}@{value[source].ordinal}" for source in sorted(value))


def count(amount: int, what: str) -> str:
    """An amount with its noun: `1 row`, `2 rows`."""
    return f"{number(amount)} {what}{'' if amount == 1 else 's'}"
