"""A MediatorService whose answers are written down here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from algebra.arrow_ipc import to_ipc
from algebra.errors import NotFoundError, SourceUnavailableError
from protos.lockstep.v1 import mediator_pb2 as pb
from protos.lockstep.v1 import mediator_pb2_grpc, types_pb2
from protos.status import abort

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
ROWS = pa.table({"name": ["Ada", "B|en\n", None], "qty": pa.array([1, 22, 3], pa.int64())})
CHANGE = pa.table({"name": ["Ada", "Ben"], "qty": [1, 2], "_count": pa.array([-1, 2], pa.int64())})
NOTHING = CHANGE.slice(0, 0)


def version(number: int, source: str = "shop", *, batched: bool = False) -> pb.Version:
    made = pb.Version(version=number, source=source, changed_rows=2, batched=batched)
    made.position.ordinal = number * 10
    made.vector["shop"].ordinal = number * 10
    made.vector["crm"].ordinal = 7
    made.observed_at.FromDatetime(NOON)
    made.committed_at.FromDatetime(NOON.replace(microsecond=250_000))
    return made


MAINTENANCE = pb.Maintenance(
    algorithm="nested-sweep",
    consistency="strong",
    reasons=["nested-sweep gives strong consistency", "source shop tells every transaction from the next"],
    message_cost="at most n-1",
    needs=["one local view per source"],
)


def view(name: str) -> pb.View:
    made = pb.View(
        spec=pb.ViewSpec(name=name, sql="SELECT 1\n  FROM t", consistency="weak"),
        version=12,
        rows=3456,
        arrow_schema=to_ipc(ROWS.slice(0, 0)),
        state="maintained",
        sources=["crm", "shop"],
        maintenance=MAINTENANCE,
    )
    made.vector["shop"].ordinal = 120
    made.committed_at.FromDatetime(NOON)
    return made


EXPLANATION = pb.Explanation(
    local_views=[pb.ExplainedLocalView(name="v_shop", source="shop", sql="SELECT o.id\nFROM orders o")],
    assembly_query="SELECT * FROM v_shop JOIN v_crm ON TRUE",
    sweeps=[pb.ExplainedSweep(start="v_shop", hops=["v_crm ON cust = id"])],
    queries_per_update=1,
    queries_per_batch=2,
    batched_hops=["v_shop -> v_crm", "v_crm -> v_shop"],
    consolidation_free=True,
    maintenance=MAINTENANCE,
    hidden_columns=["_key_o_id"],
)


class FakeMediator(mediator_pb2_grpc.MediatorServiceServicer):
    """Answers from the constants above; `requests` keeps what was asked."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[Any] = []
        self.wrong = False
        """VerifyView finds differences."""
        self.wrong_keys = 0
        """How many more it finds in hidden columns."""
        self.down = False
        """A source of the views does not answer."""

    def CreateView(self, request: pb.CreateViewRequest, context: Any) -> Iterator[pb.CreateViewResponse]:
        self.requests.append(request)
        if self.down:
            abort(context, SourceUnavailableError("source 'shop' does not answer"))
        yield pb.CreateViewResponse(progress=pb.LoadProgress(phase="plan"))
        for rows in (10, 1000):
            step = pb.LoadProgress(phase="load", local_view="v_shop", rows=rows, row_estimate=500)
            yield pb.CreateViewResponse(progress=step)
        yield pb.CreateViewResponse(progress=pb.LoadProgress(phase="join"))
        yield pb.CreateViewResponse(view=view(request.view.name))

    def DropView(self, request: pb.DropViewRequest, context: Any) -> pb.DropViewResponse:
        self.requests.append(request)
        if request.name == "nobody":
            abort(context, NotFoundError("there is no view 'nobody'"))
        return pb.DropViewResponse()

    def RefreshView(self, request: pb.RefreshViewRequest, context: Any) -> Iterator[pb.RefreshViewResponse]:
        yield pb.RefreshViewResponse(result=pb.RefreshResult(version=13, changed_rows=1))

    def ListViews(self, request: pb.ListViewsRequest, context: Any) -> pb.ListViewsResponse:
        return pb.ListViewsResponse(views=[view("order_book"), view("stock")])

    def GetView(self, request: pb.GetViewRequest, context: Any) -> pb.GetViewResponse:
        if request.name == "waiting":
            found = view("waiting")
            found.ClearField("maintenance")
            return pb.GetViewResponse(view=found)
        return pb.GetViewResponse(view=view(request.name), explanation=EXPLANATION)

    def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        source = pb.SourceStatus(
            source="shop", address="127.0.0.1:7001", state="connected", transactions=1234
        )
        source.capabilities.CopyFrom(
            types_pb2.Capabilities(capture="trigger", boundaries="exact where known")
        )
        status = pb.ViewStatus(view="order_book", version=12, state="maintained", lag_seconds=0.25)
        return pb.GetStatusResponse(engine="duckdb", warehouse="wh", sources=[source], views=[status])

    def Query(self, request: pb.QueryRequest, context: Any) -> Iterator[pb.QueryResponse]:
        self.requests.append(request)
        yield pb.QueryResponse(arrow=to_ipc(ROWS.slice(0, 2)), versions={"order_book": 12})
        yield pb.QueryResponse(arrow=to_ipc(ROWS.slice(2)))
        yield pb.QueryResponse(last=True)

    def WatchView(self, request: pb.WatchViewRequest, context: Any) -> Iterator[pb.WatchViewResponse]:
        self.requests.append(request)
        yield pb.WatchViewResponse(version=version(1), arrow=to_ipc(CHANGE))
        yield pb.WatchViewResponse(version=version(2, "crm", batched=True), arrow=to_ipc(NOTHING))

    def GetHistory(self, request: pb.GetHistoryRequest, context: Any) -> pb.GetHistoryResponse:
        self.requests.append(request)
        return pb.GetHistoryResponse(versions=[version(2, batched=True), version(1), version(0, "")])

    def VerifyView(self, request: pb.VerifyViewRequest, context: Any) -> Iterator[pb.VerifyViewResponse]:
        yield pb.VerifyViewResponse(progress=pb.LoadProgress(phase="load", local_view="v_shop", rows=1))
        differences = to_ipc(CHANGE if self.wrong else NOTHING)
        result = pb.VerifyResult(version=12, rows=3, arrow=differences, hidden_differences=self.wrong_keys)
        yield pb.VerifyViewResponse(result=result)

    def CompactView(self, request: pb.CompactViewRequest, context: Any) -> pb.CompactViewResponse:
        return pb.CompactViewResponse(version=12, files_before=20, files_after=1)

    def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainResponse:
        self.requests.append(request)
        return pb.ExplainResponse(explanation=EXPLANATION)
