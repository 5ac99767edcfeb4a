"""Secrets in a configuration: they come by reference, and are never shown afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from algebra import redaction
from algebra.errors import ConfigurationError
from cli.config_model import Document

_REFERENCE = re.compile(r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$")
_REFERS = re.compile(r"(?<!\$)\$\{")
_SPARK_SECRET = re.compile(r"access[._-]?key|(^|[._-])key([._-]|$)", re.IGNORECASE)
# Not the secret itself, but where it is, who provides it, or how long it is.
_SPARK_ABOUT = re.compile(r"(file|path|providers?|name|class|enabled|length|bits|regex)$", re.IGNORECASE)


def check_references(values: Mapping[str, Any], file: str) -> None:
    """Raise if the text itself, before any reference is filled in, holds a token or a password."""
    sources = values.get("sources")
    for name, source in sources.items() if isinstance(sources, dict) else ():
        if not isinstance(source, dict):
            continue
        connect = source.get("connect")
        if isinstance(connect, dict):
            _by_reference(connect.get("token"), f"{file}: sources.{name}.connect.token")
        _check_url(source.get("url"), f"{file}: sources.{name}.url")
        _check_options(source.get("options"), f"{file}: sources.{name}.options")
    mediator = values.get("mediator")
    if isinstance(mediator, dict):
        _check_url(mediator.get("spark_master"), f"{file}: mediator.spark_master")
        settings = mediator.get("spark_conf")
        for key, value in settings.items() if isinstance(settings, dict) else ():
            if _is_spark_secret(str(key)) and not isinstance(value, bool):
                _by_reference(value, f"{file}: mediator.spark_conf.{key}")


def referring(values: Mapping[str, Any], *section: str) -> frozenset[str]:
    """The keys of a section whose values refer to something outside of the file."""
    found: Any = values
    for name in section:
        found = found.get(name) if isinstance(found, dict) else None
    settings = found.items() if isinstance(found, dict) else ()
    return frozenset(key for key, value in settings if isinstance(value, str) and _REFERS.search(value))


def _check_url(url: Any, where: str) -> None:
    if not isinstance(url, str):
        return
    password = redaction.url_password(url)
    if password and not _REFERS.search(password):
        raise ConfigurationError(f"{where}: holds a password; write ${{VARIABLE}}, and set it outside")
    for name, value in redaction.secret_parameters(url).items():
        if value and not _REFERS.search(value):
            raise ConfigurationError(
                f"{where}: holds a secret, {name}; write ${{VARIABLE}}, and set it outside"
            )


def _check_options(options: Any, where: str) -> None:
    for key, value in options.items() if isinstance(options, dict) else ():
        if isinstance(value, dict):
            _check_options(value, f"{where}.{key}")
        elif redaction.is_secret_name(str(key)) and not isinstance(value, bool | list):
            _by_reference(value, f"{where}.{key}")


def _is_spark_secret(name: str) -> bool:
    secret = redaction.is_secret_name(name) or _SPARK_SECRET.search(name) is not None
    return secret and _SPARK_ABOUT.search(name) is None


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
    redaction.remember_url(document.mediator.spark_master)
    for name, value in document.mediator.spark_conf.items():
        if _is_spark_secret(name):
            redaction.remember(value)
