"""Table 1 for people and for programs."""

from __future__ import annotations

from typing import Any

from algebra.consistency import Level
from cli.output import console, table
from lab.table1 import COMMITS, MIDDLE_COMMITS, MIDDLE_SOURCES, SOURCES, Cell, Plan, Table, never_quiet
from mediator.maintenance import algorithm

_NOTE = f"""
reached: share of all schedules at each level. queries, bytes, compensating: per update, over all schedules;
bytes are those of the rows in queries and answers. waits: the most updates that waited at once, on average.
quiescence: how many versions appeared while that many updates came without a pause; needed, if none did.
Queries by sources are taken where a commit is as likely as anything else ({MIDDLE_COMMITS:g}); queries by
concurrency at {MIDDLE_SOURCES} sources, where commits are so many times as likely as other actions. Updates
while a query is unanswered: how much concurrency that makes. copies: its queries are those of the first load.
"""


def rows(plan: Plan, found: Table) -> list[dict[str, Any]]:
    """One row per algorithm."""
    return [_row(plan, found, name) for name in plan.algorithms]


def _row(plan: Plan, found: Table, name: str) -> dict[str, Any]:
    maintenance, total = algorithm(name), found.of(name)
    versions, updates = never_quiet(name, plan.seed)
    return {
        "algorithm": name,
        "architecture": "centralized" if maintenance.single_source else "distributed",
        "keys": maintenance.needs_keys,
        "promised": str(maintenance.guarantee[plan.kind]),
        "reached": {str(level): total.levels[level] / total.schedules for level in reversed(Level)},
        "queries_per_update": total.queries_per_update,
        "bytes_per_update": total.size / total.updates,
        "compensating_per_update": total.compensating / total.updates,
        "waits": total.waited / total.schedules,
        "never_quiet": {"versions": versions, "updates": updates},
        "by_sources": {n: _point(cell) for n, cell in found.by_sources(name).items()},
        "by_concurrency": {f"{w:g}": _point(cell) for w, cell in found.by_commits(name).items()},
    }


def _point(cell: Cell) -> dict[str, float]:
    return {"queries_per_update": cell.queries_per_update, "concurrency": cell.concurrency}


def as_dict(plan: Plan, found: Table, seconds: float) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "scenario": str(plan.kind),
        "transactions": plan.transactions,
        "seed": plan.seed,
        "schedules": plan.runs,
        "seconds": round(seconds, 1),
        "algorithms": rows(plan, found),
    }


def show(plan: Plan, found: Table, seconds: float) -> None:
    """Three tables, and what their columns mean."""
    out = console()
    made = rows(plan, found)
    out.print(f"{plan.runs:,} schedules of {plan.kind} in {seconds:.0f} s, seed {plan.seed}\n", markup=False)
    head = ("algorithm", "architecture", "keys", "promised", "reached", "queries", "bytes", "compensating")
    right = ("queries", "bytes", "compensating", "waits")
    out.print(
        table(
            (*head, "waits", "quiescence"),
            [
                (
                    row["algorithm"],
                    row["architecture"],
                    "yes" if row["keys"] else "no",
                    row["promised"],
                    _reached(row["reached"]),
                    f"{row['queries_per_update']:.2f}",
                    f"{row['bytes_per_update']:,.0f}",
                    f"{row['compensating_per_update']:.2f}",
                    f"{row['waits']:.1f}",
                    _quiescence(**row["never_quiet"]),
                )
                for row in made
            ],
            right=right,
        )
    )
    columns = [f"n = {n}" for n in SOURCES]
    out.print("\nqueries per update by the number of sources")
    out.print(
        table(
            ("algorithm", *columns),
            [
                (row["algorithm"], *(f"{p['queries_per_update']:.2f}" for p in row["by_sources"].values()))
                for row in made
            ],
            right=columns,
        )
    )
    columns = [f"commits {w:g}" for w in COMMITS]
    out.print("\nqueries per update by concurrency (and updates while a query is unanswered)")
    out.print(
        table(
            ("algorithm", *columns),
            [
                (
                    row["algorithm"],
                    *(
                        f"{p['queries_per_update']:.2f} ({p['concurrency']:.1f})"
                        for p in row["by_concurrency"].values()
                    ),
                )
                for row in made
            ],
            right=columns,
        )
    )
    out.print(_NOTE, markup=False, end="")


def _quiescence(versions: int, updates: int) -> str:
    return f"{'no' if versions else 'needed'} ({versions}/{updates})"


def _reached(shares: dict[str, float]) -> str:
    return ", ".join(f"{level} {share:.0%}" for level, share in shares.items() if share)
