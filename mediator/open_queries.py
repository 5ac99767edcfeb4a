"""Maintenance queries that were asked of one source and are not answered yet.

Answers come in chunks, between the updates of the same stream. What is checked here is that an answer was
asked for, is whole, and about one state of the source; which one that may be, `ReportedViews` knows. All that
have begun and not ended may take `assembled_rows` together: a wrapper gives one answer after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from algebra.arrow_ipc import to_ipc
from algebra.engines.contract import Relation
from algebra.errors import LimitExceededError, OrderingViolationError
from algebra.local_view import Keys, LocalView
from algebra.position import ORIGIN, Position
from algebra.schema import COUNT
from algebra.sweep import Answer
from algebra.weight import weight
from protos.convert import local_view_to_proto, position_from_proto
from protos.incoming import decoded_answer
from protos.lockstep.v1 import wrapper_pb2 as pb


@dataclass(frozen=True)
class Query:
    """A maintenance query without its number yet, and the schema of its answer."""

    request: pb.MaintenanceQuery
    schema: pa.Schema


def query_by_keys(view: LocalView, keys: Keys | None) -> Query:
    """The MQ for the rows of a local view with these keys, or all."""
    request = pb.MaintenanceQuery(local_view=view.name)
    if keys is not None:
        request.key_columns.extend(keys.columns)
        request.arrow = to_ipc(keys.values)
    return Query(request, view.arrow)


def query_by_terms(
    reported: str, view: LocalView, terms: Sequence[tuple[int, Mapping[str, Relation]]]
) -> Query:
    """The query for a sum of terms over a local view, each with rows in place of some occurrences.

    The answer has the local view's columns and `_count`, as of what was reported to the local view of the
    name `reported`.
    """
    request = pb.MaintenanceQuery(
        local_view=reported,
        definition=local_view_to_proto(view),
        terms=[
            pb.Term(
                sign=sign,
                substitutions=[
                    pb.Substitution(occurrence=alias, arrow=to_ipc(rows)) for alias, rows in given.items()
                ],
            )
            for sign, given in terms
        ],
    )
    return Query(request, view.arrow.append(pa.field(COUNT, pa.int64())))


@dataclass
class _OpenQuery:
    query: Query
    future: Future[Answer]
    chunks: list[Relation] = field(default_factory=list)
    held: int = 0
    """What its chunks take, as credit counts rows; each chunk takes something."""
    position: Position = ORIGIN
    """Of the first chunk; an answer is about one state of the source."""

    def begin_anew(self) -> None:
        """What came of its answer is void."""
        self.chunks.clear()
        self.held = 0


class OpenQueries:
    """The open queries of one source by number; for one thread at a time."""

    def __init__(self, source: str, assembled_rows: int) -> None:
        self._source = source
        self._assembled_rows = assembled_rows
        self._open: dict[int, _OpenQuery] = {}
        self._asked = 0
        """The last number that was given out."""

    def add(self, query: Query, answer: Future[Answer]) -> None:
        """Number the query; the future will have its answer."""
        self._asked += 1
        query.request.query_id = self._asked
        self._open[self._asked] = _OpenQuery(query, answer)

    def ask_again(self) -> list[pb.ExchangeRequest]:
        """The requests for a new stream; what the old one answered in part is void."""
        for open_query in self._open.values():
            open_query.begin_anew()
        return [pb.ExchangeRequest(query=open_query.query.request) for open_query in self._open.values()]

    def abandon(self, futures: Sequence[Future[Answer]]) -> None:
        """Forget queries; their answers will be ignored."""
        self._open = {i: q for i, q in self._open.items() if q.future not in futures}

    def local_view(self, query_id: int) -> str | None:
        """The local view as of whose changes a query is to be answered; None if it is not open."""
        open_query = self._open.get(query_id)
        return open_query.query.request.local_view if open_query is not None else None

    def collect(self, result: pb.QueryResult) -> tuple[Future[Answer], Answer] | None:
        """Take a chunk; the answer, once it is whole. It is for the caller to resolve the future with it."""
        open_query = self._open.get(result.query_id)
        if open_query is None:
            if not 0 < result.query_id <= self._asked:
                raise OrderingViolationError(
                    f"source {self._source!r} answered query {result.query_id}, which was not asked"
                )
            return None  # abandoned
        if not result.chunk:
            open_query.begin_anew()
        elif result.chunk != len(open_query.chunks):
            raise OrderingViolationError(
                f"source {self._source!r} sent chunk {result.chunk} of an answer "
                f"after {len(open_query.chunks)} chunks"
            )
        position = position_from_proto(result.position)
        if open_query.chunks and position != open_query.position:
            raise OrderingViolationError(
                f"source {self._source!r} answered one query at {open_query.position} and at {position}"
            )
        open_query.position = position
        schema = open_query.query.schema
        rows = schema.empty_table()
        if result.arrow:
            rows = decoded_answer(result.arrow, schema, open_query.query.request.local_view)
        open_query.chunks.append(rows)
        open_query.held += 1 + weight(rows)
        if sum(query.held for query in self._open.values()) > self._assembled_rows:
            raise LimitExceededError(
                f"source {self._source!r} sent more than {self._assembled_rows:,} rows of answers that have "
                "not ended; if they are that large, raise assembled_rows"
            )
        if not result.last:
            return None
        del self._open[result.query_id]
        return open_query.future, Answer(pa.concat_tables(open_query.chunks), position)

    def take(self, query_id: int) -> Future[Answer] | None:
        """The future of a query that has failed, which is forgotten; None if it was abandoned."""
        open_query = self._open.pop(query_id, None)
        return open_query.future if open_query is not None else None
