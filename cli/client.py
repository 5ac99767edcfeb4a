"""The mediator as clients see it: calls that answer, or fail with one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc

from algebra.errors import LockstepError, NotFoundError, SourceUnavailableError, UnauthenticatedError
from cli import connecting
from protos.lockstep.v1 import mediator_pb2_grpc
from protos.security.settings import Connection
from protos.security.tls import open_channel
from protos.status import error_from_rpc
from protos.version import PROTOCOL_VERSION

if TYPE_CHECKING:
    from grpc import UnaryStreamMultiCallable, UnaryUnaryMultiCallable

Request = TypeVar("Request")
Response = TypeVar("Response")

DEFAULT_TIMEOUT = 5.0
"""Seconds until a mediator that does not answer is called unreachable."""

CALL_TIMEOUT = 300.0
"""Seconds that a single answer may take; streams have no limit, because a load may be long."""

_TLS = "the TLS handshake failed; check --ca, --certificate and --key"

_LOST = "the connection was lost; if TLS is asked for there, give --ca"

# What gRPC's texts contain, and what they mean.
_SIGNS = {
    "handshake": _TLS,
    "certificate": _TLS,
    "refused": "refused",
    "name resolution": "the host is not known",
    "errors resolving": "the host is not known",
    "dns": "the host is not known",
    "socket closed": _LOST,
    "connection reset": _LOST,
    "goaway": _LOST,
}

_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class MediatorClient:
    """A connection to one mediator; connects with the first call, closes on leaving."""

    def __init__(
        self, address: str, timeout: float = DEFAULT_TIMEOUT, connection: Connection | None = None
    ) -> None:
        """`connection` says how it is reached; absent, the command line's options and environment do."""
        self.address = address
        self._timeout = timeout
        self._channel = open_channel(
            address, connection or connecting.chosen(), PROTOCOL_VERSION, _channel_options(timeout)
        )
        self.stub = mediator_pb2_grpc.MediatorServiceStub(self._channel)

    def __enter__(self) -> MediatorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is under way, and disconnect."""
        self._channel.close()

    def call(self, method: UnaryUnaryMultiCallable[Request, Response], request: Request) -> Response:
        """The method's one answer."""
        try:
            return method(request, timeout=CALL_TIMEOUT)
        except grpc.RpcError as error:
            raise self._translated(error) from error

    def stream(
        self, method: UnaryStreamMultiCallable[Request, Response], request: Request
    ) -> Iterator[Response]:
        """The method's answers as they come; leaving the loop early cancels the call."""
        answers = method(request)
        try:
            yield from answers
        except grpc.RpcError as error:
            raise self._translated(error) from error
        finally:
            answers.cancel()

    def _translated(self, error: grpc.RpcError) -> LockstepError:
        # What the mediator itself says carries details; without them it was the network.
        if isinstance(error, grpc.Call) and error.code() in _NO_ANSWER:
            told = {key for key, _ in error.trailing_metadata() or ()}
            if "grpc-status-details-bin" not in told:
                return self._unreachable(error.details() or "")
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.CANCELLED:
            return UnauthenticatedError(
                f"the mediator at {self.address} ended the call: it is stopping, the token was revoked, "
                "or a query's time was over and its answer not read"
            )
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return NotFoundError(f"what answers at {self.address} is no mediator; is it a wrapper?")
        return error_from_rpc(error)

    def _unreachable(self, details: str) -> SourceUnavailableError:
        how = next((how for sign, how in _SIGNS.items() if sign in details.lower()), None)
        how = how or f"no answer within {self._timeout:g} s"
        return SourceUnavailableError(
            f"no mediator at {self.address} ({how}); start one with `lockstep up FILE`, "
            "or name its address with --address or LOCKSTEP_ADDRESS"
        )


def _channel_options(timeout: float) -> list[tuple[str, int]]:
    milliseconds = int(timeout * 1000)
    return [
        # How long one attempt to connect may take; a call waits for one attempt.
        ("grpc.min_reconnect_backoff_ms", milliseconds),
        ("grpc.initial_reconnect_backoff_ms", milliseconds),
    ]
