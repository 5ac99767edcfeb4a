"""Logging: one line per event on stderr."""

from __future__ import annotations

import logging
import sys
import time
from enum import StrEnum


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


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
            kind, error, _ = record.exc_info
            reason = f"{kind.__name__ if kind else 'error'}: {error}"
            record = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None})
            record.msg, record.args = f"{record.getMessage()} ({reason})", None
        text = super().format(record)
        return text if self._traces else " ".join(text.splitlines())


def configure(level: LogLevel, *, debug: bool) -> None:
    """Send all records of at least this level to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(traces=debug))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else level.value.upper())
    # They narrate every socket and every Java call.
    for chatty in ("py4j", "grpc", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
