"""`lockstep status`: how sources, queues and views are doing."""

from __future__ import annotations

from cli import shapes, text
from cli.client import DEFAULT_TIMEOUT, MediatorClient
from cli.options import DEFAULT_ADDRESS, Address, AsJson, Timeout
from cli.output import console, emit_json, table
from protos.lockstep.v1 import mediator_pb2 as pb

_SOURCES = (
    "source", "state", "position", "transactions", "queries", "received", "sent", "capture", "boundaries",
    "memory", "limits", "address", "problem",
)  # fmt: skip
_VIEWS = (
    "view", "state", "version", "pending", "transactions", "batches", "queries", "compensations",
    "rows changed", "lag", "p50", "p99", "problem",
)  # fmt: skip
_TEXTS = ("source", "view", "state", "capture", "boundaries", "memory", "limits", "address", "problem")


def status(
    as_json: AsJson = False, address: Address = DEFAULT_ADDRESS, timeout: Timeout = DEFAULT_TIMEOUT
) -> None:
    """Show how the mediator, its sources and its views are doing."""
    with MediatorClient(address, timeout) as mediator:
        answer = mediator.call(mediator.stub.GetStatus, pb.GetStatusRequest())
    if as_json:
        emit_json(shapes.status(answer))
        return
    out = console()
    warehouse = f"warehouse {answer.warehouse}, " if answer.warehouse else ""
    out.print(
        f"mediator {address}: engine {answer.engine}, {warehouse}"
        f"{text.size(answer.memory_bytes)} (peak {text.size(answer.peak_memory_bytes)}), "
        f"since {text.moment(shapes.time(answer.started_at))}",
        markup=False,
        soft_wrap=True,
    )
    limits = answer.limits
    out.print(
        f"limits: {text.number(answer.waiting_rows)} of {text.number(limits.umq_rows)} rows wait (umq_rows), "
        f"batches of {text.number(limits.max_batch)} (max_batch), joins in {limits.embedded_memory} "
        f"(embedded_memory), silence of {limits.keepalive_seconds:g} s is probed (keepalive_seconds), "
        f"a source may send {text.number(limits.assembled_rows)} rows at once (assembled_rows) and "
        f"{text.number(limits.extent_rows)} for a load (extent_rows)",
        markup=False,
        soft_wrap=True,
    )
    if answer.problem:
        since = text.moment(shapes.time(answer.problem_since))
        out.print(
            f"no version stored since {since}: {text.visible(answer.problem)}",
            style="bold red",
            markup=False,
            soft_wrap=True,
        )
    for headings, rows in (
        (_SOURCES, [_source(source) for source in answer.sources]),
        (_VIEWS, [_view(view) for view in answer.views]),
    ):
        kept = _without_empty(headings, rows)
        out.print(table(*kept, right=[heading for heading in kept[0] if heading not in _TEXTS]))


def _without_empty(
    headings: tuple[str, ...], rows: list[tuple[str, ...]]
) -> tuple[list[str], list[list[str]]]:
    """The table without the column `problem` if there is none."""
    kept = [at for at, heading in enumerate(headings) if heading != "problem" or any(row[at] for row in rows)]
    return [headings[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _source(source: pb.SourceStatus) -> tuple[str, ...]:
    return (
        source.source,
        source.state,
        str(source.position.ordinal),
        text.number(source.transactions),
        text.number(source.queries),
        text.size(source.bytes_received),
        text.size(source.bytes_sent),
        source.capabilities.capture,
        source.capabilities.boundaries,
        *_memory(source),
        source.address,
        source.problem,
    )


def _memory(source: pb.SourceStatus) -> tuple[str, str]:
    """What the wrapper's process takes, and what bounds it."""
    if not source.HasField("memory"):
        return "", ""
    memory = source.memory
    runs = (
        f"runs of {text.number(memory.max_run_rows)} rows" if source.capabilities.bounded_runs else "no runs"
    )
    return (
        f"{text.size(memory.memory_bytes)} (peak {text.size(memory.peak_memory_bytes)})",
        f"{runs}, joins in {memory.embedded_memory}",
    )


def _view(view: pb.ViewStatus) -> tuple[str, ...]:
    return (
        view.view,
        view.state,
        str(view.version),
        text.number(view.pending),
        text.number(view.transactions),
        text.number(view.batches),
        text.number(view.queries),
        text.number(view.compensations),
        text.number(view.rows),
        text.seconds(view.lag_seconds),
        text.seconds(view.lag_p50_seconds),
        text.seconds(view.lag_p99_seconds),
        problem(view),
    )


def problem(view: pb.ViewStatus | pb.View) -> str:
    """Why a view is not kept now, and since when; empty if it is."""
    since = shapes.time(view.stale_since)
    return f"{view.problem}, since {text.moment(since)}" if view.problem and since else view.problem
