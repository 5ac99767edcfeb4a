"""Ports for servers that must know theirs before they start, and find it free whenever they start again."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_RANGE_OF_CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_HIGHEST = 32_767
_TRIES = 1000

_given: set[int] = set()


def free_port() -> int:
    """A port of the loopback address that is free now, and that no outgoing connection will take.

    Port 0 would give one of those that connections are made from: while a server is down, any client of
    another one may take it.
    """
    below = _HIGHEST
    with suppress(OSError, ValueError):
        below = int(_RANGE_OF_CLIENTS.read_text().split()[0]) - 1
    lowest, highest = (_LOWEST, below) if below > 2 * _LOWEST else (_LOWEST, 65_535)
    for _ in range(_TRIES):
        port = random.SystemRandom().randint(lowest, highest)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise RuntimeError(f"no port between {lowest} and {highest} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
