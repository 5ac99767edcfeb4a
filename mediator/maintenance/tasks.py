"""Evaluations in flight: several parts of an algorithm ask their sources while messages keep arriving.

Strobe's unanswered query set (UQS), ECA's, and PSWEEP's pipeline are each a `Tasks`. An evaluation is a
generator that yields tuples of queries and receives their answers; `Tasks.next` is the one place where the
algorithm waits, and gives it either the next update or an evaluation that has finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from algebra.sweep import Answer
from mediator.maintenance.contract import Answered, AnyQuery, Evaluation, Next, Update


@dataclass(frozen=True)
class Finished:
    """An evaluation and its result."""

    key: Any
    result: Any


@dataclass
class _Asking:
    key: Any
    evaluation: Evaluation
    queries: tuple[AnyQuery, ...]
    answers: dict[int, Answer]


class Tasks:
    """The evaluations in flight, by key, in the order in which they were started."""

    def __init__(self) -> None:
        self._asking: dict[Any, _Asking] = {}
        self._unsent: list[AnyQuery] = []
        self._finished: deque[Finished] = deque()

    def __len__(self) -> int:
        return len(self._asking) + len(self._finished)

    def __iter__(self) -> Iterator[Any]:
        """The keys of what has not finished."""
        return iter(list(self._asking))

    def start(self, key: Any, evaluation: Evaluation) -> None:
        """Begin an evaluation. Its queries are sent by the next `next`."""
        self._advance(key, evaluation, None)

    def next(self) -> Generator[Next, Update | Answered, Update | Finished]:
        """Wait for the next update, or for an evaluation to finish, whichever comes first."""
        while not self._finished:
            unsent, self._unsent = tuple(self._unsent), []
            message = yield Next(unsent)
            if isinstance(message, Update):
                return message
            self._answered(message)
        return self._finished.popleft()

    def _answered(self, message: Answered) -> None:
        asking = next(a for a in self._asking.values() if any(q is message.query for q in a.queries))
        asking.answers[id(message.query)] = message.answer
        if len(asking.answers) == len(asking.queries):
            answers = tuple(asking.answers[id(query)] for query in asking.queries)
            self._advance(asking.key, asking.evaluation, answers)

    def _advance(self, key: Any, evaluation: Evaluation, answers: tuple[Answer, ...] | None) -> None:
        try:
            queries = next(evaluation) if answers is None else evaluation.send(answers)
        except StopIteration as stop:
            self._asking.pop(key, None)
            self._finished.append(Finished(key, stop.value))
            return
        self._asking[key] = _Asking(key, evaluation, queries, {})
        self._unsent.extend(queries)
