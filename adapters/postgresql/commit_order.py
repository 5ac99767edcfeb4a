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
ended sees it.

Under REPEATABLE READ and SERIALIZABLE the snapshot is the first statement's, so what ended later is not in
it. Waiting for a row that another transaction changed fails there; but a key that one deleted can be used
again, and a row that one inserted can be referred to. So such transactions also log, with each statement, how
far the server's own log had come, which is told as of that moment. They come last among those between the
same two cuts, for what depends on them has a cut that shows them; and among themselves in the order in which
they logged their last statements, for who depends on another one logged after that one's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from adapters.postgresql.visibility import Visibility

Committed = tuple[int, int]
"""The id of a transaction, and how far the server's log had come at its last statement, if it logged that;
else 0."""


def commit_order(committed: Iterable[Committed], cuts: Iterable[Visibility]) -> Iterator[int]:
    """The transactions in the order in which the cuts begin to show them, then by place in the log and id.

    Given are ids from the smallest on, and cuts likewise: of two, the smaller one has the smaller xmax, or
    more that were running below the same one. Neither is held: a backlog may have many.

    The first to start saw the second commit, and was shown later:

    >>> cuts = [Visibility(7, 9, frozenset({7, 8})), Visibility(7, 9, frozenset({7}))]
    >>> list(commit_order([(7, 0), (8, 0)], cuts))
    [8, 7]

    The first to start saw nothing of the second, of which it could depend all the same:

    >>> list(commit_order([(7, 4096), (8, 0)], [Visibility(7, 9, frozenset({7, 8}))]))
    [8, 7]
    """
    waiting = iter(committed)
    following = next(waiting, None)
    held: dict[int, int] = {}
    last: Visibility | None = None
    for cut in cuts:
        if cut == last:
            continue
        last = cut
        while following is not None and following[0] < cut.xmax:
            held[following[0]] = following[1]
            following = next(waiting, None)
        shown = [(held[xid], xid) for xid in held if xid not in cut.running]
        for _, xid in shown:
            del held[xid]
        yield from (xid for _, xid in sorted(shown))
    rest = [(place, xid) for xid, place in (*held.items(), *([following] if following else []), *waiting)]
    yield from (xid for _, xid in sorted(rest))


def parse_cuts(logged: Iterable[tuple[int, str]]) -> Iterator[Visibility]:
    """The cuts that transactions logged; each leaves itself out, though it was running.

    >>> list(parse_cuts([(7, "7:9:")])) == [Visibility(7, 9, frozenset({7}))]
    True
    """
    for xid, text in logged:
        cut = Visibility.of(text)
        yield replace(cut, running=cut.running | {xid}) if xid < cut.xmax else cut
