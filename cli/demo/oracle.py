"""Is every version of the view what its sources' transactions make it? Checked without Lockstep's capture.

Each version names, in its ticket row, how many transactions of each source it claims to show (see `layout`).
The journals are replayed to exactly there, the view is joined anew from the replayed tables by plain loops,
and the two bags of rows must be equal. Between two versions only the source that made the later one may
have advanced: by one transaction if the version is exact, by some if it is batched.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cli.demo.journal import Entry
from cli.demo.layout import COLUMNS, SOURCES, TICKET, Row
from cli.demo.model import Tables

Bag = Counter[Row]
Ticket = Mapping[str, int]


@dataclass(frozen=True)
class VersionChange:
    """One version as the view's change stream tells it; `source` is empty for loads and refreshes."""

    version: int
    source: str
    batched: bool
    committed_at: float
    rows: Sequence[tuple[Row, int]]


@dataclass
class Report:
    """What the check found."""

    versions: int = 0
    exact: int = 0
    batched: int = 0
    transactions: int = 0
    lags: list[float] = field(default_factory=list)
    """Seconds from each transaction's commit in its source to its visibility in the view."""
    problems: list[str] = field(default_factory=list)


class Replay:
    """One source's tables after any number of its transactions; only forwards."""

    def __init__(self, tables: Tables, entries: Sequence[Entry]) -> None:
        self.tables = tables
        self._entries = entries
        self._done = -1
        self.advance(0)

    @property
    def transactions(self) -> int:
        """How many transactions the journal holds, without the initial rows."""
        return len(self._entries) - 1

    def advance(self, number: int) -> list[Entry]:
        """Go on to just after transaction `number`; returns what was replayed."""
        passed = list(self._entries[self._done + 1 : number + 1])
        for entry in passed:
            self.tables.apply(entry.changes)
        self._done = max(self._done, number)
        return passed


def recompute(tables: Mapping[str, Tables]) -> Bag:
    """The view over these tables, as its SQL says."""
    segments, customers = tables["crm"]["segment"], tables["crm"]["customer"]
    suppliers, products = tables["supply"]["supplier"], tables["supply"]["product"]
    lines: dict[int, list[Row]] = defaultdict(list)
    for line in tables["shop"]["lineitem"].values():
        lines[line[1]].append(line)
    view: Bag = Counter()
    for order, customer_key, status, shop_tx in tables["shop"]["orders"].values():
        customer = customers.get(customer_key)
        if status == "cancelled" or customer is None:
            continue
        segment = segments.get(customer[2])
        if segment is None:
            continue
        for _, _, product_key, quantity in lines[order]:
            product = products.get(product_key)
            supplier = suppliers.get(product[2]) if product else None
            if product and supplier:
                row = (
                    order, status, quantity, customer[1], segment[1], product[1], supplier[1],
                    shop_tx, customer[3], product[3],
                )  # fmt: skip
                view[row] += 1
    return view


def ticket(state: Bag) -> Ticket | None:
    """How many transactions of each source the state claims to show; None if it does not say."""
    found = [(row, count) for row, count in state.items() if row[0] == TICKET]
    if len(found) != 1 or found[0][1] != 1:
        return None
    shop, crm, supply = found[0][0][-3:]
    return {"shop": shop, "crm": crm, "supply": supply}


def add(state: Bag, rows: Iterable[tuple[Row, int]]) -> None:
    """Add signed rows to the bag; rows that cancel out leave it."""
    for row, count in rows:
        state[row] += count
        if not state[row]:
            del state[row]


def check(
    initial: Bag, changes: Iterable[VersionChange], journals: Mapping[str, Sequence[Entry]]
) -> Iterator[Report]:
    """Compare version 0 and every later one with its recompute; yields the growing report after each."""
    replays = {name: Replay(Tables(SOURCES[name]), journals[name]) for name in SOURCES}
    report = Report()
    state: Bag = Counter(initial)
    now: Ticket = dict.fromkeys(SOURCES, 0)
    start = VersionChange(0, "", False, 0.0, ())
    last = 0
    for change in _from(start, changes):
        add(state, change.rows)
        report.versions += 1
        if change.version not in (last, last + 1):
            report.problems.append(f"version {change.version} follows version {last}")
        last = change.version
        claimed = ticket(state)
        if claimed is None:
            report.problems.append(f"version {change.version} has no single ticket row")
            continue
        report.problems += _step_problems(change, now, claimed, replays)
        for name, replay in replays.items():
            passed = replay.advance(claimed[name])
            report.transactions += sum(entry.number > 0 for entry in passed)
            report.lags += [change.committed_at - entry.committed_at for entry in passed if entry.number]
        if change.source:
            report.exact += not change.batched
            report.batched += change.batched
        now = claimed
        report.problems += _differences(
            change.version, state, recompute({n: r.tables for n, r in replays.items()})
        )
        yield report
    for name, replay in replays.items():
        if now[name] != replay.transactions:
            report.problems.append(
                f"{name} committed {replay.transactions} transactions, the last version shows {now[name]}"
            )
    yield report


def _from(start: VersionChange, changes: Iterable[VersionChange]) -> Iterator[VersionChange]:
    yield start
    yield from changes


def _step_problems(
    change: VersionChange, now: Ticket, claimed: Ticket, replays: Mapping[str, Replay]
) -> Iterator[str]:
    for name, replay in replays.items():
        step = claimed[name] - now[name]
        where = f"version {change.version}: {name} went from transaction {now[name]} to {claimed[name]}"
        if step < 0 or claimed[name] > replay.transactions:
            yield f"{where}, which is not possible"
        elif change.source and change.source != name and step:
            yield f"{where}, but the version is of {change.source}"
        elif change.source == name and not change.batched and step != 1:
            yield f"{where}, but the version is of one transaction"
        elif change.source == name and not step:
            yield f"{where}, but the version is of {name}"


def _differences(version: int, state: Bag, expected: Bag) -> Iterator[str]:
    if state == expected:
        return
    for sign, rows in (("has too much", state - expected), ("lacks", expected - state)):
        for row, count in sorted(rows.items(), key=str)[:3]:
            shown = ", ".join(f"{name}={value!r}" for name, value in zip(COLUMNS, row, strict=True))
            yield f"version {version} {sign} {count} × {shown}"
        if len(rows) > 3:
            yield f"version {version} {sign} {len(rows) - 3} more rows"
