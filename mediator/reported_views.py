"""The local views that one source reports: what its wrapper was told of, and how far each was delivered.

Here is the half of the ordering contract that concerns updates: they are put together from their parts,
speak only of local views that the wrapper was given, in the order of transactions, and repeat none.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from algebra.engines.contract import Relation
from algebra.errors import OrderingViolationError
from algebra.global_transaction import GlobalTransaction
from algebra.local_view import LocalView
from algebra.position import ORIGIN, Position
from protos.convert import (
    global_transaction_from_proto,
    local_view_to_proto,
    position_from_proto,
    position_to_proto,
)
from protos.incoming import checked_touched, decoded_delta
from protos.lockstep.v1 import wrapper_pb2 as pb


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

    def __init__(self, source: str) -> None:
        self._source = source
        self._defined: dict[str, DefinedView] = {}
        self._given: set[str] = set()
        """Local views that the wrapper was told of on this stream; it may speak of no other."""
        self._parts: list[pb.Update] = []
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
            )
            requests.append(pb.ExchangeRequest(define=define))
        return requests

    def begin_stream(self) -> list[pb.ExchangeRequest]:
        """Forget what the last stream said in part; what defines all local views on a new one."""
        self._given.clear()
        self._position = ORIGIN
        self._parts.clear()
        return self.requests(list(self._defined.values()))

    def begun(self, name: str) -> None:
        """The wrapper reports the local view as it is defined now."""
        if name in self._defined:
            self._defined[name].reported = True

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
        """Every change of the local view up to here has been delivered."""
        return self._defined[name].delivered

    def delivered_under(self, name: str, subscription: int) -> Position | None:
        """The same, if the local view is defined under that subscription; else None."""
        defined = self._defined.get(name)
        return defined.delivered if defined and defined.subscription == subscription else None

    def note_delivered(self, update: SourceUpdate) -> None:
        """The update has been delivered, unless a local view was defined anew meanwhile."""
        for name, (_, touched) in update.deltas.items():
            defined = self._defined.get(name)
            if touched and defined is not None and defined.subscription == update.subscriptions[name]:
                defined.delivered = update.positions[touched[-1]]

    def assemble(self, part: pb.Update) -> SourceUpdate | None:
        """Take a part of an update; the update, decoded and checked, if this is its last part."""
        self._parts.append(part)
        if part.more:
            return None
        parts, self._parts = self._parts, []
        return self._decoded(parts)

    def _decoded(self, parts: Sequence[pb.Update]) -> SourceUpdate:
        """The update that came in these parts: the first has its transactions."""
        update = parts[0]
        named = {delta.local_view for delta in update.deltas}
        if any(delta.local_view not in named for part in parts for delta in part.deltas):
            raise OrderingViolationError(
                f"source {self._source!r} sent rows of a local view that the update does not name"
            )
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
            defined = self._defined.get(delta.local_view)
            if defined is None or not defined.reported:
                continue  # dropped or defined anew while the update was on its way
            touched = checked_touched(delta, len(positions))
            if touched and positions[touched[0]] <= defined.delivered:
                raise OrderingViolationError(
                    f"source {self._source!r} repeated a transaction of local view {delta.local_view!r}"
                )
            payloads = [d.arrow for part in parts for d in part.deltas if d.local_view == delta.local_view]
            rows = decoded_delta([payload for payload in payloads if payload], defined.view, touched)
            deltas[delta.local_view] = (rows, touched)
            subscriptions[delta.local_view] = defined.subscription
        return SourceUpdate(
            source=self._source,
            positions=positions,
            batched=tuple(t.batched for t in update.transactions),
            observed_at=update.observed_at.ToDatetime(datetime.UTC),
            deltas=deltas,
            marks=tuple(global_transaction_from_proto(t.part_of) for t in update.transactions),
            subscriptions=subscriptions,
        )
