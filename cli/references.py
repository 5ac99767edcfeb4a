"""What a configured text refers to: `${VAR}` environment variables, and paths beside the file.

References are filled in after YAML was read, so a secret may hold any character and cannot change the
structure of the file. Errors name the variable, never a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algebra.errors import ConfigurationError

_REFERENCE = re.compile(r"\$(?P<escaped>\$\{)|\$\{(?P<name>[^}]*)(?P<end>\}?)")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
# `sqlite:///x.db` is relative by SQLAlchemy's convention, `sqlite:////x.db` absolute.
_FILE_URL = re.compile(r"^((?:sqlite|duckdb|files)(?:\+\w+)?:///)([^?]+)(\?.*)?$", re.DOTALL)


def fill(value: Any, environment: Mapping[str, str], where: str, file: str) -> Any:
    """The value with every `${VAR}` in its texts replaced; `$${` stands for a plain `${`."""
    if isinstance(value, str):
        return _fill_text(value, environment, where, file)
    if isinstance(value, dict):
        prefix = f"{where}." if where else ""
        return {key: fill(item, environment, f"{prefix}{key}", file) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, environment, f"{where}[{at}]", file) for at, item in enumerate(value)]
    return value


def _fill_text(text: str, environment: Mapping[str, str], where: str, file: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "${"
        name = match["name"]
        if not match["end"] or not _VARIABLE.match(name):
            raise ConfigurationError(
                f"{file}: {where}: '${{' starts no ${{VARIABLE}}; write '$${{' for the characters themselves"
            )
        if name not in environment:
            raise ConfigurationError(f"{file}: {where}: environment variable {name} is not set")
        return environment[name]

    return _REFERENCE.sub(replacement, text)


def beside(url: str, folder: Path) -> str:
    """The URL of a database file with its path made absolute; any other URL as it is."""
    match = _FILE_URL.match(url)
    if match is None:
        return url
    scheme, path, query = match[1], match[2], match[3] or ""
    if path.startswith((":", "/")):  # in memory, or absolute already
        return url
    return f"{scheme}{folder.resolve() / path}{query}"


def location(text: str, folder: Path, where: str) -> str:
    """A place: a URI as it is, a path made absolute; `where` it stands is named in errors."""
    if "://" in text:
        return text
    try:
        return str(folder.resolve() / Path(text).expanduser())
    except RuntimeError:
        raise ConfigurationError(f"{where}: ~ stands for a user that there is not, or has no home") from None
