"""SQL text that is safe to build: names and constants in PostgreSQL's quoting."""

from __future__ import annotations


def quote(name: str) -> str:
    """The identifier, quoted.

    >>> print(quote('odd "name"'))
    "odd ""name"\""
    """
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    r"""The string constant, whatever `standard_conforming_strings` says.

    >>> text("it's")
    "'it''s'"
    >>> print(text("a\\b"))
    E'a\\b'
    """
    quoted = "'" + value.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in value else quoted


def path(*names: str) -> str:
    """A qualified name.

    >>> path("public", "t")
    '"public"."t"'
    """
    return ".".join(quote(name) for name in names)
