"""Secrets that must never be shown: remembered once, blotted out of every text that leaves the process.

Problem. A password reaches a process by a `${VAR}` in a URL and then passes through drivers whose error texts
nobody here controls. Masking where a text is made would need every adapter, of every author, to think of it.

Chosen way: the process that takes in a secret says so (`remember`), and the few doors by which text leaves
(errors, logs, traces) pass it through `redacted`. URLs are masked by their structure as well
(`masked_url`), so that a password is hidden that nobody has announced.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote

MASK = "***"
SHORTEST = 4
"""Characters a remembered secret has at least; to blot out shorter ones would garble what is harmless."""

_SECRET_NAME = re.compile(r"passw|secret|token|credential|api_?key|private_?key|^pwd$", re.IGNORECASE)
# The password of `scheme://user:password@host`: up to the last @ before a slash, for passwords may hold an @.
_USER_INFO = re.compile(r"(?P<before>\b[A-Za-z][\w+.-]*://[^\s/:@]*:)(?P<password>[^\s/]*)(?=@)")
_PARAMETER = re.compile(r"(?P<before>[?&;](?P<name>[\w.-]+)=)(?P<value>[^&;#\s]+)")

_PLACEHOLDER = "password"
"""What messages write where a password would be; whoever has it for a password has no secret."""

_lock = threading.Lock()
_remembered: set[str] = set()
_pattern: re.Pattern[str] | None = None


def is_secret_name(name: str) -> bool:
    """Whether a setting of that name holds a secret.

    >>> is_secret_name("sslpassword"), is_secret_name("DB_TOKEN"), is_secret_name("capture")
    (True, True, False)
    """
    return _SECRET_NAME.search(name) is not None


def remember(secret: str) -> None:
    """Have a secret blotted out of every text from now on, also where it is written percent-encoded."""
    global _pattern
    spellings = {secret, unquote(secret), quote(secret, safe=""), quote_plus(secret)}
    with _lock:
        _remembered.update(s for s in spellings if len(s) >= SHORTEST)
        if _remembered:
            longest_first = sorted(_remembered, key=len, reverse=True)
            _pattern = re.compile("|".join(map(re.escape, longest_first)))


def remember_url(url: str) -> None:
    """Remember the secrets that a URL holds: its password, and parameters whose names say what they are."""
    for match in _USER_INFO.finditer(url):
        remember(match["password"])
    for name, value in parse_qsl(url.partition("?")[2]):
        if is_secret_name(name):
            remember(value)


def remember_options(options: Mapping[str, Any]) -> None:
    """Remember the values of settings whose names say that they are secrets, at any depth."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            remember_options(value)
        elif isinstance(value, str) and is_secret_name(str(name)):
            remember(value)


def masked_url(text: str) -> str:
    """The text with the passwords of all URLs in it hidden.

    >>> masked_url("postgresql://ann:p@ss@db/shop?sslmode=require&sslpassword=x")
    'postgresql://ann:***@db/shop?sslmode=require&sslpassword=***'
    """
    hidden = _USER_INFO.sub(
        lambda m: m["before"] + (m["password"] if m["password"] == _PLACEHOLDER else MASK), text
    )
    return _PARAMETER.sub(lambda m: m["before"] + (MASK if is_secret_name(m["name"]) else m["value"]), hidden)


def redacted(text: str) -> str:
    """The text without any remembered secret and without passwords in URLs."""
    hidden = _pattern.sub(MASK, text) if _pattern is not None else text
    return masked_url(hidden) if "://" in hidden or "=" in hidden else hidden
