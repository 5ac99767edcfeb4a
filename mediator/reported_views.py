"""The local views that one source reports: what its wrapper was told of, and how far each was delivered.

Here is the mediator's half of the ordering contract. Updates are put together from their parts, speak only of
local views that the wrapper was given, in the order of transactions, and repeat none. An answer comes after
every change that it shows, and no such change comes after it.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from algebra.arrow_ipc import from_ipc
from algebra.engines.contract import Relation
from algebra.errors import LimitExceededError, NotFoundError, OrderingViolationError
from algebra.global_transaction import GlobalTransaction
from algebra.local_view import LocalView
from algebra.position import ORIGIN, Position
from algebra.weight import weight
from protos.convert import (
    global_transaction_from_proto,
    local_view_to_proto,
    position_from_proto,
    position_to_proto,
)
from protos.incoming import checked_delta, checked_touched
from protos.lockstep.v1 import wrapper_pb2 as pb

TRUSTED_COST = 2
"""An update may take so many times what its wrapper told: Arrow's sizes differ a little between two ends."""


@dataclass(frozen=True)
class SourceUpdate:
    """ΔIS of consecutive transactions of one source, as delivered.

    `deltas` maps a local view's name to its rows (columns, `_tx`, `_count`) and to the indexes of the
    transactions that touch it. `marks` tells for each transaction of which global one it is a part, if any.
    `subscriptions` maps a local view's name to the number under which it was defined: an update of an earlier
    definition, which was on its way when the local view was defined anew, is known by it.
    """

    source: str
    positions: tuple[Position, ...]
    batched: tuple[bool, ...]
    observed_at: datetime.datetime
    deltas: dict[str, tuple[Relation | None, tuple[int, ...]]]
    marks: tuple[GlobalTransaction | None, ...]
    subscriptions: Mapping[str, int]


@dataclass
class DefinedView:
    """A local view, how far it was delivered, and whether the wrapper has begun to report it.

    Until then, what the wrapper sends is not about this definition: neither changes nor progress.
    """

    view: LocalView
    delivered: Position
    subscription: int
    reported: bool = False


