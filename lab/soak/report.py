"""A soak's report for people."""

from __future__ import annotations

from rich.console import Console

from cli import text
from cli.output import table
from lab.soak.run import Report


def show(out: Console, report: Report) -> None:
    """Print what was done, what was found, and what it took."""
    total = sum(report.transactions.values())
    faults = sum(report.faults.values())
    out.print(
        f"{report.seconds:.0f} s: {total:,} transactions ({total / report.seconds:.0f} a second), "
        f"{faults:,} faults ({report.kills} kills), {sum(report.bad_inputs.values())} bad inputs",
        markup=False,
    )
    _table(
        out,
        ("source", "transactions", "a second"),
        [(name, f"{n:,}", f"{n / report.seconds:.1f}") for name, n in report.transactions.items()],
    )
    reached = ", ".join(f"{name} reached version {version:,}" for name, version in report.reached.items())
    out.print(f"while faults came, {reached}", markup=False)
    out.print(
        f"when the faults were over, the views caught up in {report.rest_seconds:.0f} s, "
        f"and all versions were checked in {report.check_seconds:.0f} s",
        markup=False,
    )
    met = report.overlaps
    out.print(
        f"{met.faults:,} faults struck while another lasted, up to {met.most_faults} at once; "
        f"at most {met.most_down} processes were down at once",
        markup=False,
    )
    _table(out, ("fault", "times"), [(kind, f"{n:,}") for kind, n in sorted(report.faults.items())])
    _table(out, ("hit together", "times"), [(pair, f"{n:,}") for pair, n in sorted(met.pairs.items())])
    _table(out, ("bad input", "times"), [(kind, f"{n:,}") for kind, n in sorted(report.bad_inputs.items())])
    _table(
        out,
        ("process", "restarts", "peak memory"),
        [
            (role, str(report.starts[role] - 1) if role in report.starts else "", text.size(peak))
            for role, peak in sorted(report.memory.items())
        ],
    )
    _table(
        out,
        ("view", "versions checked", "of one transaction", "of several", "loads", "as readers saw", "wrong"),
        [
            (
                name,
                f"{found.versions:,}",
                f"{found.exact:,}",
                f"{found.batched:,}",
                f"{found.loads:,}",
                f"{found.samples:,}",
                f"{len(found.differences):,}",
            )
            for name, found in report.verdicts.items()
        ],
    )
    for line in [*report.differences, *report.problems][:50]:
        out.print(line, markup=False)
    out.print("every version was right" if report.is_right else "SOMETHING WAS WRONG", markup=False)


def _table(out: Console, headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    if rows:
        out.print(table(headings, rows, right=headings[1:]))
