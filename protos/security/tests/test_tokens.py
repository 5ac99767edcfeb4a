"""Tokens: shown once, kept as hashes, ended by their file."""

from __future__ import annotations

import datetime
import json
import stat
from pathlib import Path

import pytest

from algebra.errors import AlreadyExistsError, ConfigurationError, NotFoundError, UnauthenticatedError
from protos.security import tokens
from protos.security.tokens import TokenEntry, TokenFile, TokenStore


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json")


def test_the_file_holds_no_token(file: TokenFile) -> None:
    token = file.create("ann", ["read"])
    text = file.path.read_text()
    assert token not in text
    _, _, secret = token.split("_", 2)
    assert len(secret) > 20
    assert secret not in text
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert TokenStore(file.path).authenticate(token).name == "ann"


def test_equal_secrets_have_different_hashes() -> None:
    assert tokens._hash("secret", b"a" * 16) != tokens._hash("secret", b"b" * 16)


@pytest.mark.parametrize("change", ["", "x", "lst", "lst__", "lst_000000000000_x", "é" * 50])
def test_what_is_no_token_of_the_file_lets_nobody_in(file: TokenFile, change: str) -> None:
    token = file.create("ann", ["read"])
    store = TokenStore(file.path)
    with pytest.raises(UnauthenticatedError):
        store.authenticate(change)
    for wrong in (token[:-1], token + "A", token[:-1] + ("A" if token[-1] != "A" else "B")):
        with pytest.raises(UnauthenticatedError):
            store.authenticate(wrong)
    assert store.authenticate(token).scopes == {"read"}


def test_a_revoked_token_is_refused_by_a_store_that_knew_it(file: TokenFile) -> None:
    stolen, other = file.create("stolen", ["manage"]), file.create("other", ["read"])
    store = TokenStore(file.path)
    principal = store.authenticate(stolen)
    assert store.still_valid(principal)
    file.revoke("stolen")
    assert not store.still_valid(principal)
    with pytest.raises(UnauthenticatedError):
        store.authenticate(stolen)
    assert store.authenticate(other).name == "other"


def test_a_token_that_is_revoked_while_a_store_begins_is_refused(
    file: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    stolen = file.create("stolen", ["manage"])
    read = TokenFile.entries

    def and_then_revoked(self: TokenFile) -> list[TokenEntry]:
        found = read(self)
        monkeypatch.setattr(TokenFile, "entries", read)
        self.revoke("stolen")
        return found

    monkeypatch.setattr(TokenFile, "entries", and_then_revoked)
    store = TokenStore(file.path)
    with pytest.raises(UnauthenticatedError):
        store.authenticate(stolen)


def test_a_token_of_the_same_name_is_not_the_same_token(file: TokenFile) -> None:
    store_token = file.create("ann", ["read"])
    store = TokenStore(file.path)
    principal = store.authenticate(store_token)
    file.revoke("ann")
    file.create("ann", ["read"])
    assert not store.still_valid(principal)


def test_an_expired_token_is_refused(file: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    token = file.create("ann", ["read"], datetime.timedelta(hours=1))
    store = TokenStore(file.path)
    principal = store.authenticate(token)
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)
    monkeypatch.setattr(tokens, "_now", lambda: later)
    assert not store.still_valid(principal)
    with pytest.raises(UnauthenticatedError, match="has expired"):
        store.authenticate(token)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"format": 1, "tokens": [{}]}', '{"format": 2, "tokens": []}', "[" * 100_000],
)
def test_a_damaged_file_lets_nobody_in_until_it_is_whole(file: TokenFile, text: str) -> None:
    token = file.create("ann", ["read"])
    whole = file.path.read_text()
    store = TokenStore(file.path)
    store.authenticate(token)
    file.path.write_text(text)
    with pytest.raises(UnauthenticatedError):
        store.authenticate(token)
    with pytest.raises(ConfigurationError):
        TokenStore(file.path)
    file.path.write_text(whole)
    assert store.authenticate(token).name == "ann"


def test_names_and_scopes_are_checked(file: TokenFile) -> None:
    file.create("ann", ["read:v", "attach:s"])
    with pytest.raises(AlreadyExistsError):
        file.create("ann", ["read"])
    with pytest.raises(NotFoundError):
        file.revoke("bob")
    for scopes in ([], ["write"], ["read:"], ["manage:v"], ["read v"]):
        with pytest.raises(ConfigurationError):
            file.create("bob", scopes)
    with pytest.raises(ConfigurationError):
        file.create("a\nb", ["read"])
    assert [entry.name for entry in file.entries()] == ["ann"]
    assert json.loads(file.path.read_text())["tokens"][0]["scopes"] == ["read:v", "attach:s"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"salt": "A"}, "its salt or hash is damaged"),
        ({"salt": ""}, "its salt or hash is damaged"),
        ({"salt": "not base64, but long enough"}, "its salt or hash is damaged"),
        ({"hash": "AAAA"}, "its salt or hash is damaged"),
        ({"scopes": "read"}, "`scopes` is not a list of texts"),
        ({"scopes": [1]}, "`scopes` is not a list of texts"),
        ({"scopes": []}, "give at least one scope"),
        ({"scopes": ["root:all"]}, "'root:all' is no scope"),
        ({"scopes": ["read", "manage:x"]}, "'manage:x' is no scope"),
    ],
)
def test_what_a_file_says_of_a_token_is_checked_when_it_is_read(
    file: TokenFile, change: dict[str, object], problem: str
) -> None:
    token = file.create("ann", ["read"])
    store = TokenStore(file.path)
    document = json.loads(file.path.read_text())
    document["tokens"][0].update(change)
    file.path.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError) as refused:
        TokenStore(file.path)
    assert str(refused.value).startswith(f"{file.path}: token 'ann': {problem}")
    assert len(str(refused.value).splitlines()) == 1
    with pytest.raises(UnauthenticatedError):
        store.authenticate(token)
