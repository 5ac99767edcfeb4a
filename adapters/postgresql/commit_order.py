"""In which order transactions committed, told by what each of them saw.

Problem. Triggers log what a transaction did, but none runs at its commit. Ids and sequence numbers are
drawn when a transaction first writes: one with a small number may commit last, and may even have changed
rows that one with a larger number left behind.

Chosen way. Each logged statement also logs `pg_current_snapshot()`, taken when its trigger runs: who was
still running then. All snapshots of a database are cuts through one order, the one in which transactions
became visible, so any two of them contain one another. Hence, sorted by size, they tell of each transaction
between which two of them it committed. That is the order here. Two between the same two cuts keep the order
of their ids: no transaction that changed anything captured, and no snapshot of ours, has seen one without
the other.

What depends on what is always told apart. A statement that changes a row which another transaction changed
has waited for that one to end, and its trigger runs later; a transaction that begins after another has
ended sees it. (In a REPEATABLE READ transaction the snapshot is the first statement's; there, waiting for
such a row fails.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from adapters.postgresql.visibility import Visibility


def commit_order(committed: Iterable[int], cuts: Iterable[Visibility]) -> Iterator[int]:
    """The transactions in the order in which the cuts begin to show them, then by their ids.

    Given are ids from the smallest on, and cuts likewise: of two, the smaller one has the smaller xmax, or
    more that were running below the same one. Neither is held: a backlog may have many.

    The first to start saw the second commit, and was shown later:

    >>> list(commit_order([7, 8], [Visibility(7, 9, frozenset({7, 8})), Visibility(7, 9, frozenset({7}))]))
    [8, 7]
    """
    waiting = iter(committed)
    following = next(waiting, None)
    held: dict[int, None] = {}
    last: Visibility | None = None
    for cut in cuts:
        if cut == last:
            continue
        last = cut
        while following is not None and following < cut.xmax:
            held[following] = None
            following = next(waiting, None)
        shown = [xid for xid in held if xid not in cut.running]
        for xid in shown:
            del held[xid]
        yield from shown
    yield from held
    if following is not None:
        yield following
    yield from waiting


def parse_cuts(logged: Iterable[tuple[int, str]]) -> Iterator[Visibility]:
    """The cuts that transactions logged; each leaves itself out, though it was running.

    >>> list(parse_cuts([(7, "7:9:")])) == [Visibility(7, 9, frozenset({7}))]
    True
    """
    for xid, text in logged:
        cut = Visibility.of(text)
        yield replace(cut, running=cut.running | {xid}) if xid < cut.xmax else cut
