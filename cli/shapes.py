"""The mediator's answers as plain values: what `--json` prints. The names are part of the interface."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from protos.lockstep.v1 import mediator_pb2 as pb
    from protos.lockstep.v1 import types_pb2


def time(stamp: Timestamp) -> datetime | None:
    """The moment in UTC; None if it was not set."""
    if not (stamp.seconds or stamp.nanos):
        return None
    return stamp.ToDatetime(tzinfo=UTC)


def _iso(stamp: Timestamp) -> str | None:
    moment = time(stamp)
    return moment.isoformat().replace("+00:00", "Z") if moment else None


def position(value: types_pb2.Position) -> dict[str, Any]:
    """A position: its ordinal, and its token if there is one."""
    return {"ordinal": value.ordinal, **({"token": value.token} if value.token else {})}


def vector(value: Mapping[str, types_pb2.Position]) -> dict[str, Any]:
    """Each source's position, by name."""
    return {source: position(value[source]) for source in sorted(value)}


def view(value: pb.View) -> dict[str, Any]:
    """A view without its rows."""
    return {
        "name": value.spec.name,
        "sql": value.spec.sql,
        "maintenance": algorithm(value),
        "maintenance_named": bool(value.spec.maintenance),
        "consistency": value.maintenance.consistency or None,
        "asked_consistency": value.spec.consistency or None,
        "force": value.spec.force,
        "allow_cross_join": value.spec.allow_cross_join,
        "max_batch": value.spec.max_batch,
        "version": value.version,
        "rows": value.rows,
        "state": value.state,
        "problem": value.problem,
        "stale_since": _iso(value.stale_since),
        "waits_for": list(value.waits_for),
        "sources": list(value.sources),
        "vector": vector(value.vector),
        "columns": columns(value.arrow_schema),
        "committed_at": _iso(value.committed_at),
    }


def algorithm(value: pb.View) -> str | None:
    """What keeps the view; None if it is not kept now and its declaration does not say."""
    return value.maintenance.algorithm or value.spec.maintenance or None


def columns(arrow: bytes) -> list[dict[str, str]]:
    """Name and Arrow type of each column."""
    if not arrow:
        return []
    from algebra.arrow_ipc import from_ipc

    return [{"name": field.name, "type": str(field.type)} for field in from_ipc(arrow).schema]


def version(value: pb.Version) -> dict[str, Any]:
    """One version with the transaction that made it."""
    return {
        "version": value.version,
        "source": value.source or None,
        "position": position(value.position) if value.source else None,
        "vector": vector(value.vector),
        "observed_at": _iso(value.observed_at),
        "committed_at": _iso(value.committed_at),
        "lag_seconds": lag(value),
        "changed_rows": value.changed_rows,
        "batched": value.batched,
    }


def lag(value: pb.Version) -> float | None:
    """Seconds from the transaction's observation to its visibility, where both are known."""
    observed, committed = time(value.observed_at), time(value.committed_at)
    return (committed - observed).total_seconds() if observed and committed else None


def status(value: pb.GetStatusResponse) -> dict[str, Any]:
    """The mediator's state with all sources and views."""
    return {
        "engine": value.engine,
        "warehouse": value.warehouse,
        "started_at": _iso(value.started_at),
        "memory_bytes": value.memory_bytes,
        "peak_memory_bytes": value.peak_memory_bytes,
        "problem": value.problem,
        "problem_since": _iso(value.problem_since),
        "waiting_rows": value.waiting_rows,
        "limits": {
            "umq_rows": value.limits.umq_rows,
            "max_batch": value.limits.max_batch,
            "embedded_memory": value.limits.embedded_memory,
            "keepalive_seconds": value.limits.keepalive_seconds,
            "assembled_rows": value.limits.assembled_rows,
            "extent_rows": value.limits.extent_rows,
        },
        "sources": [_source_status(source) for source in value.sources],
        "views": [_view_status(item) for item in value.views],
    }


def _source_status(value: pb.SourceStatus) -> dict[str, Any]:
    return {
        "source": value.source,
        "address": value.address,
        "state": value.state,
        "since": _iso(value.since),
        "heard_at": _iso(value.heard_at),
        "owed_rows": value.owed_rows,
        "position": position(value.position),
        "transactions": value.transactions,
        "queries": value.queries,
        "bytes_received": value.bytes_received,
        "bytes_sent": value.bytes_sent,
        "problem": value.problem,
        "capabilities": {
            "capture": value.capabilities.capture,
            "boundaries": value.capabilities.boundaries,
            "history": value.capabilities.history,
            "total_order": value.capabilities.total_order,
            "before_images": value.capabilities.before_images,
            "needs_write": value.capabilities.needs_write,
            "global_transactions": value.capabilities.global_transactions,
            "bounded_runs": value.capabilities.bounded_runs,
        },
        "memory": wrapper_memory(value.memory) if value.HasField("memory") else None,
    }


def wrapper_memory(value: types_pb2.WrapperMemory) -> dict[str, Any]:
    """A wrapper's memory, and what bounds it."""
    return {
        "memory_bytes": value.memory_bytes,
        "peak_memory_bytes": value.peak_memory_bytes,
        "limits": {
            "max_run_rows": value.max_run_rows,
            "embedded_memory": value.embedded_memory,
            "queue_bytes": value.queue_bytes,
        },
    }


def _view_status(value: pb.ViewStatus) -> dict[str, Any]:
    return {
        "view": value.view,
        "version": value.version,
        "state": value.state,
        "problem": value.problem,
        "stale_since": _iso(value.stale_since),
        "waits_for": list(value.waits_for),
        "parked": value.parked,
        "pending": value.pending,
        "pending_rows": value.pending_rows,
        "batches": value.batches,
        "transactions": value.transactions,
        "queries": value.queries,
        "compensations": value.compensations,
        "rows": value.rows,
        "lag_seconds": value.lag_seconds,
        "lag_p50_seconds": value.lag_p50_seconds,
        "lag_p99_seconds": value.lag_p99_seconds,
    }


def explanation(value: pb.Explanation) -> dict[str, Any]:
    """How a view is maintained."""
    return {
        "maintenance": _maintenance(value.maintenance),
        "hidden_columns": list(value.hidden_columns),
        "local_views": [
            {"name": local.name, "source": local.source, "sql": local.sql} for local in value.local_views
        ],
        "assembly_query": value.assembly_query,
        "sweeps": [{"start": sweep.start, "hops": list(sweep.hops)} for sweep in value.sweeps],
        "queries_per_update": value.queries_per_update,
        "queries_per_batch": value.queries_per_batch,
        "batched_hops": list(value.batched_hops),
        "consolidation_free": value.consolidation_free,
    }


def _maintenance(value: pb.Maintenance) -> dict[str, Any]:
    return {
        "algorithm": value.algorithm,
        "named": value.named,
        "consistency": value.consistency,
        "reasons": list(value.reasons),
        "message_cost": value.message_cost,
        "needs": list(value.needs),
    }
