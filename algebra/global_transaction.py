"""Global transactions: one unit of work with a part in each of several sources.

Sources know nothing of each other. An application that wants its parts to appear together says so itself, by
one row in each source that has a part: the transaction's id, and the names of all sources that take part.

Reference: Strobe paper, sections 3.1 and 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GlobalTransaction:
    """What a part says about the whole: its id, and all sources that have a part."""

    id: str
    participants: frozenset[str]
