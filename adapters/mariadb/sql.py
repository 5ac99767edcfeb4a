"""SQL text that is safe to build: names and constants in MariaDB's quoting."""

from __future__ import annotations


def quote(name: str) -> str:
    """The identifier, quoted.

    >>> print(quote("odd `name"))
    `odd ``name`
    """
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    r"""The string constant, for a session whose sql_mode leaves backslashes their meaning.

    >>> print(text("it's a \\ line\n"))
    'it\'s a \\ line\n'
    """
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\0", "\\0")
    return "'" + escaped.replace("\r", "\\r").replace("\x1a", "\\Z") + "'"


def path(*names: str) -> str:
    """A qualified name.

    >>> path("shop", "orders")
    '`shop`.`orders`'
    """
    return ".".join(quote(name) for name in names)
