"""`lockstep bench`: options in, tables out. Everything heavy is imported when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from algebra.errors import ConfigurationError

if TYPE_CHECKING:
    from lab.bench.plan import Plan

app = typer.Typer(invoke_without_command=True, help="Measure views, or what capture costs writers.")

ENGINES = ("duckdb", "spark", "auto")
MODES = ("backlog", "live")


@app.callback()
def bench(
    context: typer.Context,
    sf: Annotated[str, typer.Option(help="TPC-H scale factors.")] = "0.01,0.1",
    transactions: Annotated[int, typer.Option(min=1, help="Transactions per run.")] = 10_000,
    batch: Annotated[str, typer.Option(help="Transactions per batch, at most.")] = "1,100,1000,10000",
    engine: Annotated[str, typer.Option(help="Engines of the mediator.")] = ",".join(ENGINES),
    mode: Annotated[str, typer.Option(help="Whether a backlog or live writers are measured.")] = ",".join(
        MODES
    ),
    limit: Annotated[
        str, typer.Option(help="Fewer transactions for some batch sizes, as SIZE=TRANSACTIONS.")
    ] = "1=200,100=2000",
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each case; the median is shown.")] = 1,
    freshness: Annotated[
        int, typer.Option(min=0, help="Single transactions to time at rest; 0 for none.")
    ] = 30,
    source_c: Annotated[str, typer.Option(help="The database of source c: sqlite or duckdb.")] = "sqlite",
    data: Annotated[
        Path | None, typer.Option(help="Existing data and streams (sf<SF>/base, k<n>.jsonl); else generated.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Working directory; else a temporary one.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep sources, warehouses and logs of every run.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything measured to this file.")
    ] = None,
    peers_results: Annotated[
        Path | None, typer.Option(help="results.jsonl of other systems on the same streams, for ratios.")
    ] = None,
    stalled: Annotated[
        float, typer.Option(min=1, help="Seconds without a new version after which a run is given up.")
    ] = 300.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A short look: SF 0.01, DuckDB, 1,000 transactions.")
    ] = False,
) -> None:
    """Measure throughput, freshness and cost on a TPC-H-shaped workload over three sources."""
    if context.invoked_subcommand is not None:
        return
    import shutil
    import signal
    import tempfile

    from rich.console import Console

    from lab.bench.peers import read_peers
    from lab.bench.plan import Plan
    from lab.bench.report import print_report, write_json
    from lab.bench.results import Mode
    from lab.bench.runner import Runner

    peers = read_peers(peers_results) if peers_results else []
    root = (directory or Path(tempfile.mkdtemp(prefix="lockstep-bench-"))).resolve()
    plan = Plan(
        directory=root,
        scale_factors=tuple(_scale_factor(word) for word in _words("--sf", sf)),
        engines=_chosen("--engine", engine, ENGINES),
        modes=tuple(Mode(word) for word in _chosen("--mode", mode, MODES)),
        batches=tuple(_number("--batch", word) for word in _words("--batch", batch)),
        transactions=transactions,
        limits=_limits(limit),
        repeat=repeat,
        freshness=freshness,
        source_c=_chosen("--source-c", source_c, ("sqlite", "duckdb"))[0],
        data=data.resolve() if data else None,
        keep=keep,
        stalled=stalled,
    )
    if quick:
        plan = _quick(plan)
    # Asked to end, the benchmark stops its own processes first.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    progress = Console(stderr=True)
    results = Runner(
        plan, lambda line: progress.print(line, markup=False, highlight=False, soft_wrap=True)
    ).run()
    out = Console()
    print_report(results, peers, out if out.is_terminal else Console(width=180))
    if json_file:
        write_json(json_file, results, peers)
    if keep or results.failures:
        progress.print(f"kept in {root}", highlight=False, soft_wrap=True)
    elif directory is None:
        shutil.rmtree(root, ignore_errors=True)
    if results.failures:
        raise typer.Exit(1)


@app.command("capture")
def capture(
    adapter: Annotated[str, typer.Option(help="Adapters to measure; default: all that can be.")] = "",
    turns: Annotated[int, typer.Option(min=1, help="Turns with and without capture.")] = 10,
    transactions: Annotated[int, typer.Option(min=1, help="Small transactions per turn.")] = 60,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a large statement.")] = 20_000,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything measured to this file.")
    ] = None,
) -> None:
    """Measure what each capture style costs writers, as a ratio with and without it in one run."""
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from lab.bench.capture import Cost, Effort, harnesses, measure

    wanted = _words("--adapter", adapter) if adapter else ()
    effort = Effort(turns=turns, transactions=transactions, bulk_turns=max(1, turns // 2), bulk_rows=rows)
    progress = Console(stderr=True)
    costs = []
    for name, style, harness in harnesses(wanted):
        progress.print(f"{name} {style}", highlight=False)
        if isinstance(harness, str):
            costs.append(Cost(name, style, problem=harness))
        else:
            costs.append(measure(name, style, harness, effort))
    unknown = [name for name in wanted if name not in {cost.adapter for cost in costs}]
    if unknown:
        raise ConfigurationError(f"--adapter: there is no adapter {unknown[0]!r} in this checkout")
    shown = Table("adapter", "capture", "transactions/s without", "small transactions", "large statements")
    for cost in costs:
        figures = (f"{cost.transactions_per_second:.0f}", f"{cost.small_ratio:.2f}", f"{cost.bulk_ratio:.2f}")
        shown.add_row(cost.adapter, cost.capture, *(figures if not cost.problem else (cost.problem, "", "")))
    out = Console()
    (out if out.is_terminal else Console(width=180)).print(shown)
    print("ratios: a writer's time with capture over its time without; the median of the turns")
    if json_file:
        json_file.write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n")


def _quick(plan: Plan) -> Plan:
    """The plan cut down to what answers within a minute or two."""
    from dataclasses import replace

    return replace(
        plan,
        scale_factors=plan.scale_factors[:1],
        engines=("duckdb",),
        batches=(1, 100, 1000),
        transactions=min(plan.transactions, 1000),
        limits={**plan.limits, 1: 50, 100: 500},
        repeat=1,
        freshness=min(plan.freshness, 10),
    )


def _words(option: str, text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise ConfigurationError(f"{option} names nothing")
    return words


def _chosen(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    words = _words(option, text)
    for word in words:
        if word not in known:
            raise ConfigurationError(f"{option}: {word!r} is not one of {', '.join(known)}")
    return words


def _number(option: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"{option}: {text!r} is not a positive whole number")
    return int(text)


def _scale_factor(text: str) -> str:
    try:
        valid = float(text) > 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(f"--sf: {text!r} is not a scale factor such as 0.01")
    return text


def _limits(text: str) -> dict[int, int]:
    limits = {}
    for word in text.split(",") if text.strip() else []:
        size, _, most = word.partition("=")
        limits[_number("--limit", size.strip())] = _number("--limit", most.strip())
    return limits
