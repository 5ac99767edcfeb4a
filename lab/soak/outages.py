"""What faults have a hold of now, and how much of it at once."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Overlaps:
    """How faults met: those that struck while another lasted, and the most faults and processes at once.

    `pairs` counts what was hit together, as "mediator, wrapper"; a fault among three others counts thrice.
    """

    faults: int = 0
    most_faults: int = 0
    most_down: int = 0
    pairs: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Hold:
    """A process or a network in the hold of a fault, by name and what it is; `is_down`: it does nothing."""

    name: str
    what: str
    is_down: bool


class Outages:
    """Lets faults begin and end. No two have hold of the same, and not too many processes are down."""

    def __init__(self, most_down: int) -> None:
        self._most_down = most_down
        self._holds: dict[str, Hold] = {}
        self._lock = threading.Lock()
        self.overlaps = Overlaps()

    def begin(self, hold: Hold) -> bool:
        """Whether the fault may begin now."""
        with self._lock:
            down = hold.is_down + sum(other.is_down for other in self._holds.values())
            if hold.name in self._holds or (hold.is_down and down > self._most_down):
                return False
            seen = self.overlaps
            seen.faults += bool(self._holds)
            seen.pairs.update(", ".join(sorted((hold.what, other.what))) for other in self._holds.values())
            self._holds[hold.name] = hold
            seen.most_faults = max(seen.most_faults, len(self._holds))
            seen.most_down = max(seen.most_down, down)
            return True

    def end(self, hold: Hold) -> None:
        with self._lock:
            del self._holds[hold.name]
