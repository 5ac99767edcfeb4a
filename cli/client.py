"""The mediator as clients see it: calls that answer, or fail with one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc

from algebra.errors import LockstepError, SourceUnavailableError
from protos.lockstep.v1 import mediator_pb2_grpc
from protos.status import error_from_rpc

if TYPE_CHECKING:
    from grpc import UnaryStreamMultiCallable, UnaryUnaryMultiCallable

Request = TypeVar("Request")
Response = TypeVar("Response")

DEFAULT_TIMEOUT = 5.0
"""Seconds until a mediator that does not answer is called unreachable."""

CALL_TIMEOUT = 300.0
"""Seconds that a single answer may take; streams have no limit, because a load may be long."""

# What gRPC's texts contain, and what they mean.
_SIGNS = {
    "refused": "refused",
    "name resolution": "the host is not known",
    "errors resolving": "the host is not known",
    "dns": "the host is not known",
    "socket closed": "the connection was lost",
    "connection reset": "the connection was lost",
    "goaway": "the connection was lost",
}

_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class MediatorClient:
    """A connection to one mediator; connects with the first call, closes on leaving."""

    def __init__(self, address: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.address = address
        self._timeout = timeout
        self._channel = grpc.insecure_channel(address, options=_channel_options(address, timeout))
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
        return error_from_rpc(error)

    def _unreachable(self, details: str) -> SourceUnavailableError:
        how = next((how for sign, how in _SIGNS.items() if sign in details.lower()), None)
        how = how or f"no answer within {self._timeout:g} s"
        return SourceUnavailableError(
            f"no mediator at {self.address} ({how}); start one with `lockstep up FILE`, "
            "or name its address with --address or LOCKSTEP_ADDRESS"
        )


def _channel_options(address: str, timeout: float) -> list[tuple[str, int]]:
    milliseconds = int(timeout * 1000)
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # How long one attempt to connect may take; a call waits for one attempt.
        ("grpc.min_reconnect_backoff_ms", milliseconds),
        ("grpc.initial_reconnect_backoff_ms", milliseconds),
    ]
    if address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]"):
        # gRPC would send even loopback traffic to a configured web proxy.
        options.append(("grpc.enable_http_proxy", 0))
    return options
