"""How much memory this process has, and has had at most."""

from __future__ import annotations

import resource
import sys

import psutil

_RUSAGE_UNIT = 1 if sys.platform == "darwin" else 1024


def resident_bytes() -> int:
    """Its resident memory now."""
    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """The most resident memory it had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RUSAGE_UNIT
