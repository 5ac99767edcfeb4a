"""What a mediator is started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protos.security.settings import Connection, ServerSecurity


@dataclass(frozen=True)
class ViewSpecConfig:
    """A view as declared. `max_batch` 0 means the mediator's default.

    `maintenance` names the algorithm and `consistency` the level that the view must have; either may be
    empty. `force` allows algorithms that are wrong under concurrency.
    """

    name: str
    sql: str
    maintenance: str = ""
    allow_cross_join: bool = False
    max_batch: int = 0
    consistency: str = ""
    force: bool = False


@dataclass(frozen=True)
class MediatorConfig:
    """A mediator's settings.

    `sources` maps each source's name to its wrapper's address. `max_batch` is how many transactions one
    batched sweep takes at most. `embedded_memory` bounds the embedded engine's buffers; larger joins spill.
    `umq_rows` is how many rows of updates may wait in all queues before wrappers are asked to pause; a view
    that cannot go on and holds more than a quarter of it is parked. `keepalive_seconds` is how long a
    connection may be silent before it is probed, and then until it is given up; 0 never probes.
    `on_lost_history` is what happens when a source no longer has the history that a view needs: `pause` waits
    for a refresh, `resync` refreshes by itself. `security` is how the mediator is protected from its clients,
    `connections` how it reaches the wrapper of each source; one that is not named is reached by plain text,
    on this machine. `metrics` is where Prometheus finds it; None means nowhere.
    """

    listen: str
    warehouse: str
    engine: str = "spark"
    sources: Mapping[str, str] = field(default_factory=dict)
    max_batch: int = 10000
    spark_master: str = "local[*]"
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    views: Sequence[ViewSpecConfig] = ()
    embedded_memory: str = "768MiB"
    umq_rows: int = 2_000_000
    keepalive_seconds: float = 5.0
    on_lost_history: str = "pause"
    security: ServerSecurity = field(default_factory=ServerSecurity)
    connections: Mapping[str, Connection] = field(default_factory=dict)
    metrics: str | None = None
