"""The guard before every RPC: who is calling, whether they may, and what the audit log says about it.

It is the outermost code of each call. So it is also where whatever a handler did not foresee ends: the caller
gets one line without details, the log has the trace. A message that is not what the protocol says is refused
here, before any handler sees it.

Revocation reaches open streams: a thread looks after the tokens of all calls that last, and cancels those
whose token is gone, `REVOCATION_SECONDS` after the file has changed at the latest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from algebra.errors import LockstepError, ProtocolVersionError, RefusedError, UnauthenticatedError
from protos.security.access import RULES, Rule, check
from protos.security.audit import AuditLog
from protos.security.principals import ANONYMOUS, ANONYMOUS_LOOPBACK, Principal, checked_scopes
from protos.security.settings import ServerSecurity
from protos.security.tls import AUTHORIZATION, PROTOCOL
from protos.security.tokens import TokenStore
from protos.status import abort

log = logging.getLogger(__name__)

REVOCATION_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_ATTRIBUTE = "lockstep_call"

Handler = Any


@dataclass
class Call:
    """One RPC under way.

    A service sets `target` when it knows better what the call is about, and `finished` when its work is done:
    a caller that leaves with the last message in hand has not cancelled it.
    """

    principal: Principal
    peer: str
    action: str
    target: str = ""
    revoked: bool = False
    finished: bool = False


_UNGUARDED = Call(ANONYMOUS_LOOPBACK, "", "")


def call_of(context: grpc.ServicerContext) -> Call:
    """The call that a handler serves; on a server without guard, one of an anonymous caller."""
    found: Call = getattr(context, _ATTRIBUTE, _UNGUARDED)
    return found


class _Malformed:
    """Stands for a request whose bytes are not a message of the protocol."""


class Guard(grpc.ServerInterceptor):
    """Admits calls. `source` is the one that a wrapper serves; `version` the protocol's."""

    def __init__(self, security: ServerSecurity, audit: AuditLog, version: int, source: str = "") -> None:
        self._security = security
        self._audit = audit
        self._version = version
        self._source = source
        self._tokens = TokenStore(security.tokens) if security.tokens is not None else None
        self._certificates = {
            name: Principal(name, "certificate", frozenset(checked_scopes(scopes)))
            for name, scopes in security.certificates.items()
        }
        self._lock = threading.Lock()
        self._lasting: dict[int, tuple[Call, grpc.ServicerContext]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="revocation", daemon=True)

    def start(self) -> None:
        if self._tokens is not None:
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    # Around every call

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = continuation(handler_call_details)
        if handler is None:
            return None  # gRPC answers UNIMPLEMENTED
        method = handler_call_details.method
        rule = RULES.get(method, Rule(method.rpartition("/")[2]))
        if rule.open:
            return handler
        deserializer = _tolerant(handler.request_deserializer)
        serializer = handler.response_serializer
        if handler.request_streaming and handler.response_streaming:
            behaviour = self._guard_stream(handler.stream_stream, method, rule)
            return grpc.stream_stream_rpc_method_handler(behaviour, deserializer, serializer)
        if handler.response_streaming:
            behaviour = self._guard_stream(handler.unary_stream, method, rule)
            return grpc.unary_stream_rpc_method_handler(behaviour, deserializer, serializer)
        if handler.request_streaming:
            guarded = self._guard_unary(handler.stream_unary, method, rule)
            return grpc.stream_unary_rpc_method_handler(guarded, deserializer, serializer)
        guarded = self._guard_unary(handler.unary_unary, method, rule)
        return grpc.unary_unary_rpc_method_handler(guarded, deserializer, serializer)

    def _guard_unary(self, behaviour: Any, method: str, rule: Rule) -> Any:
        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            call = self._admit(request, context, method, rule)
            try:
                answer = behaviour(_checked_stream(request), context)
            except Exception as error:
                self._failed(call, context, error)
            self._recorded(call, "ok")
            return answer

        return guarded

    def _guard_stream(self, behaviour: Any, method: str, rule: Rule) -> Any:
        def guarded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            call = self._admit(request, context, method, rule)
            if rule.lasting:
                self._recorded(call, "begun")
            key = id(call)
            with self._lock:
                self._lasting[key] = (call, context)
            context.add_callback(lambda: self._ended(key))
            outcome = "cancelled"
            try:
                for answer in behaviour(_checked_stream(request), context):
                    if call.revoked:
                        raise UnauthenticatedError("the token was revoked or has expired")
                    yield answer
                outcome = "ok"
            except Exception as error:
                outcome = ""  # recorded with its reason
                self._failed(call, context, error)
            finally:
                self._ended(key)
                if outcome:
                    self._recorded(call, "ok" if call.finished else outcome)

        return guarded

    def _ended(self, key: int) -> None:
        with self._lock:
            self._lasting.pop(key, None)

    def _admit(self, request: Any, context: grpc.ServicerContext, method: str, rule: Rule) -> Call:
        """The call, if it may go on; else it ends here."""
        target = self._source or (str(getattr(request, rule.target, "")) if rule.target else "")
        call = Call(Principal("unknown", "none", frozenset()), context.peer(), rule.action, target)
        try:
            metadata = dict(context.invocation_metadata() or ())
            call.principal = self._principal(metadata, context)
            check(call.principal, method, rule, target)
            self._check_version(metadata)
            if isinstance(request, _Malformed):
                raise RefusedError(f"the request is not a message of {method}")
        except LockstepError as error:
            self._recorded(call, error.reason, error.message)
            abort(context, error)
        setattr(context, _ATTRIBUTE, call)
        return call

    def _principal(self, metadata: dict[str, Any], context: grpc.ServicerContext) -> Principal:
        given = metadata.get(AUTHORIZATION)
        shown: Mapping[str, Any] = context.auth_context()
        names = [name.decode("utf-8", "replace") for name in shown.get("x509_common_name", ())]
        if given is not None and self._tokens is not None:
            kind, _, token = str(given).partition(" ")
            if kind.lower() != "bearer":
                raise UnauthenticatedError("the authorization is not `Bearer TOKEN`")
            return self._tokens.authenticate(token.strip())
        for name in names:
            if name in self._certificates:
                return self._certificates[name]
        if self._security.knows_callers:
            who = f"the certificate of {names[0]!r} is not known here" if names else "no token was sent"
            raise UnauthenticatedError(
                f"{who}; give one with LOCKSTEP_TOKEN, or `connect.token` in a mediator's file"
            )
        if names:
            return Principal(names[0], "certificate", ANONYMOUS.scopes)
        local = context.peer().startswith(("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:"))
        return ANONYMOUS_LOOPBACK if local else ANONYMOUS

    def _check_version(self, metadata: dict[str, Any]) -> None:
        """A caller that names its version must speak ours; tools that do not know of it are let through."""
        theirs = metadata.get(PROTOCOL)
        if theirs is not None and theirs != str(self._version):
            raise ProtocolVersionError(
                f"the caller speaks protocol version {str(theirs)[:20]}, this server {self._version}: "
                "upgrade the older one"
            )

    def _failed(self, call: Call, context: grpc.ServicerContext, error: Exception) -> None:
        """End a call whose handler raised; an abort of its own has set the status already."""
        if context.code() is not None:  # type: ignore[attr-defined]
            details = context.details()  # type: ignore[attr-defined]
            text = details.decode("utf-8", "replace") if isinstance(details, bytes) else str(details)
            self._recorded(call, _reason(context), text)
            raise error
        if isinstance(error, grpc.RpcError) or not context.is_active():
            self._recorded(call, "cancelled")
            raise error
        if not isinstance(error, LockstepError):
            log.exception("%s failed unexpectedly", call.action)
            error = LockstepError("internal error; the server's log has the details")
        self._recorded(call, error.reason, error.message)
        abort(context, error)

    def _recorded(self, call: Call, outcome: str, detail: str = "") -> None:
        self._audit.record(call.principal, call.peer, call.action, call.target, outcome, detail)

    # Beside the calls

    def _look_after(self) -> None:
        assert self._tokens is not None
        while not self._stopped.wait(_LOOK_SECONDS):
            with self._lock:
                lasting = list(self._lasting.values())
            for call, context in lasting:
                if call.principal.kind == "token" and not call.revoked:
                    call.revoked = not self._tokens.still_valid(call.principal)
                    if call.revoked:
                        log.warning("%s is no longer valid: its %s ends", call.principal.title, call.action)
                        self._recorded(
                            call, UnauthenticatedError.reason, "the token was revoked or has expired"
                        )
                        with suppress(Exception):  # it may be ending by itself
                            context.cancel()


def _reason(context: grpc.ServicerContext) -> str:
    from google.rpc import error_details_pb2, status_pb2

    for key, value in context.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            info = error_details_pb2.ErrorInfo()
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    return str(info.reason)
    return "INTERNAL"


def _tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """The deserializer, except that bytes which are no message are told apart instead of ending in gRPC."""
    if deserialize is None:
        return None

    def tolerant(data: bytes) -> Any:
        try:
            return deserialize(data)
        except (DecodeError, ValueError):
            return _Malformed()

    return tolerant


def _checked_stream(request: Any) -> Any:
    """A stream of requests that raises RefusedError at one that is no message; a single request as it is."""
    return _checked(request) if isinstance(request, Iterator) else request


def _checked(requests: Iterator[Any]) -> Iterator[Any]:
    for request in requests:
        if isinstance(request, _Malformed):
            raise RefusedError("a message on the stream is not one of the protocol")
        yield request
