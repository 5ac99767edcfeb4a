"""Bearer tokens: made once, shown once, kept as salted hashes in a file.

A token reads `lst_<id>_<secret>`: the id finds the entry, the secret (256 random bits) is hashed with scrypt
and compared in constant time. A server reads the file again whenever it has changed; so whoever removes an
entry ends that token everywhere, without a restart. A file that cannot be read lets nobody in.

What was checked once is remembered under a keyed digest that lives only in this process, because hashing
slowly on each call would make the server the victim of its own care.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from algebra.errors import AlreadyExistsError, ConfigurationError, NotFoundError, UnauthenticatedError
from algebra.private_files import make_private_folder, private
from protos.security.principals import Principal, checked_scopes

log = logging.getLogger(__name__)

PREFIX = "lst"
FORMAT = 1
LARGEST_FILE = 1 << 20
_SCRYPT = {"n": 1 << 13, "r": 8, "p": 1, "dklen": 32}
"""About 25 milliseconds and 8 MiB for one hash."""
_SHORTEST_SALT = 8
"""Bytes."""


@dataclass(frozen=True)
class TokenEntry:
    """A token as the file keeps it: everything but the token. Times are UTC, in ISO form."""

    id: str
    name: str
    scopes: tuple[str, ...]
    salt: str
    hash: str
    created_at: str
    expires_at: str | None = None

    def expired(self, now: datetime.datetime) -> bool:
        return self.expires_at is not None and now >= datetime.datetime.fromisoformat(self.expires_at)

    def principal(self) -> Principal:
        return Principal(self.name, "token", frozenset(self.scopes), self.id)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _hash(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, **_SCRYPT)


class TokenFile:
    """The file of token hashes, as its owner edits it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, name: str, scopes: Sequence[str], lifetime: datetime.timedelta | None = None) -> str:
        """A new token. It is returned this once; the file gets its hash."""
        if not name or len(name) > 200 or not name.isprintable():
            raise ConfigurationError("a token needs a name of printable characters: who will use it?")
        now, salt = _now(), secrets.token_bytes(16)
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        entry = TokenEntry(
            id=token_id,
            name=name,
            scopes=checked_scopes(scopes),
            salt=base64.b64encode(salt).decode(),
            hash=base64.b64encode(_hash(secret, salt)).decode(),
            created_at=now.isoformat(timespec="seconds"),
            expires_at=(now + lifetime).isoformat(timespec="seconds") if lifetime else None,
        )
        with self._locked():
            entries = self.entries() if self.path.exists() else []
            if any(e.name == name for e in entries):
                raise AlreadyExistsError(f"{self.path}: there is a token {name!r} already; revoke it first")
            self._write([*entries, entry])
        return f"{PREFIX}_{token_id}_{secret}"

    def revoke(self, name: str) -> TokenEntry:
        """Remove a token, by its name or id; servers that read the file refuse it soon after."""
        with self._locked():
            entries = self.entries()
            found = next((e for e in entries if name in (e.name, e.id)), None)
            if found is None:
                raise NotFoundError(f"{self.path}: there is no token {name!r}")
            self._write([e for e in entries if e is not found])
        return found

    def entries(self) -> list[TokenEntry]:
        """All tokens, oldest first, expired ones too."""
        try:
            with self.path.open("rb") as file:
                text = file.read(LARGEST_FILE + 1)
        except OSError as error:
            raise ConfigurationError(f"{self.path}: cannot be read ({error.strerror})") from None
        try:
            document: Any = json.loads(text) if len(text) <= LARGEST_FILE else None
            if document["format"] != FORMAT:
                raise ConfigurationError(f"{self.path}: is of format {document['format']}, not {FORMAT}")
            return [_entry(item, self.path) for item in document["tokens"]]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ConfigurationError(f"{self.path}: is not a token file") from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            make_private_folder(self.path.parent)
            lock = private(f"{self.path}.lock", os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise ConfigurationError(f"{self.path}: cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _write(self, entries: Sequence[TokenEntry]) -> None:
        """Replace the file as a whole, readable by its owner alone: no server may see half of it."""
        text = json.dumps({"format": FORMAT, "tokens": [asdict(e) for e in entries]}, indent=2) + "\n"
        scratch = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            with open(scratch, "x", encoding="utf-8", opener=private) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self.path)
        except OSError as error:
            raise ConfigurationError(f"{self.path}: cannot be written ({error.strerror})") from None


def _entry(item: dict[str, Any], path: Path) -> TokenEntry:
    entry = TokenEntry(**item)
    if not all(isinstance(t, str) for t in (entry.id, entry.name, entry.salt, entry.hash, entry.created_at)):
        raise ValueError("a field is not text")
    if entry.expires_at is not None and datetime.datetime.fromisoformat(entry.expires_at).tzinfo is None:
        raise ValueError("a time without zone")
    where = f"{path}: token {entry.name!r}"
    if len(_bytes(entry.salt)) < _SHORTEST_SALT or len(_bytes(entry.hash)) != _SCRYPT["dklen"]:
        raise ConfigurationError(f"{where}: its salt or hash is damaged; take it out, and create another")
    scopes: Any = entry.scopes
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        raise ConfigurationError(f"{where}: `scopes` is not a list of texts")
    try:
        return replace(entry, scopes=checked_scopes(scopes))
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _bytes(text: str) -> bytes:
    """What a text in base64 stands for; nothing if it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


class TokenStore:
    """The tokens that a server accepts; follows its file."""

    def __init__(self, path: Path) -> None:
        self._file = TokenFile(path)
        self._lock = threading.Lock()
        self._hashing = threading.BoundedSemaphore(2)
        """Guessing must not take all cores."""
        self._key = secrets.token_bytes(32)
        self._checked: dict[bytes, str] = {}
        self._stamp = self._stamp_now()  # before the file is read, which may change meanwhile
        self._entries = {entry.id: entry for entry in self._file.entries()}  # wrong at the start is an error

    def recognised(self, token: str) -> Principal | None:
        """Whose token this is if it was verified before and is still valid; costs no slow hash."""
        entries = self._current()
        with self._lock:
            known = self._checked.get(self._digest(token))
        entry = entries.get(known) if known is not None else None
        return None if entry is None or entry.expired(_now()) else entry.principal()

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(), "sha256")

    def authenticate(self, token: str) -> Principal:
        """Whose token this is; UnauthenticatedError unless it is valid now."""
        entries = self._current()
        digest = self._digest(token)
        with self._lock:
            known = self._checked.get(digest)
        entry = entries.get(known) if known is not None else self._checked_entry(token, entries)
        if entry is None:
            raise UnauthenticatedError("the token is not valid here; it may have been revoked")
        if entry.expired(_now()):
            raise UnauthenticatedError(f"the token {entry.name!r} has expired")
        with self._lock:
            if self._entries is entries:
                self._checked[digest] = entry.id
        return entry.principal()

    def still_valid(self, principal: Principal) -> bool:
        """Whether the token by which a caller came in is neither revoked nor expired nor narrowed."""
        entry = self._current().get(principal.token_id)
        return entry is not None and not entry.expired(_now()) and entry.principal() == principal

    def _checked_entry(self, token: str, entries: dict[str, TokenEntry]) -> TokenEntry | None:
        prefix, _, rest = token.partition("_")
        token_id, _, secret = rest.partition("_")
        entry = entries.get(token_id)
        if prefix != PREFIX or entry is None or len(secret) > 200:
            return None
        with self._hashing:
            found = _hash(secret, base64.b64decode(entry.salt))
        return entry if hmac.compare_digest(found, base64.b64decode(entry.hash)) else None

    def _stamp_now(self) -> tuple[int, ...] | None:
        try:
            found = self._file.path.stat()
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _current(self) -> dict[str, TokenEntry]:
        stamp = self._stamp_now()
        with self._lock:
            if stamp is not None and stamp == self._stamp:
                return self._entries
            self._checked.clear()
            try:
                self._entries = {entry.id: entry for entry in self._file.entries()}
                self._stamp = stamp
            except ConfigurationError as error:
                if self._entries or self._stamp is not None:
                    log.error("nobody is let in: %s", error)
                self._entries, self._stamp = {}, None
            return self._entries
