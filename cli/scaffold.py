"""A new adapter's package, written from the templates in `cli/templates/adapter`.

What it writes is a complete small adapter that passes the conformance kit. Whoever replaces it by their own,
piece by piece, is told by the tests at each step what does not hold yet.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from pathlib import Path

from algebra.errors import AlreadyExistsError, ConfigurationError

TEMPLATES = Path(__file__).parent / "templates" / "adapter"
SUFFIX = ".template"

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PLACEHOLDER = re.compile(r"@(name|package|class|stem)@")


def names(name: str) -> Mapping[str, str]:
    """What the placeholders of the templates stand for; ConfigurationError for a name that cannot be used.

    >>> names("my-crm")["class"]
    'MyCrmAdapter'
    """
    if not _NAME.fullmatch(name) or len(name) > 40:
        raise ConfigurationError(
            f"{name!r} is no name for an adapter: use small letters, digits and single dashes, "
            "a letter first, 40 characters at most"
        )
    if keyword.iskeyword(name):
        raise ConfigurationError(f"{name!r} is no name for an adapter: it is a word of Python's own")
    stem = "".join(part.capitalize() for part in name.split("-"))
    package = f"lockstep_{name.replace('-', '_')}"
    return {"name": name, "package": package, "class": f"{stem}Adapter", "stem": stem}


def write(name: str, directory: Path) -> list[Path]:
    """Write the package of a new adapter into a directory that is empty or not there; returns its files."""
    meanings = names(name)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise AlreadyExistsError(f"{directory} exists and is not an empty directory; name another one")
    written = []
    for template in sorted(TEMPLATES.rglob(f"*{SUFFIX}")):
        place = template.relative_to(TEMPLATES).as_posix().removesuffix(SUFFIX)
        file = directory / place.replace("package/", f"{meanings['package']}/")
        text = _PLACEHOLDER.sub(lambda found: meanings[found[1]], template.read_text(encoding="utf-8"))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error
        written.append(file)
    return written
