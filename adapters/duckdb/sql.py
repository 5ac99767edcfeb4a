"""SQL text that is safe to build: names and constants in DuckDB's quoting."""

from __future__ import annotations


def quote(name: str) -> str:
    """The identifier, quoted.

    >>> print(quote('odd "name"'))
    "odd ""name"\""
    """
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """The string constant.

    >>> text("it's")
    "'it''s'"
    """
    return "'" + value.replace("'", "''") + "'"


def path(*names: str) -> str:
    """A qualified name.

    >>> path("src", "main", "t")
    '"src"."main"."t"'
    """
    return ".".join(quote(name) for name in names)


NEW_EPOCH = "replace(uuid()::VARCHAR, '-', '')"
"""SQL: a text that no other history has; drawn by DuckDB, so that a dry run shows the statement itself."""
