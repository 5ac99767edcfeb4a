"""Errors on the wire: the one table between the error taxonomy and gRPC statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from algebra import errors

DOMAIN = "lockstep"

LONGEST_ENCODED = 3000
"""Characters of a message at most, as gRPC encodes them. It goes into the trailers twice, and whoever gets
more than 8 KiB of trailers hears of that instead of the reason."""

STATUS: Mapping[type[errors.LockstepError], grpc.StatusCode] = {
    errors.ConfigurationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.MissingExtraError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ViewDefinitionError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.SourceUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.StorageError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ResyncRequiredError: grpc.StatusCode.OUT_OF_RANGE,
    errors.PositionTrimmedError: grpc.StatusCode.OUT_OF_RANGE,
    errors.SchemaChangedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RefusedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.DataError: grpc.StatusCode.DATA_LOSS,
    errors.OrderingViolationError: grpc.StatusCode.INTERNAL,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.ForbiddenError: grpc.StatusCode.PERMISSION_DENIED,
    errors.LimitExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ProtocolVersionError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LockstepError: grpc.StatusCode.INTERNAL,
}

BY_REASON: Mapping[str, type[errors.LockstepError]] = {kind.reason: kind for kind in STATUS}


def error_of(reason: str, message: str) -> errors.LockstepError:
    """The error with this reason and message, as raised by the peer."""
    kind = BY_REASON.get(reason, errors.LockstepError)
    made = kind.__new__(kind)
    Exception.__init__(made, message)
    return made


def abort(context: grpc.ServicerContext, error: errors.LockstepError) -> NoReturn:
    """End an RPC with the error's status, reason and message."""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))
    code = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), grpc.StatusCode.INTERNAL)
    status = status_pb2.Status(code=code.value[0], message=_bounded(error.message), details=[detail])
    context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status returned")


def _bounded(message: str) -> str:
    """The message, cut where it would be longer than `LONGEST_ENCODED`."""
    length = 0
    for at, character in enumerate(message):
        plain = " " <= character <= "~" and character != "%"
        length += 1 if plain else len(character.encode("utf-8", "replace")) * len("%00")
        if length > LONGEST_ENCODED:
            return message[:at] + "…"
    return message


def error_from_rpc(rpc_error: grpc.RpcError) -> errors.LockstepError:
    """The error behind a failed RPC; one clear line in any case, whatever the peer has sent."""
    named = _named(rpc_error) if isinstance(rpc_error, grpc.Call) else None
    if named is not None:
        return named
    code = rpc_error.code() if isinstance(rpc_error, grpc.Call) else None
    text = rpc_error.details() if isinstance(rpc_error, grpc.Call) else str(rpc_error)
    line = next(iter((text or "").strip().splitlines()), str(code))
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return errors.SourceUnavailableError(line)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        too_large = "larger than max" in line  # gRPC's own words
        return errors.LimitExceededError(
            f"{line}: a message is larger than the receiver takes" if too_large else line
        )
    return errors.LockstepError(line)


def _named(call: grpc.Call) -> errors.LockstepError | None:
    """The error that the peer has named by its reason; None if there is none that fits the call."""
    info = error_details_pb2.ErrorInfo()
    try:
        status = rpc_status.from_call(call)
        for detail in status.details if status is not None else ():
            if detail.Unpack(info):
                return error_of(info.reason, status.message)
    except (DecodeError, ValueError):
        return None  # made up, or of another status than what became of the call on its way
    return None
