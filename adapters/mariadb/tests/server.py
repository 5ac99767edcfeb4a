"""One MariaDB server for all tests of a process."""

from __future__ import annotations

import atexit
import contextlib
import functools

import pytest

from adapters.servers.mariadb import MariaDBServer, why_not


@functools.cache
def shared_server() -> MariaDBServer:
    """The one server of this process, started when first asked for and ended with the process.

    Skips the test, with the command that installs one, where there is none.
    """
    if reason := why_not():
        pytest.skip(reason)
    stack = contextlib.ExitStack()
    server = stack.enter_context(MariaDBServer.started())
    atexit.register(stack.close)
    return server
