"""The one error taxonomy: what went wrong, whose move it is, and how it is reported.

Every error that may reach a user derives from `LockstepError` and is one clear line. Its class says
what to do about it; `reason` is the stable name that travels in `google.rpc.ErrorInfo`. The table that
maps a class to a gRPC status and back is `protos/status.py`; every error ends the command line with
exit code 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from algebra.redaction import redacted

INTERNAL_ERROR = "internal error; the server's log has the details"
"""All that others are told of an exception that nobody foresaw: its own words may hold anything."""


class LockstepError(Exception):
    """Base of all errors that are reported to a user as one line, in which no secret is shown.

    `told` is what peers and callers are told, where the text says more than they may know: values of rows, or
    words of a driver. The whole text is for the log and the terminal of the process that has the error.
    """

    reason = "INTERNAL"
    told: str | None = None

    def __init__(self, text: str = "", *, told: str | None = None) -> None:
        super().__init__(text)
        self.told = told

    def __str__(self) -> str:
        return redacted(super().__str__())

    @property
    def message(self) -> str:
        """What peers and callers are told."""
        return str(self) if self.told is None else redacted(self.told)


class ConfigurationError(LockstepError):
    """The configuration or the command line is wrong; nothing was started."""

    reason = "CONFIGURATION"


class MissingExtraError(ConfigurationError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    reason = "MISSING_EXTRA"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'lockstep[{extra}]'")


@dataclass(frozen=True)
class TextPosition:
    """A place in a view's SQL text; line and column count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class ViewDefinitionError(LockstepError):
    """The view's SQL is outside the supported language, or names what does not exist."""

    reason = "VIEW_DEFINITION"

    def __init__(self, problem: str, position: TextPosition | None = None) -> None:
        super().__init__(f"{problem} ({position})" if position else problem)
        self.problem = problem
        self.position = position


class NotFoundError(LockstepError):
    """A view, source or version that was asked for does not exist."""

    reason = "NOT_FOUND"


class AlreadyExistsError(LockstepError):
    """A view of that name exists already."""

    reason = "ALREADY_EXISTS"


class SourceUnavailableError(LockstepError):
    """Retryable: the source, its wrapper or the mediator does not answer now."""

    reason = "SOURCE_UNAVAILABLE"


class StorageError(LockstepError):
    """Retryable: the disk does not take what is written; it goes on by itself once it does."""

    reason = "STORAGE"


class ResyncRequiredError(LockstepError):
    """The stream of changes was broken; the source has to be read again as a whole."""

    reason = "RESYNC_REQUIRED"


class PositionTrimmedError(ResyncRequiredError):
    """The history after the requested position is no longer there."""

    reason = "POSITION_TRIMMED"


class SchemaChangedError(ResyncRequiredError):
    """A relation of the source no longer has the shape the view was made for."""

    reason = "SCHEMA_CHANGED"


class RefusedError(LockstepError):
    """The peer asked for something outside of what this process allows."""

    reason = "REFUSED"


class DataError(LockstepError):
    """A value in the source does not fit its declared type; nothing was guessed."""

    reason = "DATA"


class OrderingViolationError(LockstepError):
    """Fatal: messages arrived in an order the protocol forbids; no view was changed."""

    reason = "ORDERING_VIOLATION"


class UnauthenticatedError(LockstepError):
    """The caller has not shown who it is: no valid token, and no certificate that is known here."""

    reason = "UNAUTHENTICATED"


class ForbiddenError(RefusedError):
    """The caller is known, and may not do this."""

    reason = "FORBIDDEN"


class LimitExceededError(RefusedError):
    """What was asked for, or sent, is larger than this process allows."""

    reason = "LIMIT_EXCEEDED"


class ProtocolVersionError(ConfigurationError):
    """The peer speaks another version of the protocol; the message names both."""

    reason = "PROTOCOL_VERSION"
