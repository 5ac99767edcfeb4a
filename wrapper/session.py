"""A session: one attached mediator, as the query processor knows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from algebra.errors import LockstepError
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.allow_list import UNRESTRICTED, MediatorPolicy
from wrapper.message_queue import OrderMessageQueue
from wrapper.order_assignment import OrderAssignment
from wrapper.reported_view import ReportedView


@dataclass
class Session:
    """One attached mediator: its local views, its unanswered queries, and its credit in rows.

    `defining`: more local views are on their way, and nothing is reported or answered before they are there.
    `behind`: the last snapshot showed more than was reported. `policy`: what it may see. `refused` is told
    what it was refused.
    """

    mediator: str
    queue: OrderMessageQueue
    policy: MediatorPolicy = UNRESTRICTED
    refused: Callable[[str, LockstepError], None] = lambda what, error: None
    order: OrderAssignment = field(init=False)
    views: dict[str, ReportedView] = field(default_factory=dict)
    queries: deque[Arrival] = field(default_factory=deque)
    credit: int = 0
    defining: bool = False
    behind: bool = False
    told: str = ""
    """What the mediator was last told of a source that does not answer; empty if it does."""
    received_bytes: int = 0
    """Counted by who reads the stream; what was handled of it, by the query processor."""
    handled_bytes: int = 0

    def __post_init__(self) -> None:
        self.order = OrderAssignment(self.queue)

    def tell(
        self,
        error: LockstepError,
        source: str,
        *,
        query_id: int | None = None,
        local_view: str = "",
        subscription: int = 0,
    ) -> None:
        """Send the mediator an error, in order with everything else, as far as it may hear it."""
        told = self.policy.told(error, source)
        self.order.send_error(
            told.reason,
            told.message,
            query_id=query_id,
            local_view=local_view,
            subscription=subscription,
        )

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that were read and not yet handled, or of queries not yet answered."""
        return self.received_bytes - self.handled_bytes

    @property
    def relations(self) -> set[str]:
        """The relations of all its local views."""
        return {relation for reported in self.views.values() for relation in reported.view.relations}

    @property
    def is_level(self) -> bool:
        """Whether progress may be told: a local view that was defined last may still be behind the others."""
        return all(reported.cursor >= self.order.reported for reported in self.views.values())

    @property
    def may_follow(self) -> bool:
        """Whether the source may be looked at: to answer, or because there is room for what it shows."""
        return not self.defining and bool(self.queries or self.credit > 0)

    @property
    def is_due(self) -> bool:
        """Whether there is something to do, also if nothing happens in the source."""
        return bool(self.queries) or (self.behind and self.may_follow)


@dataclass(frozen=True)
class Arrival:
    """A message and the session it came on."""

    session: Session
    request: pb.ExchangeRequest
    size: int = 0
