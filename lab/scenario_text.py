"""Scenarios as text that people write and read.

    # What this shows.
    Reference: Strobe paper, Example 1
    algorithm: ivma
    view: SELECT r1.a, r2.c FROM x.r1 r1 JOIN y.r2 r2 ON r1.b = r2.b
    source x
      relation r1(a int key, b int)
        (1, 2) (4, 2)
      transaction -r1(1, 2) +r1(1, 3)
      transaction t1 of x, y: +r1(5, 2)
    source y
      relation r2(b int key, c int)
      transaction t1 of x, y: +r2(2, 7)

Types and values are those of `values.py`; `(7, 8)[2]` is a row twice. Names that are not plain stand in
double quotes. Further lines before the view: `options: max_taken 3` with numbers of the algorithm's own,
`nodes: relations`, `batch limit: N`, `takes: scheduled`, `cross joins: allowed`, `engine: embedded`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from algebra.errors import LockstepError
from algebra.global_transaction import GlobalTransaction
from algebra.schema import Column, RelationSchema
from lab.errors import ScenarioError
from lab.scenario import Bag, Change, Row, Scenario, Source, Transaction
from lab.values import TYPES, format_value, read_value, type_name, type_of

WIDTH = 110
_VALUE = re.compile(r"'(?:[^']|'')*'|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|null|true|false")
_NAME = re.compile(r'[A-Za-z_]\w*|"(?:[^"]|"")+"')
_TYPE = re.compile(r"[a-z]\w*(?:\(\d+,\d+\))?")
# Blanks within quotes do not separate words.
_VIEW_WORD = re.compile(r"""(?:'(?:[^']|'')*'|"(?:[^"]|"")*"|\S)+""")
_NUMBER = re.compile(r"[1-9]\d*")


def format_name(name: str) -> str:
    """A name as scenarios and transcripts write it."""
    plain = not name.startswith('"') and _NAME.fullmatch(name)
    return name if plain else '"' + name.replace('"', '""') + '"'


def format_row(row: Row, count: int = 1) -> str:
    """A row as `(1, 2)`, or as the SWEEP paper writes it if it occurs several times: `(1, 2)[2]`."""
    text = f"({', '.join(format_value(value) for value in row)})"
    return text if count == 1 else f"{text}[{count}]"


def format_bag(bag: Iterable[tuple[Row, int]]) -> str:
    """A relation as `{(1, 2), (3, 4)[2]}`, in one order."""
    rows = sorted(bag, key=lambda item: sort_key(item[0]))
    return f"{{{', '.join(format_row(row, count) for row, count in rows)}}}"


def format_signed(bag: Iterable[tuple[Row, int]], relation: str = "") -> str:
    """A change as `+(1, 2) -(3, 4)[2]`, deletions first; each row behind its relation's name, if given."""
    rows = sorted(bag, key=lambda item: (item[1] > 0, sort_key(item[0])))
    return " ".join(_format_change(relation, row, count) for row, count in rows) or "nothing"


def _format_change(relation: str, row: Row, count: int) -> str:
    named = format_name(relation) if relation else ""
    return f"{'+' if count > 0 else '-'}{named}{format_row(row, abs(count))}"


def sort_key(row: Row) -> tuple[tuple[int, Any], ...]:
    """Orders rows that may hold NULLs."""
    return tuple((0, 0) if value is None else (1, value) for value in row)


def format_transaction(transaction: Transaction) -> str:
    """A transaction's changes, and before them what it is a part of."""
    changes = " ".join(_format_change(c.relation, c.row, c.count) for c in transaction.changes)
    if whole := transaction.part_of:
        return f"{whole.id} of {', '.join(sorted(whole.participants))}: {changes}"
    return changes


def format_scenario(scenario: Scenario) -> str:
    """The scenario as text; `parse_scenario` gives it back."""
    return "\n".join(_lines(scenario)) + "\n"


