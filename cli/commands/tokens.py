"""`lockstep token`: make, list and revoke the tokens that a server accepts."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from algebra.errors import ConfigurationError
from cli.options import AsJson
from cli.output import console, emit_json, table

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke the tokens that a server accepts.")

TokensFile = Annotated[
    Path,
    typer.Option(
        "--file",
        envvar="LOCKSTEP_TOKENS",
        help="The file of token hashes, as `tokens:` of a server names it.",
    ),
]
_DEFAULT = Path("tokens.json")
_LIFETIME = re.compile(r"^(\d{1,5})([smhd])$")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@app.command("create")
def create(
    name: Annotated[
        str, typer.Option("--name", help="Who will use it; audit records and allow-lists say this.")
    ],
    scope: Annotated[
        list[str],
        typer.Option("--scope", help="read, read:VIEW, manage, attach or attach:SOURCE; repeatable."),
    ],
    file: TokensFile = _DEFAULT,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="30d", help="How long it is valid: 90m, 12h, 30d; default: ever."),
    ] = None,
) -> None:
    """Make a token and print it, this once; the file gets only its hash."""
    from protos.security.tokens import TokenFile

    token = TokenFile(file).create(name, scope, _lifetime(expires))
    print(token)
    print(f"{file}: holds the hash of {name!r}; the token is shown only now", file=sys.stderr)


@app.command("list")
def list_tokens(file: TokensFile = _DEFAULT, as_json: AsJson = False) -> None:
    """List the tokens: names, scopes and times, never the tokens themselves."""
    from protos.security.tokens import TokenFile

    now = datetime.now(UTC)
    entries = [
        {
            "name": entry.name,
            "id": entry.id,
            "scopes": list(entry.scopes),
            "created_at": entry.created_at,
            "expires_at": entry.expires_at,
            "expired": entry.expired(now),
        }
        for entry in TokenFile(file).entries()
    ]
    if as_json:
        emit_json(entries)
        return
    rows = [
        (
            str(e["name"]),
            str(e["id"]),
            ", ".join(e["scopes"]),  # type: ignore[arg-type]
            str(e["created_at"]),
            f"{e['expires_at'] or 'never'}{' (expired)' if e['expired'] else ''}",
        )
        for e in entries
    ]
    console().print(table(("name", "id", "scopes", "created", "expires"), rows))


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name or id.")],
    file: TokensFile = _DEFAULT,
) -> None:
    """Revoke a token: servers that use the file refuse it at once, and end its open streams."""
    from protos.security.tokens import TokenFile

    entry = TokenFile(file).revoke(name)
    print(f"token {entry.name} ({entry.id}) is revoked")


def _lifetime(text: str | None) -> timedelta | None:
    if text is None:
        return None
    match = _LIFETIME.match(text)
    if match is None or int(match[1]) == 0:
        raise ConfigurationError("--expires: expected a number and s, m, h or d, for example 30d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
