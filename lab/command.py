"""`lockstep lab`: run algorithms under chosen, random or all schedules, and see what they really reach.

Everything heavy is imported when a command runs.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cli.options import AsJson, ConfigFile

if TYPE_CHECKING:
    from algebra import consistency
    from lab.experiment import Result
    from lab.history import History
    from lab.scenario import Scenario

app = typer.Typer(
    no_args_is_help=True,
    help="Run maintenance algorithms under simulated interleavings; check what they reach.",
)

_T = TypeVar("_T")


class Transactions(StrEnum):
    """What sources report as one unit."""

    SINGLE = "single"
    LOCAL = "local"
    GLOBAL = "global"


Algorithm = Annotated[
    str, typer.Argument(metavar="ALGORITHM", help="The maintenance algorithm, such as sweep.")
]
Sources = Annotated[int, typer.Option(min=1, max=6, help="Sources of the view.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same runs.")]
Kind = Annotated[Transactions, typer.Option("--scenario", help="The transactions of the sources.")]
Schedules = Annotated[int, typer.Option(min=1, help="Random schedules to run.")]
TransactionsEach = Annotated[
    int, typer.Option("--transactions", min=1, help="Transactions of each scenario.")
]
WithFaults = Annotated[bool, typer.Option("--faults", help="Cut links and restart the algorithm, too.")]
Save = Annotated[
    Path | None, typer.Option(help="Write the counterexample, or else the last run, to this file.")
]


@app.command("run")
def run(
    algorithm: Algorithm,
    sources: Sources = 3,
    schedules: Schedules = 500,
    seed: Seed = 0,
    transactions: TransactionsEach = 5,
    scenario: Kind = Transactions.LOCAL,
    faults: WithFaults = False,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Run random schedules of random scenarios; exit code 1 if one is below what the algorithm promises."""
    from lab.experiment import Experiment, Result, histories

    experiment = Experiment(algorithm, sources, transactions, schedules, seed, _kind(scenario), faults)
    result = Result()
    last, seconds = _run(result, histories(experiment), schedules)
    _report(
        {
            "algorithm": algorithm,
            "scenario": str(_kind(scenario)),
            "sources": sources,
            "transactions": transactions,
            "seed": seed,
            "promised": str(last.world.scenario.maintenance.guarantee[_kind(scenario)]),
        },
        result.levels,
        {"below promise": result.broken, **_facts(result, seconds)},
        as_json,
    )
    _conclude(result, last, save, as_json)


