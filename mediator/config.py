"""What a mediator is started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protos.security.settings import Connection, ServerSecurity

ASSEMBLED_ROWS = 10_000_000
EXTENT_ROWS = 1_000_000_000


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
    batched sweep takes at most. `spark_secrets` are further Spark settings, which no command line and no file
    shows. `embedded_memory` bounds the embedded engine's buffers; larger joins spill.
    `umq_rows` is how many rows of updates may wait in all queues, by weight; each source may send its share
    of it. Views that cannot go on and hold more than a quarter of such a share are parked.
    `assembled_rows` is by how many rows, by weight, one source may overdraw its share, because a transaction
    is never split, and how many its answers may have that have not ended. `extent_rows` is how many it may
    send for one load. A source that sends more is refused.
    `keepalive_seconds` is how long a connection may be silent before it is probed, and then until it is given
    up; 0 never probes. `late_seconds` is how long the views of a round wait for one whose source does not
    answer.
    One query of a client may take `query_seconds` (0: any time), `query_memory` and `query_disk`, and
    `query_processes` of them run at once.
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
    spark_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    views: Sequence[ViewSpecConfig] = ()
    embedded_memory: str = "768MiB"
    umq_rows: int = 2_000_000
    assembled_rows: int = ASSEMBLED_ROWS
    extent_rows: int = EXTENT_ROWS
    keepalive_seconds: float = 5.0
    late_seconds: float = 10.0
    query_seconds: float = 300.0
    query_memory: str = "1GiB"
    query_disk: str = "4GiB"
    query_processes: int = 16
    on_lost_history: str = "pause"
    security: ServerSecurity = field(default_factory=ServerSecurity)
    connections: Mapping[str, Connection] = field(default_factory=dict)
    metrics: str | None = None

    @property
    def credit_rows(self) -> int:
        """What one source may send before it gets room again."""
        return max(1, self.umq_rows // max(1, len(self.sources)))
