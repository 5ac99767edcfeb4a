"""Logging: one line per event on stderr, as text or as JSON, without secrets."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, TextIO

from algebra.redaction import redacted
from cli.text import visible, visible_json, visible_lines


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a record is written."""

    TEXT = "text"
    JSON = "json"


class _OneLine(logging.Formatter):
    """UTC time, level, logger, message; a trace appears only if debugging was asked for."""

    def __init__(self, traces: bool) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        self._traces = traces
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        if not self._traces and record.exc_info:
            record = _without_trace(record)
        text = redacted(super().format(record))
        return text if self._traces else " ".join(text.splitlines())

    def formatException(self, ei: Any) -> str:
        return visible_lines(redacted(super().formatException(ei)))

    def formatMessage(self, record: logging.LogRecord) -> str:
        # A message may repeat what a client sent; without line breaks it cannot pass for other records.
        message = redacted(record.message)
        record.message = visible(message if self._traces else " ".join(message.splitlines()))
        return super().formatMessage(record)


class _Json(logging.Formatter):
    """One JSON object per record: time, level, logger, message, thread, and whatever the record has to add.

    `transaction` is the correlation id of a source transaction, `source@position`: the same in the logs of
    its wrapper and of the mediator.
    """

    _EXTRA = ("transaction", "transactions", "source", "view", "versions")

    def __init__(self, traces: bool) -> None:
        super().__init__()
        self._traces = traces

    def format(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info) if self._traces and record.exc_info else ""
        if record.exc_info and not self._traces:
            record = _without_trace(record)
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        entry.update({name: getattr(record, name) for name in self._EXTRA if hasattr(record, name)})
        if trace:
            entry["trace"] = trace
        return visible_json({key: _clean(value) for key, value in entry.items()})


def _clean(value: object) -> object:
    if isinstance(value, str):
        return redacted(value)
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value


def _without_trace(record: logging.LogRecord) -> logging.LogRecord:
    """The record with its exception told in the message, on one line."""
    assert record.exc_info
    kind, error, _ = record.exc_info
    reason = f"{kind.__name__ if kind else 'error'}: {error}"
    plain = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None})
    plain.msg, plain.args = f"{plain.getMessage()} ({reason})", None
    return plain


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that time: who replaced it for a while may have closed it since."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure(level: LogLevel, *, debug: bool, form: LogFormat = LogFormat.TEXT) -> None:
    """Send all records of at least this level to stderr."""
    handler = StderrHandler()
    handler.setFormatter(_Json(traces=debug) if form is LogFormat.JSON else _OneLine(traces=debug))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else level.value.upper())
    # They narrate every socket and every Java call.
    for chatty in ("py4j", "grpc", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # Its warnings repeat SQL text that a client sent; what it cannot parse is an error of ours anyway.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)


def redacted_trace(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception as Python does, without secrets."""
    sys.stderr.write(visible_lines(redacted("".join(traceback.format_exception(kind, error, trace)))))