def _lines(scenario: Scenario) -> Iterator[str]:
    yield from (f"# {note}".rstrip() for note in scenario.notes)
    if scenario.reference:
        yield f"Reference: {scenario.reference}"
    yield f"algorithm: {scenario.algorithm}"
    if scenario.options:
        yield f"options: {', '.join(f'{option} {number}' for option, number in scenario.options)}"
    if scenario.per_relation:
        yield "nodes: relations"
    if scenario.max_batch is not None:
        yield f"batch limit: {scenario.max_batch}"
    if scenario.scheduled_takes:
        yield "takes: scheduled"
    if scenario.allow_cross_join:
        yield "cross joins: allowed"
    if scenario.embedded:
        yield "engine: embedded"
    yield from _wrapped("view: ", _VIEW_WORD.findall(scenario.view), "  ")
    for source in scenario.sources:
        yield f"source {source.name}"
        for relation in source.relations:
            columns = (
                f"{format_name(c.name)} {type_name(c.type)}{' key' if c.name in relation.key else ''}"
                for c in relation.columns
            )
            yield f"  relation {format_name(relation.name)}({', '.join(columns)})"
            rows = [format_row(c.row, c.count) for c in source.rows if c.relation == relation.name]
            yield from _wrapped("    ", rows, "    ")
        for transaction in source.transactions:
            yield f"  transaction {format_transaction(transaction)}"


def _wrapped(first: str, words: Sequence[str], further: str) -> Iterator[str]:
    """Words in lines that are not too long; none without words."""
    line = first
    for i, word in enumerate(words):
        if i and len(line) + len(word) >= WIDTH:
            yield line.rstrip()
            line = further
        line += f"{word} "
    if words:
        yield line.rstrip()


class _Words:
    """What is left of one line."""

    def __init__(self, text: str, line: int) -> None:
        self.text = text.strip()
        self.line = line

    def accept(self, token: str) -> bool:
        if self.text.startswith(token):
            self.text = self.text[len(token) :].lstrip()
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected {token!r}")

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self.text)
        if found is None:
            raise self.error(f"expected {what}")
        self.text = self.text[found.end() :].lstrip()
        return found.group()

    def name(self, what: str) -> str:
        found = self.take(_NAME, what)
        return found[1:-1].replace('""', '"') if found.startswith('"') else found

    def number(self) -> int:
        return int(self.take(_NUMBER, "a number"))

    def list_of(self, element: Callable[[], Any]) -> list[Any]:
        found = [element()]
        while self.accept(","):
            found.append(element())
        return found

    def value(self) -> Any:
        text = self.take(_VALUE, "a value")
        if text.startswith("'"):
            return text[1:-1].replace("''", "'")
        if text in ("null", "true", "false"):
            return {"null": None, "true": True, "false": False}[text]
        return float(text) if "." in text or "e" in text else int(text)

    def row(self, relation: str, schema: RelationSchema | None, sign: int = 1) -> Change:
        self.expect("(")
        values = tuple(self.list_of(self.value))
        self.expect(")")
        if schema is not None and len(schema.columns) == len(values):
            values = tuple(
                read_value(value, column.type) for value, column in zip(values, schema.columns, strict=True)
            )
        count = 1
        if self.accept("["):
            count = int(self.take(_NUMBER, "a count"))
            self.expect("]")
        return Change(relation, values, sign * count)

    def end(self) -> None:
        if self.text:
            raise self.error("expected the end of the line")

    def error(self, problem: str) -> ScenarioError:
        found = f", found {self.text!r}" if self.text else ", found the end of the line"
        return ScenarioError(problem + found, self.line)


def parse_scenario(text: str) -> Scenario:
    """The scenario of a text; ScenarioError names the line that is wrong."""
    parser = _Parser()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            parser.read(line, number)
        except ScenarioError as error:
            raise error if error.line else ScenarioError(error.problem, number) from None
    return parser.scenario()


