"""`lockstep view`: create, list, show, drop, refresh, verify and compact views."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from algebra.errors import ConfigurationError, LockstepError
from cli import shapes, text
from cli.client import DEFAULT_TIMEOUT, MediatorClient
from cli.commands import explain, status
from cli.commands.watch import change_lines
from cli.options import (
    DEFAULT_ADDRESS,
    Address,
    AsJson,
    AskedConsistency,
    Force,
    MaintenanceName,
    Timeout,
    ViewName,
)
from cli.output import console, emit_json, table
from cli.progress import reporter
from protos.lockstep.v1 import mediator_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa

app = typer.Typer(no_args_is_help=True, help="Create, list, show, drop, refresh, verify and compact views.")


@app.command("create")
def create(
    name: ViewName,
    sql: Annotated[str | None, typer.Option("--sql", help="SELECT over `source.relation` tables.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Read the SELECT from this file.")] = None,
    maintenance: MaintenanceName = "",
    consistency: AskedConsistency = None,
    force: Force = False,
    allow_cross_join: Annotated[
        bool, typer.Option("--allow-cross-join", help="Cross joins are wanted.")
    ] = False,
    max_batch: Annotated[
        int,
        typer.Option("--max-batch", min=0, help="Transactions per sweep at most; 0: the mediator's value."),
    ] = 0,
    as_json: AsJson = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Create a view: load it from its sources, then keep it in step with them."""
    spec = pb.ViewSpec(
        name=name,
        sql=_sql(sql, file),
        maintenance=maintenance,
        allow_cross_join=allow_cross_join,
        max_batch=max_batch,
        consistency=consistency or "",
        force=force,
    )
    with MediatorClient(address, timeout) as mediator:
        view = create_view(mediator, spec)
    if as_json:
        emit_json(shapes.view(view))
    else:
        print(f"view {name} is maintained: {text.count(view.rows, 'row')} at version {view.version}, "
              f"{view.maintenance.consistency} by {view.maintenance.algorithm}")  # fmt: skip


def create_view(mediator: MediatorClient, spec: pb.ViewSpec) -> pb.View:
    """Create the view with progress on stderr; returns it as loaded."""
    with reporter(f"view {spec.name}") as progress:
        for answer in mediator.stream(mediator.stub.CreateView, pb.CreateViewRequest(view=spec)):
            if answer.HasField("view"):
                return answer.view
            progress.update(answer.progress)
    raise LockstepError(f"the mediator did not finish creating view {spec.name!r}")


@app.command("list")
def list_views(
    as_json: AsJson = False, address: Address = DEFAULT_ADDRESS, timeout: Timeout = DEFAULT_TIMEOUT
) -> None:
    """List all views."""
    with MediatorClient(address, timeout) as mediator:
        views = mediator.call(mediator.stub.ListViews, pb.ListViewsRequest()).views
    if as_json:
        emit_json([shapes.view(view) for view in views])
        return
    rows = [
        (
            view.spec.name,
            view.state,
            str(view.version),
            text.number(view.rows),
            ", ".join(view.sources),
            shapes.algorithm(view) or "",
            view.maintenance.consistency,
            text.moment(shapes.time(view.committed_at)),
            status.problem(view),
        )
        for view in views
    ]
    headings = ("view", "state", "version", "rows", "sources", "maintenance", "consistency", "committed", "")
    console().print(table(headings, rows, right=("version", "rows")))


