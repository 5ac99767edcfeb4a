"""TLS from files: a server's credentials and a client's channel. What is wrong is one line; keys are never
shown."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc

from algebra import redaction
from algebra.errors import ConfigurationError
from protos.security.loopback import is_loopback
from protos.security.settings import ClientTls, Connection, ServerSecurity, ServerTls
from protos.security.tls_files import TlsFiles, TlsMaterial

AUTHORIZATION = "authorization"
PROTOCOL = "lockstep-protocol-version"
"""Metadata keys: who is calling, and the version of the protocol it speaks."""

LARGEST_SEND = -1
"""A sender trusts its own messages: their receiver has the limit, and the error then names it."""


def check_exposed(listen: str, security: ServerSecurity) -> None:
    """Raise unless a server may listen there: others' machines are met with TLS, and must say who they
    are."""
    if is_loopback(listen) or security.insecure:
        return
    if security.tls is None:
        raise ConfigurationError(
            f"other machines reach {listen}: give `tls`, or allow plain text with `insecure: true`"
        )
    if not security.knows_callers and security.tls.client_ca is None:
        raise ConfigurationError(
            f"other machines reach {listen}: say who may call with `tokens`, `certificates` or "
            "`tls.client_ca`, or let everybody in with `insecure: true`"
        )


def check_reached(address: str, connection: Connection) -> None:
    """Raise unless a client may connect there as it would: plain text does not leave this machine."""
    if connection.tls is None and not connection.insecure and not is_loopback(address):
        what = (
            "a token is not sent in plain text"
            if connection.token
            else "plain text is for this machine alone"
        )
        raise ConfigurationError(
            f"{address} is another machine, and {what}: name the authority of its certificate (`ca`, --ca), "
            "or allow plain text (`insecure`, --insecure)"
        )


def served_files(tls: ServerTls | None) -> TlsFiles | None:
    """The files that a server serves with, to be followed; None in plain text."""
    return None if tls is None else TlsFiles(tls.certificate, tls.key, tls.client_ca)


def bind(server: grpc.Server, listen: str, files: TlsFiles | None) -> int:
    """The port that the server listens on; 0 if the address cannot be had."""
    with contextlib.suppress(RuntimeError):
        if files is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, _server_credentials(files))
    return 0


def _server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that look at the files whenever somebody connects."""
    served = files.current()

    def replaced() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        before, served = served, files.current()
        return None if served is before else _configuration(served)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served),
        replaced,  # type: ignore[arg-type]  # None, for "as before", is allowed; its types do not know
        require_client_authentication=served.authority is not None,
    )


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    assert material.key is not None
    assert material.certificate is not None
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], material.authority
    )


def channel_files(connection: Connection) -> TlsFiles | None:
    """The files by which a client connects, to be followed; None in plain text."""
    return None if connection.tls is None else _files_of(connection.tls)


def _files_of(tls: ClientTls) -> TlsFiles:
    return TlsFiles(tls.certificate, tls.key, tls.ca)


def open_channel(
    address: str,
    connection: Connection,
    version: int,
    options: Sequence[tuple[str, Any]] = (),
    material: TlsMaterial | None = None,
) -> grpc.Channel:
    """A channel that is encrypted unless the address is on this machine, and shows the token with each call.

    It keeps the certificates that it began with: `material`, or what the connection's files hold now.
    """
    check_reached(address, connection)
    chosen: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", connection.max_response_bytes),
        ("grpc.max_send_message_length", LARGEST_SEND),
        *options,
    ]
    if is_loopback(address):
        # gRPC would send even loopback traffic to a configured web proxy.
        chosen.append(("grpc.enable_http_proxy", 0))
    if connection.tls is None:
        channel = grpc.insecure_channel(address, options=chosen)
    else:
        if connection.tls.server_name:
            chosen.append(("grpc.ssl_target_name_override", connection.tls.server_name))
        found = material or _files_of(connection.tls).current()
        credentials = grpc.ssl_channel_credentials(found.authority, found.key, found.certificate)
        channel = grpc.secure_channel(address, credentials, options=chosen)
    metadata = [(PROTOCOL, str(version))]
    if connection.token:
        redaction.remember(connection.token)
        metadata.append((AUTHORIZATION, f"Bearer {connection.token}"))
    return grpc.intercept_channel(channel, _WithMetadata(metadata))


class _CallDetails(NamedTuple):
    """What gRPC wants to know of a call, with our metadata added."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: Any


class _WithMetadata(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the same metadata to every call of a channel.

    Call credentials would do for a token, but gRPC refuses them on plain text, also on loopback.
    """

    def __init__(self, metadata: Sequence[tuple[str, str]]) -> None:
        self._metadata = metadata

    def _extended(self, details: Any) -> Any:
        return _CallDetails(
            details.method,
            details.timeout,
            [*(details.metadata or ()), *self._metadata],
            details.credentials,
            getattr(details, "wait_for_ready", None),
            getattr(details, "compression", None),
        )

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._extended(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._extended(client_call_details), request)

    def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._extended(client_call_details), request_iterator)

    def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._extended(client_call_details), request_iterator)
