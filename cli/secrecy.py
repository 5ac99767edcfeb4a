"""Secrets in a configuration: they come by reference, and are never shown afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from algebra import redaction
from algebra.errors import ConfigurationError
from cli.config_model import Document

_REFERENCE = re.compile(r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$")
_URL_PASSWORD = re.compile(r"^[A-Za-z][\w+.-]*://[^/\s:@]*:(?P<password>.*)@", re.DOTALL)


def check_references(values: Mapping[str, Any], file: str) -> None:
    """Raise if the text itself, before any reference is filled in, holds a token or a password."""
    sources = values.get("sources")
    for name, source in sources.items() if isinstance(sources, dict) else ():
        if not isinstance(source, dict):
            continue
        connect = source.get("connect")
        if isinstance(connect, dict):
            _by_reference(connect.get("token"), f"{file}: sources.{name}.connect.token")
        match = _URL_PASSWORD.match(source["url"]) if isinstance(source.get("url"), str) else None
        if match is not None and match["password"] and "${" not in match["password"]:
            raise ConfigurationError(
                f"{file}: sources.{name}.url: holds a password; write ${{VARIABLE}}, and set it outside"
            )
        options = source.get("options")
        for key, value in options.items() if isinstance(options, dict) else ():
            if redaction.is_secret_name(str(key)) and isinstance(value, str):
                _by_reference(value, f"{file}: sources.{name}.options.{key}")


def _by_reference(value: Any, where: str) -> None:
    if value is not None and value != "" and not (isinstance(value, str) and _REFERENCE.match(value)):
        raise ConfigurationError(
            f"{where}: is a secret and does not belong in a file; write ${{VARIABLE}}, and set it outside"
        )


def remember(document: Document) -> None:
    """Have the secrets of a filled-in configuration blotted out of whatever this process says."""
    for source in document.sources.values():
        if source.url is not None:
            redaction.remember_url(source.url)
        redaction.remember_options(source.options)
        if source.connect.token:
            redaction.remember(source.connect.token)
