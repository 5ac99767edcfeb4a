"""`lockstep adapter`: list adapters, check a source against the contract, install or remove capture."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cli import build, config
from cli.options import AsJson, ConfigFile, DryRun, SourceName
from cli.output import console, emit_json, table
from cli.text import visible, visible_lines

if TYPE_CHECKING:
    from adapters.spi import CaptureProfile

app = typer.Typer(no_args_is_help=True, help="List adapters, check sources, install or remove capture.")

Source = Annotated[str, typer.Option("--source", help="The source.")]


@app.command("list")
def list_adapters(as_json: AsJson = False) -> None:
    """List the installed adapters, and whether what they need is installed too."""
    from adapters import registry
    from algebra.errors import LockstepError

    found: list[dict[str, Any]] = []
    for name, point in registry.available().items():
        problem, captures = "", {}
        try:
            captures = dict(registry.adapter_class(name).captures)
        except LockstepError as error:
            problem = str(error)
        found.append(
            {
                "adapter": name,
                "class": point.value,
                "package": point.dist.name if point.dist else "",
                "problem": problem,
                "captures": [_capture(profile) for profile in captures.values()],
            }
        )
    if as_json:
        emit_json(found)
        return
    rows = []
    for a in found:
        head = (a["adapter"], a["problem"] or "ready", a["package"])
        for capture in a["captures"] or [{"capture": "", "boundaries": "", "strongest_level": ""}]:
            rows.append((*head, capture["capture"], capture["boundaries"], capture["strongest_level"]))
            head = ("", "", "")
    console().print(table(("adapter", "state", "package", "capture", "boundaries", "strongest level"), rows))


def _capture(profile: CaptureProfile) -> dict[str, Any]:
    can = profile.capabilities
    return {
        "capture": can.capture,
        "boundaries": can.boundaries.value,
        "total_order": can.total_order,
        "before_images": can.before_images,
        "history": can.history,
        "needs_write": can.needs_write,
        "global_transactions": can.global_transactions,
        "deletes": profile.deletes,
        "rights": profile.rights,
        "load": profile.load,
        "strongest_level": str(can.level),
    }


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What will stand in `adapter:`.")],
    directory: Annotated[
        Path | None, typer.Option("--directory", help="Where to write it; default: ./lockstep-NAME.")
    ] = None,
) -> None:
    """Write the package of a new adapter: a small one that works, with the conformance kit as its tests."""
    from adapters import registry
    from algebra.errors import AlreadyExistsError
    from cli import scaffold

    scaffold.names(name)
    if name in registry.available():
        raise AlreadyExistsError(f"there is an adapter {name!r} already; choose another name")
    target = directory or Path(f"lockstep-{name}")
    for file in scaffold.write(name, target):
        print(file)
    print(f"next: cd {target} && pip install -e '.[dev]' && pytest")


@app.command("check")
def check(file: ConfigFile, source: SourceName = None, as_json: AsJson = False) -> None:
    """Test sources against the adapter contract, without writing to them; exit code 1 if a check fails.

    A line that begins with -- was not tried, and says why.
    """
    configuration = config.load(file)
    names = configuration.chosen(source)
    build.check_adapters(configuration, names)
    from adapters.conformance import check_source

    results: dict[str, list[dict[str, Any]]] = {}
    out = console()
    for name in names:
        with closing(build.adapter(configuration, name)) as adapter:
            checks = check_source(adapter)
        results[name] = [
            {"check": c.name, "ok": bool(c.ok), "tried": c.tried, "detail": c.detail} for c in checks
        ]
        if as_json:
            continue
        out.print(Text(f"{name} ({configuration.sources[name].adapter})", style="bold"))
        for result in results[name]:
            mark = ("ok  ", "green") if result["ok"] else ("FAIL", "bold red")
            if not result["tried"]:
                mark = ("--  ", "dim")
            detail = f"  {visible(_one_line(result['detail']))}" if result["detail"] else ""
            out.print(
                Text.assemble("  ", mark, f"  {visible(result['check'])}", (detail, "dim")), soft_wrap=True
            )
    if as_json:
        emit_json([{"source": name, "checks": checks} for name, checks in results.items()])
    if not all(result["ok"] for checks in results.values() for result in checks):
        raise typer.Exit(1)


@app.command("prepare")
def prepare(file: ConfigFile, source: Source, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Install capture on a source's relations; a wrapper does it by itself when a view needs it."""
    configuration = config.load(file)
    with closing(build.adapter(configuration, source)) as adapter:
        relations = adapter.config.relations or tuple(adapter.catalog().relations)
        steps = adapter.prepare(relations, dry_run=dry_run)
    _show("prepare", source, steps, dry_run, as_json)


@app.command("remove")
def remove(file: ConfigFile, source: Source, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Remove every trace of capture from a source."""
    configuration = config.load(file)
    with closing(build.adapter(configuration, source)) as adapter:
        steps = adapter.remove(dry_run=dry_run)
    _show("remove", source, steps, dry_run, as_json)


def _one_line(detail: str) -> str:
    """The detail's first line, and how many there are; `--json` has them all."""
    first, *more = detail.splitlines()
    return f"{first} … and {len(more)} more lines" if more else first


def _show(what: str, source: str, steps: list[str], dry_run: bool, as_json: bool) -> None:
    if as_json:
        emit_json({"source": source, "action": what, "dry_run": dry_run, "steps": steps})
        return
    for step in steps:
        print(visible_lines(step))
    if not steps:
        print(f"{source}: nothing to do")
    elif not dry_run:
        print(f"{source}: {'capture is installed' if what == 'prepare' else 'capture is removed'}")
