"""What a wrapper counts, and tells Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.metrics import SECONDS, SIZES, Distribution, Families


@dataclass
class WrapperCounters:
    """What a wrapper has done since it started."""

    transactions: int = 0
    rows: int = 0
    queries: int = 0
    refusals: int = 0
    sent_bytes: int = 0
    run_sizes: Distribution = field(default_factory=lambda: Distribution(SIZES))
    answer_seconds: Distribution = field(default_factory=lambda: Distribution(SECONDS))


def fill(
    families: Families, source: str, counters: WrapperCounters, waiting: int, attached: bool, reachable: bool
) -> None:
    """The wrapper's numbers as they are now."""
    families.gauge("wrapper_attached", "1 if a mediator is attached.", attached, source=source)
    families.gauge("wrapper_source_reachable", "1 if the source answers.", reachable, source=source)
    families.gauge("wrapper_waiting_messages", "Messages that wait (WMQ).", waiting, source=source)
    families.counter("wrapper_transactions", "Transactions reported.", counters.transactions, source=source)
    families.counter("wrapper_rows", "Rows of changes reported.", counters.rows, source=source)
    families.counter("wrapper_queries", "Maintenance queries answered.", counters.queries, source=source)
    families.counter("wrapper_refusals", "Messages refused.", counters.refusals, source=source)
    families.counter("wrapper_sent_bytes", "Bytes sent on Exchange.", counters.sent_bytes, source=source)
    families.histogram(
        "wrapper_run_transactions", "Transactions per report.", counters.run_sizes, source=source
    )
    families.histogram(
        "wrapper_answer_seconds", "Time to answer one query.", counters.answer_seconds, source=source
    )
