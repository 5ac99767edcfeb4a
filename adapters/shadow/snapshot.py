"""A snapshot that is answered from the shadow: the state at the position that its history ends with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from adapters.shadow.engine import translated
from adapters.shadow.extent import Extent
from adapters.shadow.fetch import Fetch, Readable
from adapters.shadow.history import changed
from adapters.shadow.store import OpenShadow
from adapters.spi import Changes, Snapshot
from algebra.errors import SourceUnavailableError
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import Catalog


class ShadowSnapshot(Snapshot):
    """The shadow as it is attached.

    `catalog`: what the source shows. `drifted`: the relations that are no longer as prepared, with the reason
    in words. `read`: all rows of a relation that is not prepared. `timeout`: seconds that a fetch may work, 0
    for ever. `apart`: why those that are not prepared cannot be joined with prepared ones, if they show a
    later state than the shadow does.
    """

    def __init__(
        self,
        held: OpenShadow,
        catalog: Catalog,
        drifted: Mapping[str, str],
        read: Callable[[str], Extent],
        timeout: float,
        apart: str = "",
    ) -> None:
        self._held = held
        self._catalog = catalog
        self._drifted = drifted
        self._read = read
        self._timeout = timeout
        self._apart = apart
        self._borrowed: dict[str, Readable] = {}
        self._fetches: list[Fetch] = []

    @property
    def position(self) -> Position:
        with translated(self._held.source):
            return self._held.position

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        for relation, problem in self._drifted.items():
            raise changed(self._held.source, relation, problem)
        with translated(self._held.source):
            return self._held.changes(after)

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        query.check(self._catalog)
        for relation in query.relations:
            if relation in self._drifted:
                raise changed(self._held.source, relation, self._drifted[relation])
        prepared = self._held.relations.keys() & set(query.relations)
        if self._apart and 0 < len(prepared) < len(query.relations):
            raise SourceUnavailableError(f"source {self._held.source!r}: {self._apart}")
        relations = {relation: self._readable(relation) for relation in query.relations}
        fetch = Fetch(self._held.connection, relations, query, keys, self._timeout)
        self._fetches.append(fetch)
        return fetch.reader()

    def close(self) -> None:
        """Let go of every answer that was not read to its end."""
        for fetch in self._fetches:
            fetch.close()

    def _readable(self, relation: str) -> Readable:
        kept = self._held.relations.get(relation)
        if kept is not None:
            return kept
        if relation not in self._borrowed:
            with translated(self._held.source):
                schema = self._catalog.relation(relation)
                self._borrowed[relation] = self._held.borrow(schema, self._read(relation))
        return self._borrowed[relation]
