"""How a server is protected and how a client reaches one: plain values, made from configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MEBIBYTE = 1 << 20

REQUEST_BYTES = 4 * MEBIBYTE
"""Largest request that a mediator takes from a client: SQL text and names."""

WRAPPER_REQUEST_BYTES = 256 * MEBIBYTE
"""Largest message that a wrapper takes from a mediator: the keys of a maintenance query."""

RESPONSE_BYTES = 1024 * MEBIBYTE
"""Largest message that a client takes from a server: the changes of one snapshot, or of one version."""


@dataclass(frozen=True)
class ServerTls:
    """Files of a server's certificate chain and key. With `client_ca`, clients must show a certificate of
    it."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True)
class CallLimits:
    """What one caller may have at once, and how often one address may fail to show who it is.

    A caller is known by its token or certificate, else by its address. `streams` are the calls that last:
    Exchange, WatchView, reflection, and health watches, which are counted by address.
    """

    calls: int = 64
    streams: int = 32
    failed_logins_per_minute: float = 60.0


@dataclass(frozen=True)
class ServerSecurity:
    """How a server is protected.

    `tokens` is the file of token hashes. `certificates` maps the common name of a client certificate to what
    its holder may do. With neither, whoever can connect may do everything. `insecure` allows that, and plain
    text, on an address that other machines reach. `audit` is the file of audit records; without it they go to
    the log.
    """

    tls: ServerTls | None = None
    tokens: Path | None = None
    certificates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    insecure: bool = False
    audit: Path | None = None
    limits: CallLimits = CallLimits()
    max_request_bytes: int = REQUEST_BYTES

    @property
    def knows_callers(self) -> bool:
        """Whether a caller must be known by a token or a certificate's name."""
        return self.tokens is not None or bool(self.certificates)


@dataclass(frozen=True)
class ClientTls:
    """Files by which a client checks the server and shows its own certificate.

    `ca` None means the roots that gRPC brings. `server_name` is the name expected in the server's
    certificate, if it is not the address's.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""


@dataclass(frozen=True)
class Connection:
    """How a client reaches a server. `insecure` allows plain text to other machines, with the token if
    there is one."""

    tls: ClientTls | None = None
    token: str = field(default="", repr=False)
    insecure: bool = False
    max_response_bytes: int = RESPONSE_BYTES


PLAIN = Connection()
"""Plain text and no token: for the loopback interface."""
