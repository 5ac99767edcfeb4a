"""How the command line reaches a mediator: global options, then environment variables.

The token has no option: a command line is seen by every user of the machine, and kept in histories.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from algebra.errors import ConfigurationError
from protos.security.settings import ClientTls, Connection

_chosen: Connection | None = None


def configure(ca: Path | None, certificate: Path | None, key: Path | None, name: str, insecure: bool) -> None:
    """Take what the global options say."""
    global _chosen
    _chosen = made(ca, certificate, key, name, insecure, os.environ)


def chosen() -> Connection:
    """How this invocation connects."""
    return _chosen if _chosen is not None else made(None, None, None, "", False, os.environ)


def made(
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    name: str,
    insecure: bool,
    environment: Mapping[str, str],
) -> Connection:
    """The connection that options and environment describe; with any TLS option it is encrypted."""
    if (certificate is None) != (key is None):
        raise ConfigurationError("--certificate and --key belong together; give both")
    token = environment.get("LOCKSTEP_TOKEN", "").strip()
    if any(ord(character) < 33 or ord(character) > 126 for character in token):
        raise ConfigurationError("LOCKSTEP_TOKEN holds characters that no token has")
    tls = ClientTls(ca, certificate, key, name) if ca or certificate or name else None
    return Connection(tls, token, insecure)
