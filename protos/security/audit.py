"""The audit log: who did what, to which view or source, from where, and how it went; JSON lines.

Records hold names, never rows, SQL text or secrets. A server without an audit file sends them to its log:
what changes something or was refused at level info, the rest at level debug.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import threading
from pathlib import Path

from algebra.errors import ConfigurationError, DataError, ViewDefinitionError
from algebra.private_files import make_private_folder, private
from algebra.redaction import redacted
from protos.security.principals import Principal

log = logging.getLogger("lockstep.audit")

_LONGEST = 500
_ABOUT_DATA = frozenset({DataError.reason, ViewDefinitionError.reason})
"""Reasons whose details show values of rows, or SQL text."""
_QUIET = frozenset({"status", "list", "describe", "query", "watch", "history", "explain", "load", "reflect"})


class AuditLog:
    """Writes the audit records of one server."""

    def __init__(self, path: Path | None, server: str) -> None:
        self._path = path
        self._server = server
        self._lock = threading.Lock()
        self._torn = False
        """The disk took only the beginning of the last record."""
        if path is not None:
            try:
                make_private_folder(path.parent)
                self._append(b"")
            except OSError as error:
                raise ConfigurationError(f"{path}: cannot be written ({error.strerror})") from None

    def record(
        self, who: Principal | None, peer: str, action: str, target: str, outcome: str, detail: str = ""
    ) -> None:
        """Write down one act. `outcome` is `begun`, `ok`, or the reason of a refusal or failure."""
        entry = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "server": self._server,
            "who": who.name if who is not None else "unknown",
            "by": who.kind if who is not None else "none",
            "peer": peer,
            "action": action,
            "target": target,
            "outcome": outcome,
        }
        if detail and outcome not in _ABOUT_DATA:
            entry["detail"] = detail
        # Field by field, for in the line a quote might pass for a part of a secret; and before they are cut.
        line = json.dumps(
            {key: redacted(value)[:_LONGEST] for key, value in entry.items()}, ensure_ascii=True
        )
        if self._path is None:
            quiet = outcome in ("ok", "begun") and action in _QUIET
            log.log(logging.DEBUG if quiet else logging.INFO, "%s", line)
            return
        try:
            with self._lock:
                self._append(line.encode() + b"\n")
        except OSError as error:
            log.error("%s: the audit record is lost (%s): %s", self._path, error.strerror, line)

    def _append(self, data: bytes) -> None:
        # Opened for each record: the file may be moved away by a rotation at any time.
        handle = private(str(self._path), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        written = 0
        try:
            if self._torn and os.fstat(handle).st_size:
                data = b"\n" + data
            while written < len(data):
                written += os.write(handle, data[written:])
        finally:
            self._torn = written < len(data) if written else self._torn
            os.close(handle)
