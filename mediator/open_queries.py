"""Maintenance queries that were asked of one source and are not answered yet.

Answers come in chunks, between the updates of the same stream. Here is the half of the ordering contract that
concerns them: an answer is about one state of the source, and about the one that was reported last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from algebra.arrow_ipc import to_ipc
from algebra.engines.contract import Relation
from algebra.errors import OrderingViolationError
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import COUNT
from algebra.sweep import Answer
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


def query_by_terms(view: LocalView, terms: Sequence[tuple[int, Mapping[str, Relation]]]) -> Query:
    """The query for a sum of terms over a local view, each with rows in place of some occurrences.

    The answer has the local view's columns and `_count`.
    """
    request = pb.MaintenanceQuery(
        local_view=view.name,
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
    position: Position | None = None
    """Of the first chunk; an answer is about one state of the source."""


class OpenQueries:
    """The open queries of one source by number; for one thread at a time."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._open: dict[int, _OpenQuery] = {}
        self._asked = 0
        """The last number that was given out."""

    def add(self, query: Query) -> Future[Answer]:
        """Number the query; its answer will be the future's result."""
        self._asked += 1
        query.request.query_id = self._asked
        future: Future[Answer] = Future()
        self._open[self._asked] = _OpenQuery(query, future)
        return future

    def ask_again(self) -> list[pb.ExchangeRequest]:
        """The requests for a new stream; what the old one answered in part is void."""
        for open_query in self._open.values():
            open_query.chunks.clear()
            open_query.position = None
        return [pb.ExchangeRequest(query=open_query.query.request) for open_query in self._open.values()]

    def abandon(self, futures: Sequence[Future[Answer]]) -> None:
        """Forget queries; their answers will be ignored."""
        self._open = {i: q for i, q in self._open.items() if q.future not in futures}

    def collect(self, result: pb.QueryResult, reported: Position) -> tuple[Future[Answer], Answer] | None:
        """Take a chunk that came when this was the position last reported; the answer, once it is whole.

        It is for the caller to resolve the future with it.
        """
        open_query = self._open.get(result.query_id)
        if open_query is None:
            if not 0 < result.query_id <= self._asked:
                raise OrderingViolationError(
                    f"source {self._source!r} answered query {result.query_id}, which was not asked"
                )
            return None  # abandoned
        position = position_from_proto(result.position)
        if open_query.position is not None and position != open_query.position:
            raise OrderingViolationError(
                f"source {self._source!r} answered one query at {open_query.position} and at {position}"
            )
        open_query.position = position
        if position != reported:
            raise OrderingViolationError(
                f"source {self._source!r} answered at {position} after reporting up to {reported}"
            )
        schema = open_query.query.schema
        if result.arrow:
            name = open_query.query.request.local_view
            open_query.chunks.append(decoded_answer(result.arrow, schema, name))
        if not result.last:
            return None
        del self._open[result.query_id]
        rows = pa.concat_tables(open_query.chunks) if open_query.chunks else schema.empty_table()
        return open_query.future, Answer(rows, position)

    def take(self, query_id: int) -> Future[Answer] | None:
        """The future of a query that has failed, which is forgotten; None if it was abandoned."""
        open_query = self._open.pop(query_id, None)
        return open_query.future if open_query is not None else None
