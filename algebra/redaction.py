"""Secrets that must never be shown: remembered once, blotted out of every text that leaves the process.

Problem. A password reaches a process by a `${VAR}` in a URL and then passes through drivers whose error texts
nobody here controls. Masking where a text is made would need every adapter, of every author, to think of it.

Chosen way: the process that takes in a secret says so (`remember`), and the few doors by which text leaves
(errors, logs, traces) pass it through `redacted`. URLs are masked by their structure as well
(`masked_url`), so that a password is hidden that nobody has announced.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK = "***"
SHORTEST = 4
"""Characters a remembered secret has at least; to blot out shorter ones would garble what is harmless."""

_SECRET_NAME = re.compile(r"passw|secret|token|credential|api_?key|private_?key|^pwd$", re.IGNORECASE)
# The password of `scheme://user:password@host`: up to the last @ before a slash, for passwords may hold an @.
_USER_INFO = re.compile(r"(?P<before>\b[A-Za-z][\w+.-]*://[^\s/:@]*:)(?P<password>[^\s/]*)(?=@)")
# In texts a URL ends where a quote or a bracket closes it; values that hold such a character are remembered.
_PARAMETER = re.compile(r"""(?P<before>[?&;](?P<name>[\w.-]+)=)(?P<value>[^&;#\s"'`<>\\{})\]]+)""")
# Where a URL comes in whole, its password may hold anything: slashes and blanks, which drivers do not expect.
_URL_PASSWORD = re.compile(r"^[A-Za-z][\w+.-]*://[^/\s:@]*:(?P<password>.*)@", re.DOTALL)
_URL_PARAMETER = re.compile(r"[?&;](?P<name>[^=?&;#]+)=(?P<value>[^&;#]*)")
_URL_SYNTAX = re.compile(r"[\s/:@?#&;=%\[\]]")
"""Characters at which one or another driver cuts a URL into parts."""

_PLACEHOLDER = "password"
"""What messages write where a password would be; whoever has it for a password has no secret."""

_lock = threading.Lock()
_remembered: set[str] = set()
_fragments: set[str] = set()
"""Patterns of parts of remembered passwords, where drivers show them that misread a URL."""
_pattern: re.Pattern[str] | None = None


def is_secret_name(name: str) -> bool:
    """Whether a setting of that name holds a secret.

    >>> is_secret_name("sslpassword"), is_secret_name("DB_TOKEN"), is_secret_name("capture")
    (True, True, False)
    """
    return _SECRET_NAME.search(name) is not None


def url_password(url: str) -> str:
    """The password of a URL, if it has one: what is between the user's name and the last @.

    >>> url_password("postgresql://ann:a/b c@d@db/shop")
    'a/b c@d'
    """
    match = _URL_PASSWORD.match(url)
    return match["password"] if match is not None else ""


def secret_parameters(url: str) -> dict[str, str]:
    """The parameters of a URL whose names say that they are secrets, as they are written.

    >>> secret_parameters("sc://h;token=a;use_ssl=true"), secret_parameters("x://h/d?mode=1&pwd=b%20c")
    ({'token': 'a'}, {'pwd': 'b%20c'})
    """
    found = {match["name"]: match["value"] for match in _URL_PARAMETER.finditer(url)}
    return {name: value for name, value in found.items() if is_secret_name(name)}


def remember(secret: str) -> None:
    """Have a secret blotted out of every text from now on, also where it is written percent-encoded, quoted
    as Python or JSON do, or with its blanks and line breaks as single blanks."""
    with _lock:
        _remembered.update(s for s in _spellings(secret) if len(s) >= SHORTEST)
        _compile()


def _spellings(secret: str) -> set[str]:
    as_it_is = {secret, unquote(secret), unquote_plus(secret)}
    quoted = {spell(text) for text in as_it_is for spell in (_in_python, _in_json, _on_one_line)}
    return {*as_it_is, *quoted, quote(secret, safe=""), quote_plus(secret)}


def _in_python(text: str) -> str:
    return repr(text)[1:-1]


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _compile() -> None:
    global _pattern
    whole = map(re.escape, sorted(_remembered, key=len, reverse=True))
    alternatives = [*whole, *sorted(_fragments, key=len, reverse=True)]
    _pattern = re.compile("|".join(alternatives)) if alternatives else None


def _remember_password(password: str) -> None:
    """Remember a password of a URL, and what a driver shows of it that cuts the URL at one of its characters:
    its end, which an @ follows, and its beginning, quoted as a port that is no number."""
    remember(password)
    fragments = set()
    for text in _spellings(password):
        cuts = list(_URL_SYNTAX.finditer(text))
        fragments |= {
            re.escape(text[cut.end() :]) + "(?=@)" for cut in cuts if len(text) - cut.end() >= SHORTEST
        }
        fragments |= {
            f"(?<=[\"'`]){re.escape(text[: cut.start()])}(?=[\"'`])"
            for cut in cuts
            if cut.start() >= SHORTEST
        }
    with _lock:
        _fragments.update(fragments)
        _compile()


def remember_url(url: str) -> None:
    """Remember the secrets that a URL holds: its password, and parameters whose names say what they are."""
    for match in _USER_INFO.finditer(url):
        remember(match["password"])
    # Which @ ends the password is for the driver to say; what comes after it may hold some, too.
    longest = url_password(url)
    for end in [at for at, character in enumerate(longest) if character == "@"] + [len(longest)]:
        _remember_password(longest[:end])
    for value in secret_parameters(url).values():
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
