"""Transcripts: a run as text that tells its story, and that can be run again.

A transcript is a scenario, then `schedule` with the actions and what came of each, then the level reached
and what it cost. The actions stand two spaces in and determine everything else; so a transcript is replayed
by its action lines alone, and is right if that gives the same text again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from algebra.engines.contract import Relation
from algebra.local_view import LocalView
from algebra.schema import COUNT
from algebra.sweep import Answer, Query
from lab.errors import ScheduleError
from lab.history import (
    Action,
    Asked,
    Committed,
    Compensated,
    Event,
    Failed,
    History,
    Received,
    Replied,
    State,
)
from lab.oracle import check_vectors, format_vector, judge
from lab.scenario import Bag, Scenario
from lab.scenario_text import (
    format_bag,
    format_name,
    format_row,
    format_scenario,
    format_signed,
    format_transaction,
    parse_scenario,
    sort_key,
)
from lab.schedules import finish
from lab.simulator import Simulator
from lab.world import World, python_rows, to_bag
from mediator.maintenance.contract import AnyQuery, Term

_SCHEDULE = "schedule"


@dataclass(frozen=True)
class Transcript:
    """A scenario and a schedule for it, as read from text; `lines` are those of the actions."""

    scenario: Scenario
    schedule: tuple[Action, ...]
    lines: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Transcript:
        """What a text says; it may end anywhere after the scenario."""
        head, schedule, lines = [], [], []
        in_schedule = False
        for number, line in enumerate(text.splitlines(), 1):
            if line.rstrip() == _SCHEDULE:
                in_schedule = True
            elif not in_schedule:
                head.append(line)
            elif line.startswith("  ") and line[2:3].strip():
                try:
                    schedule.append(Action.parse(line))
                except ScheduleError as error:
                    raise ScheduleError(f"line {number}: {error}") from None
                lines.append(number)
            elif line and not line.startswith(" "):
                break
        return cls(parse_scenario("\n".join(head)), tuple(schedule), tuple(lines))

    def replay(self) -> History:
        """The run that the action lines determine; ScheduleError names the line that cannot happen."""
        simulator = Simulator(World(self.scenario))
        for action, line in zip(self.schedule, self.lines, strict=True):
            try:
                simulator.do(action)
            except ScheduleError as error:
                raise ScheduleError(f"line {line}: {error}") from None
        return finish(simulator)


def format_history(history: History) -> str:
    """The transcript of a run."""
    return format_scenario(history.world.scenario) + "".join(f"{line}\n" for line in _lines(history))


def _lines(history: History) -> Iterator[str]:
    writer = _Writer(history.world)
    yield _SCHEDULE
    yield f"    {writer.line(history.states[0])}"
    for action, events in zip((None, *history.actions), history.events, strict=True):
        if action:
            yield f"  {action}"
        for event in events:
            yield f"    {writer.line(event)}"
    verdict = judge(history)
    yield f"level: {verdict.level}, promised: {history.world.scenario.promise}"
    if verdict.explanation:
        yield f"    {verdict.explanation}"
    for problem in check_vectors(history):
        yield f"    {problem}"
    counts = history.counts()
    yield (
        f"counts: {counts.updates} updates, {counts.versions} versions, {counts.queries} queries "
        f"({counts.query_bytes} bytes), {counts.answers} answers ({counts.answer_bytes} bytes), "
        f"{counts.compensations} local compensations"
    )


class _Writer:
    """Puts events into words."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._nodes = [_NodeText(world, view) for view in world.local_views]

    def line(self, event: Event) -> str:
        match event:
            case Committed(source, position):
                index = self._world.sources.index(source)
                transaction = self._world.scenario.sources[index].transactions[position - 1]
                return f"{source}@{position}: {format_transaction(transaction)}"
            case Asked(source, query):
                return f"warehouse -> {source}: {self._query(query)}"
            case Replied(asked, answer):
                return f"{asked.source} -> warehouse: {self._answer(asked, answer)}"
            case Received(message, ignored):
                return self._received(message, ignored)
            case Compensated(node, rows):
                return f"still queued: {self._nodes[node].change(rows)}"
            case State(contents, vector):
                return f"view: {format_bag(contents)}  vector {format_vector(self._world, vector)}"
            case Failed(problem):
                return f"failed: {problem}"

    def _received(self, message: Committed | Replied, ignored: bool) -> str:
        if isinstance(message, Replied):
            text = self._answer(message.asked, message.answer)
            return f"answer of {message.asked.source}{', ignored' if ignored else ''}: {text}"
        deltas = self._world.deltas(message.source, message.position)
        changes = [self._nodes[node].change(rows) for node, rows in deltas.items()]
        return f"update {message.source}@{message.position}: {', '.join(changes) or 'nothing'}"

    def _answer(self, asked: Asked, answer: Answer) -> str:
        if isinstance(asked.query, Query):
            rows = self._nodes[asked.query.node].rows(answer.rows)
        else:
            rows = format_signed(to_bag(answer.rows).items())
        return f"{rows} for {self._query(asked.query)} at {asked.source}@{answer.position}"

    def _query(self, query: AnyQuery) -> str:
        if not isinstance(query, Query):
            return " ".join(self._term(term) for term in query.terms)
        label = self._nodes[query.node].label
        if query.keys is None:
            return f"all of {label}"
        columns = [format_name(column) for column in query.keys.columns]
        values = sorted(python_rows(query.keys.values), key=sort_key)
        if len(columns) == 1:
            return f"{label} where {columns[0]} in {format_row(tuple(row[0] for row in values))}"
        return f"{label} where ({', '.join(columns)}) in ({', '.join(format_row(row) for row in values)})"

    def _term(self, term: Term) -> str:
        factors = [
            f"[{node.signed(term.substituted[i])}]" if i in term.substituted else node.label
            for i, node in enumerate(self._nodes)
        ]
        return f"{'+' if term.sign > 0 else '-'} {' ⋈ '.join(factors)}"


class _NodeText:
    """How the rows of one local view are written: in the order of its relations' columns.

    `label` names the relations, and those columns that the local view shows if it does not show all.
    """

    def __init__(self, world: World, view: LocalView) -> None:
        source = world.scenario.sources[world.sources.index(view.source)]
        schemas = {relation.name: relation for relation in source.relations}
        columns = [(o.alias, c.name) for o in view.occurrences for c in schemas[o.relation].columns]
        shown = [(column.source.occurrence, column.source.column) for column in view.columns]
        order = sorted(range(len(shown)), key=lambda i: columns.index(shown[i]))
        self._order = [view.columns[i].name for i in order]
        self.label = "⋈".join(format_name(occurrence.alias) for occurrence in view.occurrences)
        if len(shown) < len(columns):
            self.label += f"[{', '.join(map(format_name, self._order))}]"

    def _bag(self, rows: Relation) -> Bag:
        return to_bag(rows.select([*self._order, *({COUNT} & set(rows.column_names))]))

    def signed(self, rows: Relation) -> str:
        """A change, without the label."""
        return format_signed(self._bag(rows).items())

    def change(self, rows: Relation) -> str:
        """A change, behind the label."""
        return f"{self.label} {self.signed(rows)}"

    def rows(self, rows: Relation) -> str:
        """The rows of an answer."""
        found = sorted(self._bag(rows).items(), key=lambda item: sort_key(item[0]))
        return ", ".join(format_row(row, count) for row, count in found) or "no rows"