class ReportedViews:
    """The defined local views of one source by name; for one thread at a time."""

    def __init__(self, source: str, assembled_rows: int) -> None:
        self._source = source
        self._assembled_rows = assembled_rows
        self._defined: dict[str, DefinedView] = {}
        self._given: set[str] = set()
        """Local views that the wrapper was told of on this stream; it may speak of no other."""
        self._first: pb.Update | None = None
        """The first part of an update whose last one has not come."""
        self._rows: dict[str, list[Relation]] = {}
        """The rows of its parts so far, by local view."""
        self._held = 0
        """What they take, as credit counts it; each part takes something."""
        self._position = ORIGIN

    @property
    def is_empty(self) -> bool:
        return not self._defined

    @property
    def position(self) -> Position:
        """The last position heard of: every transaction up to it has been delivered."""
        return self._position

    def define(self, views: Sequence[LocalView], after: Position, subscription: int) -> list[DefinedView]:
        """Expect changes of local views from this position on; `requests` asks for them."""
        added = [DefinedView(view, after, subscription) for view in views]
        self._defined.update({defined.view.name: defined for defined in added})
        return added

    def drop(self, name: str) -> bool:
        """Expect no more changes of a local view; whether there was one of that name."""
        return self._defined.pop(name, None) is not None

    def requests(self, definitions: Sequence[DefinedView]) -> list[pb.ExchangeRequest]:
        """What tells the wrapper of definitions, of all of them at once."""
        requests = []
        for number, defined in enumerate(definitions, start=1):
            defined.reported = False
            self._given.add(defined.view.name)
            define = pb.DefineLocalView(
                local_view=local_view_to_proto(defined.view),
                after=position_to_proto(defined.delivered),
                more=number < len(definitions),
                subscription=defined.subscription,
            )
            requests.append(pb.ExchangeRequest(define=define))
        return requests

    def begin_stream(self) -> list[pb.ExchangeRequest]:
        """Forget what the last stream said in part; what defines all local views on a new one."""
        self._given.clear()
        self._position = ORIGIN
        self._first, self._rows, self._held = None, {}, 0
        return self.requests(list(self._defined.values()))

    def begun(self, name: str, subscription: int) -> None:
        """The wrapper reports the local view as it was defined under that subscription."""
        defined = self._defined.get(name)
        if defined is not None and defined.subscription == subscription:
            defined.reported = True

    def progress(self, position: Position) -> None:
        """Every change up to here has been delivered, of all local views."""
        if position < self._position:
            raise OrderingViolationError(
                f"source {self._source!r} went back from {self._position} to {position}"
            )
        self._position = position
        for defined in self._defined.values():
            if defined.reported:
                defined.delivered = max(defined.delivered, position)

    def delivered(self, name: str) -> Position:
        """Every change of the local view up to here was delivered; NotFoundError if it is not defined."""
        defined = self._defined.get(name)
        if defined is None:
            raise NotFoundError(f"local view {name!r} is no longer reported: its view was dropped")
        return defined.delivered

    def delivered_under(self, name: str, subscription: int) -> Position | None:
        """The same, if the local view is defined under that subscription; else None."""
        defined = self._defined.get(name)
        return defined.delivered if defined and defined.subscription == subscription else None

    def note_delivered(self, update: SourceUpdate) -> None:
        """The update has been delivered, unless a local view was defined anew meanwhile.

        Local views of one subscription were defined together and are told together: so none of them lacks
        anything up to a transaction that touches another. They are always followed from one position.
        """
        reached: dict[int, Position] = {}
        for name, (_, touched) in update.deltas.items():
            subscription = update.subscriptions[name]
            if touched:
                position = update.positions[touched[-1]]
                reached[subscription] = max(reached.get(subscription, position), position)
        self._reach(reached)

    def _reach(self, reached: Mapping[int, Position]) -> None:
        for defined in self._defined.values():
            if defined.reported and defined.subscription in reached:
                defined.delivered = max(defined.delivered, reached[defined.subscription])

    def check_answered(self, name: str, position: Position) -> None:
        """Raise if an answer that shows a local view at this position cannot be right."""
        defined = self._reported(name)
        if defined is not None and position < defined.delivered:
            raise OrderingViolationError(
                f"source {self._source!r} answered for local view {name!r} at {position}, "
                f"after it had reported changes up to {defined.delivered}"
            )

    def note_answered(self, name: str, position: Position) -> None:
        """Such an answer was taken: every change up to the position has been delivered."""
        defined = self._reported(name)
        if defined is not None:
            self._reach({defined.subscription: position})

    def _reported(self, name: str) -> DefinedView | None:
        """The local view; None if it was dropped or defined anew, and what came was about it as it was."""
        defined = self._defined.get(name)
        return defined if defined is not None and defined.reported else None

    def assemble(self, part: pb.Update, credit: int) -> SourceUpdate | None:
        """Take a part of an update; the update, decoded and checked, if this is its last part.

        `credit` is what the source has left: an update may overdraw it by `assembled_rows`. So what is held
        of one that does not end is bounded, and so are the updates of a source that ignores its credit.
        """
        if self._first is None:
            self._first = part
            self._rows = {delta.local_view: [] for delta in part.deltas}
            self._held = len(part.transactions)
        self._held += 1
        for delta in part.deltas:
            if delta.local_view not in self._rows:
                raise OrderingViolationError(
                    f"source {self._source!r} sent rows of a local view that the update does not name"
                )
            if delta.arrow:
                rows = from_ipc(delta.arrow)
                self._rows[delta.local_view].append(rows)
                self._held += weight(rows)
        if self._held > credit + self._assembled_rows:
            raise LimitExceededError(
                f"source {self._source!r} sent more than {self._assembled_rows:,} rows of updates beyond its "
                "credit; if its transactions are that large, raise assembled_rows"
            )
        if part.more:
            return None
        first, rows_of, self._first, self._rows = self._first, self._rows, None, {}
        return self._decoded(first, rows_of, part.cost)

    def _decoded(
        self, update: pb.Update, rows_of: Mapping[str, Sequence[Relation]], told_cost: int
    ) -> SourceUpdate:
        """The update that has these rows: its first part has the transactions."""
        positions = tuple(position_from_proto(t.position) for t in update.transactions)
        if any(later <= earlier for earlier, later in itertools.pairwise(positions)):
            raise OrderingViolationError(f"source {self._source!r} sent transactions out of order")
        deltas: dict[str, tuple[Relation | None, tuple[int, ...]]] = {}
        subscriptions: dict[str, int] = {}
        for delta in update.deltas:
            if delta.local_view not in self._given:
                raise OrderingViolationError(
                    f"source {self._source!r} sent changes of local view {delta.local_view!r}, "
                    "which it was not given"
                )
            if delta.local_view in deltas:
                raise OrderingViolationError(
                    f"source {self._source!r} sent changes of local view {delta.local_view!r} twice"
                )
            defined = self._reported(delta.local_view)
            if defined is None:
                continue
            touched = checked_touched(delta, len(positions))
            if touched and positions[touched[0]] <= defined.delivered:
                raise OrderingViolationError(
                    f"source {self._source!r} repeated a transaction of local view {delta.local_view!r}"
                )
            rows = checked_delta(rows_of[delta.local_view], defined.view, touched)
            deltas[delta.local_view] = (rows, touched)
            subscriptions[delta.local_view] = defined.subscription
        cost = len(positions) + sum(weight(rows) for rows, _ in deltas.values() if rows is not None)
        if cost > TRUSTED_COST * told_cost:
            raise OrderingViolationError(
                f"source {self._source!r} sent an update that takes {cost} rows, and told {told_cost}"
            )
        return SourceUpdate(
            source=self._source,
            positions=positions,
            batched=tuple(t.batched for t in update.transactions),
            observed_at=update.observed_at.ToDatetime(datetime.UTC),
            deltas=deltas,
            marks=tuple(global_transaction_from_proto(t.part_of) for t in update.transactions),
            subscriptions=subscriptions,
        )