@app.command("check")
def check(
    file: ConfigFile,
    view: Annotated[str, typer.Option("--view", metavar="NAME", help="The view.")],
    schedules: Schedules = 500,
    seed: Seed = 0,
    transactions: TransactionsEach = 5,
    scenario: Kind = Transactions.LOCAL,
    faults: WithFaults = False,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Run a configured view on made up data; exit code 1 if a schedule is below what is promised or declared.

    Only the schemas of its sources are read. At least, every run has to converge.
    """
    from cli.config import load
    from lab.check import check
    from lab.experiment import Result

    checked = check(load(file), view, _kind(scenario))
    result = Result(checked.required_of)
    histories = checked.histories(schedules=schedules, transactions=transactions, seed=seed, faults=faults)
    last, seconds = _run(result, histories, schedules)
    declared = {"declared": str(checked.declared)} if checked.declared else {}
    facts = _facts(result, seconds)
    _report(
        {
            "view": view,
            "algorithm": checked.kept.algorithm.name,
            "scenario": str(checked.kind),
            "sources": len(checked.view.sources),
            "transactions": transactions,
            "seed": seed,
            "promised": str(checked.promised),
            **declared,
            "required": str(checked.required),
        },
        result.levels,
        {"below required": result.broken, "schedules that change the view": result.changing, **facts},
        as_json,
        checked.kept.reasons,
    )
    _conclude(result, last, save, as_json)


@app.command("explore")
def explore(
    what: Annotated[
        str, typer.Argument(metavar="FILE|ALGORITHM", help="A scenario or transcript; or a random scenario.")
    ],
    sources: Sources = 3,
    seed: Seed = 0,
    transactions: Annotated[int, typer.Option(min=1, help="Transactions of a random scenario.")] = 2,
    scenario: Kind = Transactions.LOCAL,
    limit: Annotated[int, typer.Option(min=1, help="Stop after so many schedules.")] = 100_000,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Run every schedule of a small scenario; exit code 1 if one is below what the algorithm promises."""
    from itertools import islice

    from lab.experiment import Result
    from lab.explore import explore
    from lab.world import World

    chosen = _scenario(what, sources, seed, transactions, _kind(scenario))
    result = Result()
    last: History | None = None
    more = explore(World(chosen))
    for last in _shown(islice(more, limit), None):
        result.add(last)
    assert last is not None
    complete = result.schedules < limit or next(more, None) is None
    _report(
        {
            "algorithm": chosen.algorithm,
            "scenario": str(chosen.kind),
            "sources": len(chosen.sources),
            "transactions": chosen.transactions,
            "promised": str(chosen.promise),
        },
        result.levels,
        {
            "below promise": result.broken,
            "runs with an untrue vector": result.untrue,
            "schedules": result.schedules,
            "all schedules": complete,
        },
        as_json,
    )
    _conclude(result, last, save, as_json)


@app.command("replay")
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Transcripts.")],
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write what happens now into the files.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run transcripts again by their action lines; exit code 1 if something else happens than they say."""
    from difflib import unified_diff

    from cli.output import console, emit_json
    from lab.oracle import judge
    from lab.transcript import Transcript, format_history

    found: list[dict[str, Any]] = []
    for file in files:
        text = _read(file)
        with _naming(file):
            history = Transcript.parse(text).replay()
        now = format_history(history)
        if rewrite and now != text:
            file.write_text(now, encoding="utf-8")
        state = "same" if now == text else "rewritten" if rewrite else "different"
        found.append({"file": str(file), "state": state, "level": str(judge(history).level)})
        if not as_json:
            console().print(f"{file}: {state}, {found[-1]['level']}", markup=False)
            if state == "different":
                for line in unified_diff(
                    text.splitlines(), now.splitlines(), "written", "replayed", lineterm=""
                ):
                    console().print(line, markup=False)
    if as_json:
        emit_json(found)
    if any(one["state"] == "different" for one in found):
        raise typer.Exit(1)


@app.command("table1")
def table1(
    schedules: Annotated[
        int, typer.Option(min=1, help="Schedules per algorithm, number of sources and concurrency.")
    ] = 20,
    seed: Seed = 0,
    transactions: Annotated[int, typer.Option(min=1, help="Transactions of each scenario.")] = 8,
    scenario: Annotated[
        Transactions, typer.Option("--scenario", help="The transactions of the sources: single or local.")
    ] = Transactions.SINGLE,
    algorithms: Annotated[
        list[str] | None, typer.Option("--algorithm", help="Only this one; may be given several times.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw queries per update into this file: .svg, .png or .pdf.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure all algorithms on the same scenarios, for 2 to 6 sources and rising concurrency."""
    from algebra.errors import ConfigurationError
    from lab.table1 import Plan, Table, measure
    from lab.table1_report import as_dict, show
    from mediator.maintenance import ALGORITHMS, algorithm

    if scenario is Transactions.GLOBAL:
        raise ConfigurationError("table1 compares single updates or source-local transactions")
    if picture is not None and picture.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigurationError(f"cannot draw {picture}: name it .svg, .png or .pdf")
    names = tuple(algorithm(name).name for name in algorithms or ALGORITHMS)
    plan = Plan(names, schedules=schedules, transactions=transactions, seed=seed, kind=_kind(scenario))
    table = Table()
    started = time.perf_counter()
    for key, history in _shown(measure(plan), plan.runs):
        table.add(key, history)
    seconds = time.perf_counter() - started
    if picture is not None:
        from lab.picture import draw

        draw(table, plan.algorithms, picture)
    if as_json:
        from cli.output import emit_json

        emit_json(as_dict(plan, table, seconds))
    else:
        show(plan, table, seconds)


@app.command("soak")
def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults are injected.")] = 5.0,
    seed: Seed = 1,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--source", metavar="KIND", help="A kind of source; repeatable. Default: all that work here."
        ),
    ] = None,
    kills: Annotated[
        int, typer.Option(min=0, help="End when so many processes were killed; 0: when the time is up.")
    ] = 0,
    engine: Annotated[str, typer.Option(help="Where the mediator joins: duckdb, spark or auto.")] = "duckdb",
    rate: Annotated[float, typer.Option(min=0.01, help="Faults per second, on average.")] = 0.7,
    most_down: Annotated[int, typer.Option(min=1, help="So many processes may be down at once.")] = 4,
    load: Annotated[float, typer.Option(min=0.1, help="Bursts of transactions per second and source.")] = 3.0,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Work in this new or empty folder, and keep it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run real processes under load and random faults, then check every version; exit code 1 if any is wrong.

    Database servers, writers, wrappers behind a bad network, a mediator and its JVM are killed, paused,
    locked, cut off and sent nonsense. Only this folder and the loopback interface are touched.
    """
    import shutil
    import signal
    import tempfile

    from algebra.errors import ConfigurationError
    from lab.soak.deployment import Settings
    from lab.soak.kinds import KINDS, available
    from lab.soak.plan import EVERYTHING, Plan
    from lab.soak.report import show
    from lab.soak.run import Soak

    usable, absent = available()
    kinds = sources or usable
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigurationError(f"there is no kind of source {kind!r}; kinds: {', '.join(KINDS)}")
        if kind in absent:
            raise ConfigurationError(f"{kind}: {absent[kind]}")
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder}: is not empty; a soak starts from scratch")
    place = folder.resolve() if folder is not None else Path(tempfile.mkdtemp(prefix="lockstep-soak-"))
    place.mkdir(parents=True, exist_ok=True)
    from cli.output import console, emit_json, error_console

    # Leave through every context manager, so that all children are stopped.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    progress = error_console()
    if not sources:
        for kind, reason in absent.items():
            progress.print(f"without {kind}: {reason}", markup=False)
    settings = Settings(place, kinds, engine, seed, load)
    result = Soak(
        settings, Plan(seed, rate, EVERYTHING, most_down), lambda line: progress.print(line, markup=False)
    ).run(minutes * 60, kills)
    if as_json:
        emit_json(result.as_dict())
    else:
        show(console(), result)
    if folder is None and result.is_right:
        shutil.rmtree(place, ignore_errors=True)
    elif not result.is_right:
        progress.print(f"kept for you to look at: {place}", markup=False)
    if not result.is_right:
        raise typer.Exit(1)


def _kind(chosen: Transactions) -> consistency.Scenario:
    from algebra.consistency import Scenario

    return {
        Transactions.SINGLE: Scenario.SINGLE_UPDATE,
        Transactions.LOCAL: Scenario.SOURCE_LOCAL,
        Transactions.GLOBAL: Scenario.GLOBAL,
    }[chosen]


def _scenario(what: str, sources: int, seed: int, transactions: int, kind: consistency.Scenario) -> Scenario:
    """The scenario of a file, or a random one for an algorithm."""
    import random

    from lab.generate import generate
    from lab.transcript import Transcript

    file = Path(what)
    if file.is_file():
        with _naming(file):
            return Transcript.parse(_read(file)).scenario
    return generate(random.Random(seed), what, sources=sources, transactions=transactions, kind=kind)


def _read(file: Path) -> str:
    from algebra.errors import ConfigurationError

    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from None


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Errors within say which file they are in."""
    from algebra.errors import ConfigurationError, LockstepError

    try:
        yield
    except LockstepError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def _shown(items: Iterable[_T], total: int | None) -> Iterator[_T]:
    """The items, with progress on a terminal."""
    from rich.progress import track

    from cli.output import error_console

    console = error_console()
    return iter(
        track(items, "running", total=total, console=console, transient=True, disable=not console.is_terminal)
    )


