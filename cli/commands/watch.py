"""`lockstep watch`: a view's changes as they become visible."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from cli import shapes, text
from cli.client import DEFAULT_TIMEOUT, MediatorClient
from cli.options import DEFAULT_ADDRESS, Address, Timeout
from cli.output import console
from protos.lockstep.v1 import mediator_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa

COUNT = "_count"


def watch(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    after: Annotated[
        int | None, typer.Option("--after", min=0, help="Begin after this version; default: the newest.")
    ] = None,
    max_versions: Annotated[
        int | None, typer.Option("--max-versions", min=1, help="Stop after this many versions.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line per version.")] = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Follow a view: one block per version, + for rows that came and - for rows that went. Ctrl-C ends it."""
    request = pb.WatchViewRequest(name=view)
    if after is not None:
        request.after = after
    out = console()
    with MediatorClient(address, timeout) as mediator:
        changes = mediator.stream(mediator.stub.WatchView, request)
        try:
            for change in islice(changes, max_versions):
                if as_json:
                    print(text.visible_json(document(change)), flush=True)
                else:
                    show(out, change)
        except KeyboardInterrupt:
            return


def document(change: pb.WatchViewResponse) -> dict[str, Any]:
    """The version and its counted rows as plain values."""
    rows = [text.plain(row) for row in _table(change).to_pylist()]
    return {**shapes.version(change.version), "changes": rows}


def show(out: Console, change: pb.WatchViewResponse) -> None:
    """Print the block of one version."""
    version = change.version
    made_by = f"{version.source}@{version.position.ordinal}" if version.source else "load"
    heading = f"version {version.version}  {made_by}  {text.moment(shapes.time(version.committed_at))}"
    out.print(Text(text.visible(heading) + ("  batched" if version.batched else ""), style="bold"))
    rows = _table(change)
    if not rows.num_rows:
        out.print(Text("  no row changed", style="dim"))
        return
    names = " | ".join(text.cell(name) for name in rows.column_names if name != COUNT)
    out.print(Text(f"    {names}", style="dim"))
    for line, style in change_lines(rows):
        out.print(Text(f"  {line}", style=style))
    out.file.flush()


def change_lines(rows: pa.Table) -> list[tuple[str, str]]:
    """Each counted row as a signed line with its style; rows that went come first."""
    lines = []
    for row in sorted(rows.to_pylist(), key=lambda row: bool(row[COUNT] > 0)):
        amount = row.pop(COUNT)
        times = f"  (×{abs(amount)})" if abs(amount) > 1 else ""
        sign, style = ("+", "green") if amount > 0 else ("-", "red")
        lines.append((f"{sign} {' | '.join(text.cell(value) for value in row.values())}{times}", style))
    return lines


def _table(change: pb.WatchViewResponse) -> pa.Table:
    from algebra.arrow_ipc import from_ipc

    return from_ipc(change.arrow)
