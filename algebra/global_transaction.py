"""Global transactions: one unit of work with a part in each of several sources.

Sources know nothing of each other. An application that wants its parts to appear together says so itself, by
one row in each source that has a part: the transaction's id, and the names of all sources that take part.

Reference: Strobe paper, sections 3.1 and 5.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class GlobalTransaction:
    """What a part says about the whole: its id, and all sources that have a part.

    `together_with`: others that the same part belongs to. It cannot be divided, so none of them may be shown
    without the rest. A source that cannot tell its transactions apart reports such parts, and so does one
    whose transaction has several marks.
    """

    id: str
    participants: frozenset[str]
    together_with: frozenset[GlobalTransaction] = frozenset()

    @classmethod
    def joined(cls, marks: Iterable[GlobalTransaction]) -> GlobalTransaction | None:
        """All marks of one part as one, None without any; the participants named for one id add up.

        >>> shop, crm = frozenset({"shop"}), frozenset({"crm"})
        >>> joined = GlobalTransaction.joined([GlobalTransaction("7", shop), GlobalTransaction("7", crm)])
        >>> sorted(joined.participants)
        ['crm', 'shop']
        """
        participants: dict[str, frozenset[str]] = {}
        for mark in marks:
            for one in mark.all:
                participants[one.id] = participants.get(one.id, frozenset()) | one.participants
        if not participants:
            return None
        # By id, so that the same marks are equal in whichever order they were read.
        first, *others = (cls(id_, participants[id_]) for id_ in sorted(participants))
        return cls(first.id, first.participants, frozenset(others))

    @property
    def all(self) -> tuple[GlobalTransaction, ...]:
        """This one and those it is together with, each by itself, in the order of their ids."""
        alone = GlobalTransaction(self.id, self.participants)
        return tuple(sorted((alone, *self.together_with), key=lambda one: one.id))
