"""`lockstep history`: the versions of a view."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import shapes, text
from cli.client import DEFAULT_TIMEOUT, MediatorClient
from cli.options import DEFAULT_ADDRESS, Address, AsJson, Timeout
from cli.output import console, emit_json, table
from protos.lockstep.v1 import mediator_pb2 as pb

_HEADINGS = ("version", "source", "position", "rows changed", "committed", "lag", "vector", "")


def history(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="How many versions at most; 0: all.")
    ] = 20,
    as_json: AsJson = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """List a view's versions, newest first: which transaction of which source made each."""
    with MediatorClient(address, timeout) as mediator:
        versions = _versions(mediator, view, limit)
    if as_json:
        emit_json([shapes.version(version) for version in versions])
        return
    numbers = ("version", "position", "rows changed", "lag")
    console().print(table(_HEADINGS, map(_row, versions), right=numbers))


def _versions(mediator: MediatorClient, view: str, limit: int) -> list[pb.Version]:
    """The newest versions, `limit` of them or all; one response holds a bounded number."""
    request = pb.GetHistoryRequest(name=view, limit=limit)
    found: list[pb.Version] = []
    while True:
        page = mediator.call(mediator.stub.GetHistory, request).versions
        found += page
        if not page or page[-1].version == 0 or (limit and len(found) >= limit):
            return found
        request = pb.GetHistoryRequest(name=view, limit=max(limit - len(found), 0), before=page[-1].version)


def _row(version: pb.Version) -> tuple[str, ...]:
    return (
        str(version.version),
        version.source or "(load)",
        str(version.position.ordinal) if version.source else "",
        text.number(version.changed_rows),
        text.moment(shapes.time(version.committed_at)),
        text.seconds(shapes.lag(version)),
        text.vector(version.vector),
        "batched" if version.batched else "",
    )
