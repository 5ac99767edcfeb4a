"""`lockstep token`, and how the command line says who it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from algebra.errors import ConfigurationError
from cli import connecting
from cli.tests.conftest import Run
from protos.security.tokens import TokenFile, TokenStore


def test_a_token_is_shown_once_and_listed_without_itself(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    scopes = ["--scope", "read:v", "--scope", "manage"]
    made = run("token", "create", "--name", "ann", *scopes, "--file", file)
    token = made.stdout.strip()
    assert TokenStore(file).authenticate(token).scopes == {"read:v", "manage"}
    secret = token.split("_", 2)[2]
    listed = run("token", "list", "--file", str(file), "--json")
    assert secret not in listed.stdout
    (entry,) = json.loads(listed.stdout)
    assert (entry["name"], entry["scopes"], entry["expires_at"]) == ("ann", ["read:v", "manage"], None)
    assert "ann" in run("token", "list", "--file", str(file)).stdout
    assert "is revoked" in run("token", "revoke", entry["id"], "--file", str(file)).stdout
    assert TokenFile(file).entries() == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--name", "a", "--scope", "everything"], "'everything' is no scope"),
        (["--name", "a", "--scope", "read", "--expires", "soon"], "--expires: expected a number"),
        (["--name", "a", "--scope", "read", "--expires", "0d"], "--expires: expected a number"),
        (["--name", "", "--scope", "read"], "a token needs a name"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(
    run: Run, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    file = tmp_path / "tokens.json"
    done = run("token", "create", *arguments, "--file", str(file))
    assert done.exit_code == 1
    assert problem in done.stderr
    assert not file.exists()


def test_expiry_is_kept(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    run("token", "create", "--name", "a", "--scope", "read", "--expires", "12h", "--file", file)
    (entry,) = TokenFile(file).entries()
    assert entry.expires_at is not None


def test_options_and_environment_make_a_connection() -> None:
    ca, pair = Path("ca.pem"), (Path("c.pem"), Path("c.key"))
    plain = connecting.made(None, None, None, "", False, {"LOCKSTEP_TOKEN": " lst_a_b\n"})
    assert (plain.tls, plain.token, plain.insecure) == (None, "lst_a_b", False)
    tls = connecting.made(ca, *pair, "db", False, {}).tls
    assert tls is not None
    assert (tls.ca, tls.certificate, tls.key, tls.server_name) == (ca, *pair, "db")
    with pytest.raises(ConfigurationError, match="belong together"):
        connecting.made(ca, pair[0], None, "", False, {})
    with pytest.raises(ConfigurationError, match="LOCKSTEP_TOKEN") as refused:
        connecting.made(None, None, None, "", False, {"LOCKSTEP_TOKEN": "two words"})
    assert "two words" not in str(refused.value)
