"""What a mediator tells Prometheus: its sources, its views, and what their maintenance costs."""

from __future__ import annotations

from mediator.mediator import Mediator
from mediator.views import MaintainedView
from protos.convert import now
from protos.metrics import Families


def fill(mediator: Mediator, families: Families) -> None:
    """The mediator's numbers as they are now."""
    families.gauge("waiting_rows", "Rows of updates that wait in all queues.", mediator.waiting_rows)
    families.gauge(
        "warehouse_writable", "1 if versions can be stored, 0 while not.", not mediator.storage_problem[0]
    )
    families.histogram("commit_seconds", "Time of one commit to the warehouse.", mediator.commit_seconds)
    for source, channel in mediator.channels.items():
        counters = channel.counters
        families.gauge(
            "source_connected", "1 if wrapper and source answer.", channel.connected, source=source
        )
        families.gauge(
            "source_position", "The last position heard of.", channel.position.ordinal, source=source
        )
        families.counter(
            "source_transactions", "Transactions received.", counters.transactions, source=source
        )
        families.counter("source_queries", "Maintenance queries sent.", counters.queries, source=source)
        families.counter("source_received_bytes", "Bytes received.", counters.bytes_received, source=source)
        families.counter("source_sent_bytes", "Bytes sent.", counters.bytes_sent, source=source)
        families.gauge(
            "source_owed_rows", "Rows received and not yet given room for again.", channel.owed, source=source
        )
    with mediator.changed:
        for view in mediator.views.values():
            _maintained(view.name, not view.problem, families)
            _view(mediator, view, families)
        for name in mediator.detached:
            _maintained(name, False, families)


def _maintained(name: str, maintained: bool, families: Families) -> None:
    text = "1 if the view is kept, 0 if it is paused or could not be taken up since the start."
    families.gauge("view_maintained", text, maintained, view=name)


def _view(mediator: Mediator, view: MaintainedView, families: Families) -> None:
    counters, name = view.counters, view.name
    families.gauge("view_version", "The newest visible version.", view.version, view=name)
    families.gauge("view_pending_transactions", "Transactions that wait.", len(view.queue), view=name)
    families.gauge("view_pending_rows", "Rows of changes that wait.", view.queue.rows, view=name)
    families.counter("view_batches", "Batches installed.", counters.batches, view=name)
    families.counter("view_transactions", "Transactions installed.", counters.transactions, view=name)
    families.counter("view_queries", "Maintenance queries asked.", counters.queries, view=name)
    families.counter("view_compensations", "Answers compensated.", counters.compensations, view=name)
    families.counter("view_rows", "View rows changed.", counters.rows, view=name)
    families.histogram("view_batch_transactions", "Transactions per batch.", counters.batch_sizes, view=name)
    last = counters.lags[-1] if counters.lags else 0.0
    families.gauge(
        "view_lag_seconds", "From observation to commit of a transaction: the last.", last, view=name
    )
    families.gauge("view_lag_p99_seconds", "The 99th percentile.", counters.lag(0.99), view=name)
    for source in view.sources:
        families.gauge(
            "view_source_lag_seconds",
            "For how long a view may lack something of a source; 0 if it shows all that is known.",
            _lag(mediator, view, source),
            view=name,
            source=source,
        )


def _lag(mediator: Mediator, view: MaintainedView, source: str) -> float:
    """The age of the oldest that waits, or since when nothing could come: both are lack of news."""
    since = [run.observed_at for run in view.queue.runs if run.source == source]
    since += [moment for moment in (view.parked_since, mediator.channels[source].away_since) if moment]
    return max(0.0, (now() - min(since)).total_seconds()) if since else 0.0