class _Parser:
    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}
        self._notes: list[str] = []
        self._view: list[str] = []
        self._view_line = self._algorithm_line = 0
        self._sources: list[Source] = []
        self._state: dict[str, Bag] = {}

    def read(self, line: str, number: int) -> None:
        if not line.strip():
            return
        words = _Words(line, number)
        if line.startswith("#"):
            self._notes.append(line[1:].removeprefix(" ").rstrip())
        elif not line.startswith(" "):
            self._read_heading(words)
        elif not self._sources:
            if not self._view:
                raise words.error("expected a heading such as 'algorithm: sweep'")
            self._view.append(words.text)
        elif words.accept("relation "):
            self._read_relation(words)
        elif words.accept("transaction "):
            self._read_transaction(words)
        else:
            self._read_rows(words)

    def _read_heading(self, words: _Words) -> None:
        if words.accept("source "):
            self._sources.append(Source(words.name("a source's name"), ()))
            self._state = {}
            words.end()
        elif words.accept("view:"):
            self._view, self._view_line = [words.text], words.line
        elif words.accept("Reference:"):
            self._settings["reference"] = words.text
        elif words.accept("algorithm:"):
            self._settings["algorithm"], self._algorithm_line = words.text, words.line
        elif words.accept("options:"):
            options = words.list_of(lambda: (words.name("an option's name"), words.number()))
            self._settings["options"] = tuple(options)
            words.end()
        elif words.accept("nodes:"):
            words.expect("relations")
            self._settings["per_relation"] = True
        elif words.accept("batch limit:"):
            self._settings["max_batch"] = words.number()
        elif words.accept("takes:"):
            words.expect("scheduled")
            self._settings["scheduled_takes"] = True
        elif words.accept("cross joins:"):
            words.expect("allowed")
            self._settings["allow_cross_join"] = True
        elif words.accept("engine:"):
            words.expect("embedded")
            self._settings["embedded"] = True
        else:
            raise words.error("expected a heading such as 'algorithm:', 'view:' or 'source x'")

    def _read_relation(self, words: _Words) -> None:
        source = self._sources[-1]
        name = words.name("a relation's name")
        words.expect("(")
        key: list[str] = []

        def column() -> Column:
            column_name, name_of_type = words.name("a column's name"), words.take(_TYPE, "a type")
            type_ = type_of(name_of_type)
            if type_ is None:
                known = f"{', '.join(TYPES)}, decimal(p,s)"
                raise ScenarioError(f"unknown type {name_of_type!r}; there are: {known}", words.line)
            if words.accept("key"):
                key.append(column_name)
            return Column(column_name, type_)

        relation = RelationSchema(name, tuple(words.list_of(column)), tuple(key))
        words.expect(")")
        words.end()
        if name in self._state:
            raise ScenarioError(f"source {source.name} has relation {name!r} already", words.line)
        self._sources[-1] = replace(source, relations=(*source.relations, relation))
        self._state[name] = Bag()

    def _read_rows(self, words: _Words) -> None:
        source = self._sources[-1]
        if not source.relations or source.transactions:
            raise words.error("expected 'relation' or 'transaction'")
        rows = []
        while words.text:
            rows.append(words.row(source.relations[-1].name, source.relations[-1]))
        self._state = source.after(self._state, tuple(rows))
        self._sources[-1] = replace(source, rows=(*source.rows, *rows))

    def _read_transaction(self, words: _Words) -> None:
        source = self._sources[-1]
        whole = None
        if words.text[:1] not in ("+", "-"):
            identifier = words.name("'+', '-' or a global transaction's name")
            words.expect("of ")
            participants = words.list_of(lambda: words.name("a source's name"))
            words.expect(":")
            whole = GlobalTransaction(identifier, frozenset(participants))
        changes = []
        while words.text:
            sign = 1 if words.accept("+") else -1
            if sign < 0:
                words.expect("-")
            name = words.name("a relation's name")
            changes.append(words.row(name, source.catalog.relations.get(name), sign))
        self._state = source.after(self._state, tuple(changes))
        transaction = Transaction(tuple(changes), whole)
        self._sources[-1] = replace(source, transactions=(*source.transactions, transaction))

    def scenario(self) -> Scenario:
        for heading, present in (
            ("algorithm:", "algorithm" in self._settings),
            ("view:", self._view),
            ("source", self._sources),
        ):
            if not present:
                raise ScenarioError(f"the scenario has no '{heading}' line")
        made = Scenario(
            view=" ".join(self._view),
            sources=tuple(self._sources),
            notes=tuple(self._notes),
            **self._settings,
        )
        with _at_line(self._algorithm_line):
            _ = made.maintenance
        with _at_line(self._view_line):
            made.check()
        return made


@contextmanager
def _at_line(line: int) -> Iterator[None]:
    """What others say is wrong is said of this line."""
    try:
        yield
    except ScenarioError:
        raise
    except LockstepError as error:
        raise ScenarioError(str(error), line) from error
