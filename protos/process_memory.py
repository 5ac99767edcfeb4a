"""How much memory this process has, and has had at most."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil

_STATUS = Path("/proc/self/status")
_RUSAGE_UNIT = 1 if sys.platform == "darwin" else 1024


def resident_bytes() -> int:
    """Its resident memory now."""
    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """The most resident memory it had."""
    if _STATUS.exists():
        # Linux's rusage counts what the process was before it became this program: its parent.
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RUSAGE_UNIT