@app.command("show")
def show(
    name: ViewName,
    as_json: AsJson = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show one view: its definition, state, columns and how it is maintained."""
    with MediatorClient(address, timeout) as mediator:
        answer = mediator.call(mediator.stub.GetView, pb.GetViewRequest(name=name))
    view = answer.view
    if as_json:
        emit_json({**shapes.view(view), "explanation": shapes.explanation(answer.explanation)})
        return
    out = console()
    state = f"{view.state} ({status.problem(view)})" if view.problem else view.state
    facts = [
        ("view", view.spec.name),
        ("state", state),
        ("version", f"{view.version}, committed {text.moment(shapes.time(view.committed_at))}"),
        ("rows", text.number(view.rows)),
        ("vector", text.vector(view.vector)),
        ("maintenance", shapes.algorithm(view) or "not known while it is not maintained"),
        ("consistency", _consistency(view)),
        ("columns", ", ".join(f"{c['name']} {c['type']}" for c in shapes.columns(view.arrow_schema))),
        ("sql", " ".join(view.spec.sql.split())),
    ]
    for key, value in facts:
        out.print(Text.assemble((f"{key:<12}", "bold"), text.visible(value)), soft_wrap=True)
    if answer.HasField("explanation"):
        explain.show(out, answer.explanation)


def _consistency(view: pb.View) -> str:
    """The level that the view has, and what it was asked to be."""
    level = view.maintenance.consistency or "not known while it is not maintained"
    return level + (f" ({view.spec.consistency} was asked for)" if view.spec.consistency else "")


@app.command("drop")
def drop(
    name: ViewName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Drop a view and remove its data."""
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError(f"dropping view {name!r} removes its data; confirm with --yes")
        typer.confirm(f"Drop view {name} and all its versions?", abort=True)
    with MediatorClient(address, timeout) as mediator:
        mediator.call(mediator.stub.DropView, pb.DropViewRequest(name=name))
    print(f"view {name} is dropped")


@app.command("refresh")
def refresh(
    name: ViewName,
    as_json: AsJson = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Load a view again from its sources, as one new version with what had to change."""
    with MediatorClient(address, timeout) as mediator, reporter(f"view {name}") as progress:
        result = None
        for answer in mediator.stream(mediator.stub.RefreshView, pb.RefreshViewRequest(name=name)):
            if answer.HasField("result"):
                result = answer.result
            else:
                progress.update(answer.progress)
    if result is None:
        raise LockstepError(f"the mediator did not finish refreshing view {name!r}")
    if as_json:
        emit_json({"view": name, "version": result.version, "changed_rows": result.changed_rows})
    else:
        print(f"view {name} is refreshed: {text.count(result.changed_rows, 'row')} changed, "
              f"version {result.version}")  # fmt: skip


@app.command("verify")
def verify(
    name: ViewName,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many differences to show; 0: all.")] = 50,
    as_json: AsJson = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Recompute a view from its sources and compare; exit code 1 if it is wrong."""
    with MediatorClient(address, timeout) as mediator:
        result, differences = verify_view(mediator, name)
    wrong = differences.num_rows + result.hidden_differences
    if as_json:
        emit_json({
            "view": name,
            "version": result.version,
            "vector": shapes.vector(result.vector),
            "rows": result.rows,
            "right": not wrong,
            "differences": [text.plain(row) for row in differences.to_pylist()],
            "hidden_differences": result.hidden_differences,
        })  # fmt: skip
    elif not wrong:
        print(f"view {name} is right: version {result.version} equals the recompute, "
              f"{text.count(result.rows, 'row')}")  # fmt: skip
    else:
        shown = differences.num_rows
        found = f"{text.count(shown, 'row')} of {text.number(result.rows)} differ"
        print(f"view {name} is WRONG at version {result.version}: "
              f"{found}; + has too much, - has too little")  # fmt: skip
        out = console()
        for line, style in change_lines(differences)[: limit or None]:
            out.print(Text(f"  {line}", style=style))
        if limit and shown > limit:
            print(f"  … and {text.number(shown - limit)} more (--limit 0 shows all)")
        if result.hidden_differences:
            print(f"  {text.count(result.hidden_differences, 'further row')} in hidden columns alone")
    if wrong:
        raise typer.Exit(1)


def verify_view(mediator: MediatorClient, name: str) -> tuple[pb.VerifyResult, pa.Table]:
    """The comparison with the recompute, and its differing rows with `_count`."""
    from algebra.arrow_ipc import from_ipc

    with reporter(f"verify {name}") as progress:
        for answer in mediator.stream(mediator.stub.VerifyView, pb.VerifyViewRequest(name=name)):
            if answer.HasField("result"):
                return answer.result, from_ipc(answer.result.arrow)
            progress.update(answer.progress)
    raise LockstepError(f"the mediator did not finish verifying view {name!r}")


@app.command("compact")
def compact(
    name: ViewName,
    as_json: AsJson = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Fold a view's changes into its state; every version stays readable."""
    with MediatorClient(address, timeout) as mediator:
        done = mediator.call(mediator.stub.CompactView, pb.CompactViewRequest(name=name))
    if as_json:
        emit_json({
            "view": name,
            "version": done.version,
            "files_before": done.files_before,
            "files_after": done.files_after,
        })  # fmt: skip
    else:
        print(f"view {name} is compacted at version {done.version}: "
              f"{text.count(done.files_before, 'file')} before, {done.files_after} after")  # fmt: skip


def _sql(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise ConfigurationError("give the view's SELECT with either --sql or --file")
    if file is None:
        return sql or ""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read ({error})") from error
