"""What the parts of a mediator share: its views, channels, engine and warehouse, and the lock over them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from algebra.engines.contract import Engine
from algebra.errors import LockstepError
from mediator.channel import SourceChannel
from mediator.config import MediatorConfig
from mediator.views import MaintainedView
from mediator.warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)


@dataclass
class MediatorState:
    """One mediator's state. `changed` guards `views`, their queues, `owed` and `holds`.

    It is notified when updates are delivered, versions installed, views come or go.
    """

    config: MediatorConfig
    warehouse: Warehouse
    engine: Engine
    channels: Mapping[str, SourceChannel] = field(default_factory=dict)
    views: dict[str, MaintainedView] = field(default_factory=dict)
    detached: dict[str, str] = field(default_factory=dict)
    """Stored views that are not kept yet, and why."""
    owed: dict[str, int] = field(default_factory=dict)
    """Rows that each source has sent and not yet been given room for again."""
    holds: int = 0
    """How many loads still need history that sources would trim if it were acknowledged."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    stopped: threading.Event = field(default_factory=threading.Event)

    def notify(self) -> None:
        """Have everyone who waits for a change look again."""
        with self.changed:
            self.changed.notify_all()

    def follow(self, view: MaintainedView) -> None:
        """Have the changes of a view's local views reported, from its vector on."""
        for source in view.sources:
            local_views = [local for local in view.local_views if local.source == source]
            self.channels[source].define(local_views, view.vector[source])

    def pause(self, view: MaintainedView, error: LockstepError) -> None:
        """Stop keeping a view until it is refreshed; what it holds stays readable."""
        with self.changed:
            view.problem = error.message
            self.changed.notify_all()
        log.error("view %s is paused: %s (lockstep view refresh %s)", view.name, error, view.name)

    @contextmanager
    def acknowledgements_held(self) -> Iterator[None]:
        """Keep sources from trimming what a load still needs."""
        with self.changed:
            self.holds += 1
        try:
            yield
        finally:
            with self.changed:
                self.holds -= 1