def _run(result: Result, histories: Iterable[History], schedules: int) -> tuple[History, float]:
    """Let everything happen; the last run, and the seconds that all of them took."""
    started = time.perf_counter()
    last: History | None = None
    for last in _shown(histories, schedules):
        result.add(last)
    assert last is not None
    return last, time.perf_counter() - started


def _facts(result: Result, seconds: float) -> dict[str, Any]:
    counts = result.counts
    return {
        "runs with an untrue vector": result.untrue,
        "messages per update": round((counts.updates + counts.queries + counts.answers) / counts.updates, 2),
        "queries per update": round(counts.queries / counts.updates, 2),
        "versions per update": round(counts.versions / counts.updates, 2),
        "schedules per minute": round(result.schedules / seconds * 60),
    }


def _report(
    subject: Mapping[str, Any],
    levels: Counter[Any],
    facts: Mapping[str, Any],
    as_json: bool,
    reasons: Sequence[str] = (),
) -> None:
    from cli.output import console, emit_json, table

    shares = {str(level): count for level, count in sorted(levels.items(), reverse=True)}
    if as_json:
        why = {"reasons": list(reasons)} if reasons else {}
        emit_json({**_snake(subject), **why, "levels": shares, **_snake(facts)})
        return
    out = console()
    out.print(", ".join(f"{name} {value}" for name, value in subject.items()), markup=False)
    for reason in reasons:
        out.print(f"  {reason}", markup=False)
    rows = [(level, f"{n:,}", f"{100 * n / levels.total():.1f} %") for level, n in shares.items()]
    out.print(table(("level", "schedules", "share"), rows, right=("schedules", "share")))
    for name, value in facts.items():
        out.print(f"{name}: {_fact(value)}", markup=False)


def _fact(value: float | bool) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else f"{value:,}"


def _snake(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace(" ", "_"): value for name, value in facts.items()}


def _conclude(result: Result, last: History, save: Path | None, as_json: bool) -> None:
    """Show and save the minimal counterexample, if there is one."""
    from cli.output import console
    from lab.transcript import format_history

    found = result.counterexample() if save or not as_json else None
    if save:
        save.write_text(format_history(found or last), encoding="utf-8")
    if found and not as_json:
        console().print(f"\na smallest run that fails:\n\n{format_history(found)}", markup=False, end="")
    if result.broken:
        raise typer.Exit(1)
