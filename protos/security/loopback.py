"""Which addresses only this machine can reach."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether `host:port` is reachable from this machine alone; a name that is not `localhost` is not.

    >>> [is_loopback(a) for a in ("127.0.0.1:7000", "[::1]:7000", "localhost:0", "0.0.0.0:7000", "db.lan:1")]
    [True, True, True, False, False]
    """
    host = address.rpartition(":")[0].strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
