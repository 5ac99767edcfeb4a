"""The files of a certificate, its key and an authority, followed while a process runs.

Certificates are replaced every few months or days; processes run longer. So whoever begins a connection asks
for the files as they are now. They are read each time, and compared as bytes: a time stamp may stay the same
when a file is replaced twice within a tick of the clock, and a handshake costs far more than three reads.

A certificate and its key are two files, and nobody replaces both at once. What does not belong together yet,
or is half written, is left alone: the last whole set stays in use, and one line in the log says so.
"""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path

from algebra.errors import ConfigurationError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TlsMaterial:
    """What the files held, checked to be whole; equal to another if all bytes are.

    `context` serves with it, and asks for a certificate of the authority if there is one.
    """

    certificate: bytes | None
    key: bytes | None = field(repr=False)
    authority: bytes | None
    context: ssl.SSLContext = field(repr=False, compare=False)


_Contents = tuple[bytes | None, bytes | None, bytes | None]


class TlsFiles:
    """Files that may be replaced at any time; any of them may be absent, but a certificate needs its key."""

    def __init__(self, certificate: Path | None, key: Path | None, authority: Path | None) -> None:
        """Raises ConfigurationError if the files are not usable now: a start must not hide that."""
        if (certificate is None) != (key is None):
            raise ConfigurationError("a client certificate needs both `certificate` and `key`")
        self._certificate, self._key, self._authority = certificate, key, authority
        self._lock = threading.Lock()
        self._problem = ""
        contents = self._read()
        self._seen: _Contents | None = contents
        self._material = self._checked(contents)

    def current(self) -> TlsMaterial:
        """The newest whole contents of the files; the same object until they change."""
        with self._lock:
            try:
                contents = self._read()
                if contents != self._seen:
                    # Seen now, whether whole or not: what is broken is not checked again until it changes.
                    self._seen = contents
                    self._take(self._checked(contents))
            except ConfigurationError as error:
                if not self._problem:
                    log.error("%s; what was read before stays in use until they are whole", error)
                self._problem = error.message
                if isinstance(error, _Unreadable):
                    self._seen = None
            return self._material

    @property
    def problem(self) -> str:
        """Why the files as they were last read are not in use; empty if they are."""
        return self._problem

    def _take(self, material: TlsMaterial) -> None:
        if material != self._material:
            self._material = material
            log.info("%s replaced: new connections use what they hold now", self._title)
        elif self._problem:
            log.info("%s as before: what they hold was in use all the time", self._title)
        self._problem = ""

    @property
    def _title(self) -> str:
        named = [str(path) for path in (self._certificate, self._key, self._authority) if path is not None]
        return f"{', '.join(named)} {'is' if len(named) == 1 else 'are'}"

    def _read(self) -> _Contents:
        return _bytes(self._certificate), _bytes(self._key), _bytes(self._authority)

    def _checked(self, contents: _Contents) -> TlsMaterial:
        """The contents, if OpenSSL takes them; it reads the files itself, so they must not have changed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self._certificate is not None:
            try:
                # Never ask for a password on a terminal.
                context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
            except (ssl.SSLError, OSError, ValueError):
                raise ConfigurationError(
                    f"{self._certificate} and {self._key} are not a PEM certificate and its key, unencrypted"
                ) from None
        if self._authority is not None:
            try:
                context.load_verify_locations(self._authority)
            except (ssl.SSLError, OSError, ValueError):
                raise ConfigurationError(f"{self._authority} holds no PEM certificates") from None
            context.verify_mode = ssl.CERT_REQUIRED
        if self._read() != contents:
            raise _Unreadable(f"{self._title} being written")
        return TlsMaterial(*contents, context)


class _Unreadable(ConfigurationError):
    """The contents are not known, and so must be checked when the files are read next."""


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise _Unreadable(f"{path} cannot be read ({error.strerror or 'unreadable'})") from None
