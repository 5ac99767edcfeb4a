"""`lockstep explain`: how a view is, or would be, maintained."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from cli import shapes
from cli.client import DEFAULT_TIMEOUT, MediatorClient
from cli.options import (
    DEFAULT_ADDRESS,
    Address,
    AsJson,
    AskedConsistency,
    Force,
    MaintenanceName,
    Timeout,
)
from cli.output import console, emit_json
from cli.text import visible
from protos.lockstep.v1 import mediator_pb2 as pb

_VIEW_NAME = re.compile(r"^\s*[A-Za-z_][A-Za-z0-9_]*\s*$")


def explain(
    what: Annotated[str, typer.Argument(metavar="SQL|VIEW", help="A view's name, or a SELECT.")],
    allow_cross_join: Annotated[
        bool, typer.Option("--allow-cross-join", help="Cross joins are wanted; for a SELECT.")
    ] = False,
    maintenance: MaintenanceName = "",
    consistency: AskedConsistency = None,
    force: Force = False,
    as_json: AsJson = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show how a view is kept: by what, how consistent, its local views and sweeps, and what updates cost.

    With --maintenance or --consistency it is shown as it would be kept then.
    """
    with MediatorClient(address, timeout) as mediator:
        if not _VIEW_NAME.match(what):
            spec = pb.ViewSpec(name="explained", sql=what, allow_cross_join=allow_cross_join)
            request = pb.ExplainRequest(spec=spec)
        elif maintenance or consistency:
            view = mediator.call(mediator.stub.GetView, pb.GetViewRequest(name=what.strip())).view
            request = pb.ExplainRequest(spec=view.spec)
        else:
            request = pb.ExplainRequest(view=what.strip())
        if request.HasField("spec"):
            request.spec.maintenance = maintenance
            request.spec.consistency = consistency or ""
            request.spec.force = force
        explanation = mediator.call(mediator.stub.Explain, request).explanation
    if as_json:
        emit_json(shapes.explanation(explanation))
    else:
        show(console(), explanation)


def show(out: Console, explanation: pb.Explanation) -> None:
    """Print an explanation for people."""
    _heading(out, "maintenance")
    _maintenance(out, explanation.maintenance, len(explanation.local_views))
    if explanation.hidden_columns:
        _line(out, f"  hidden columns  {', '.join(explanation.hidden_columns)}")
    _heading(out, "local views")
    for local in explanation.local_views:
        _line(out, f"  {local.name} at {local.source}", "cyan")
        _sql(out, local.sql, "    ")
    _heading(out, "assembly query")
    _sql(out, explanation.assembly_query, "  ")
    _heading(out, "sweeps, by the local view that changed")
    for sweep in explanation.sweeps:
        _line(out, f"  {sweep.start}", "cyan")
        for at, hop in enumerate(sweep.hops, start=1):
            _line(out, f"    {at}. {hop}")
    _heading(out, "batched sweep")
    for at, hop in enumerate(explanation.batched_hops, start=1):
        _line(out, f"  {at}. {hop}")
    _heading(out, "cost")
    _line(out, f"  queries per update  {explanation.queries_per_update}")
    _line(out, f"  queries per batch   at most {explanation.queries_per_batch}, whatever its size")
    merging = "not needed: no two ways lead to one row" if explanation.consolidation_free else "needed"
    _line(out, f"  merging of rows     {merging}")


def _maintenance(out: Console, maintenance: pb.Maintenance, local_views: int) -> None:
    how = "named" if maintenance.named else "chosen"
    _line(out, f"  algorithm       {maintenance.algorithm} ({how})")
    _line(out, f"  consistency     {maintenance.consistency}")
    for reason in maintenance.reasons:
        _line(out, f"    {reason}")
    _line(out, f"  message cost    {maintenance.message_cost} (n = {local_views})")
    _line(out, f"  needs           {', '.join(maintenance.needs) or 'nothing'}")


def _heading(out: Console, words: str) -> None:
    _line(out, words, "bold")


def _sql(out: Console, sql: str, indent: str) -> None:
    for line in sql.strip().splitlines():
        _line(out, indent + line)


def _line(out: Console, line: str, style: str = "") -> None:
    out.print(Text(visible(line), style=style), soft_wrap=True)
