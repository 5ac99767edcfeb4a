"""An inventory behind a REST service as a source of Lockstep.

The service numbers its states and answers for any recent one (`at`), and its feeds list every transaction. So
one number, taken when a snapshot is opened, makes all that is read afterwards agree.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import duckdb
import pyarrow as pa

from adapters.local_join import evaluate
from adapters.options import GivenOptions
from adapters.rate_limit import FOOTPRINT_OPTIONS, Footprint, RateLimit
from adapters.relations import chosen_relations
from adapters.spi import (
    COUNT,
    Adapter,
    Boundaries,
    Capabilities,
    CaptureProfile,
    Changes,
    Snapshot,
    SourceConfig,
    SourceTransaction,
)
from algebra.delta import Delta
from algebra.errors import (
    ConfigurationError,
    PositionTrimmedError,
    SchemaChangedError,
    SourceUnavailableError,
)
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import Catalog, Column, RelationSchema
from lockstep_inventory.client import Client, GoneError

TYPES = {"integer": pa.int64(), "number": pa.float64(), "text": pa.string(), "boolean": pa.bool_()}
OPTIONS = ("token", *FOOTPRINT_OPTIONS)
POLL_SECONDS = 0.5

Json = dict[str, Any]


class InventoryAdapter(Adapter):
    """One inventory; `url: http://host:port/inventory`, with the option `token`."""

    kind = "inventory"
    captures: ClassVar[Mapping[str, CaptureProfile]] = {
        "feed": CaptureProfile(
            Capabilities(capture="feed", boundaries=Boundaries.EXACT),
            rights="a token with the role keeper",
            load="the service keeps each transaction until it is acknowledged",
            deletes="the feed has the old rows",
        )
    }

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        if not config.url.startswith("http://") or config.url.count("/") != 3:
            raise ConfigurationError(
                f"source {config.name!r}: the url must be http://host:port/inventory, not {config.url!r}"
            )
        if config.capture not in (None, *self.captures):
            raise ConfigurationError(f"source {config.name!r}: unknown capture {config.capture!r}")
        GivenOptions.of(config).refuse_unknown(OPTIONS)
        footprint = Footprint.of(config)
        self._client = Client(
            config.name, config.url, str(config.options.get("token", "")), footprint.statement_timeout
        )
        self._limit = RateLimit(footprint.rate_limit)
        self._feed = f"lockstep-{config.name}"
        self._engine: duckdb.DuckDBPyConnection | None = None
        self._seen = -1
        self._woken = threading.Event()

    @property
    def capabilities(self) -> Capabilities:
        return self.captures["feed"].capabilities

    def catalog(self) -> Catalog:
        schemas = schemas_of(self._client.call("GET", "tables")["tables"])
        return Catalog(self.config.name, chosen_relations(self.config.name, schemas, self.config.relations))

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        specs = self._client.call("GET", "tables")["tables"]
        chosen_relations(self.config.name, specs, relations)
        feed = self._read_feed()
        followed = feed["tables"] if feed else {}
        wanted = [name for name in dict.fromkeys((*followed, *relations)) if name in specs]
        if feed and followed == {name: specs[name] for name in wanted}:
            return []
        if not dry_run:
            self._client.call("PUT", "feeds", self._feed, body={"tables": wanted})
        return [f"PUT feeds/{self._feed}: follow {', '.join(wanted)}"]

    def remove(self, *, dry_run: bool = False) -> list[str]:
        if self._read_feed() is None:
            return []
        if not dry_run:
            self._client.call("DELETE", "feeds", self._feed)
        return [f"DELETE feeds/{self._feed}"]

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        self._limit.pause()
        self._limit.spend(2)
        # The feed first: a feed that is made in between is not taken for one that covers this version.
        feed = self._read_feed()
        state = self._client.call("GET", "tables")
        self._seen = state["version"]
        if self._engine is None:
            self._engine = duckdb.connect()
        yield InventorySnapshot(self, state, feed, self._engine)

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._woken.is_set() and (left := deadline - time.monotonic()) > 0:
            query = f"after={self._seen}&seconds={min(POLL_SECONDS, left)}"
            if self._client.call("GET", "news", query=query) != self._seen:
                break
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def acknowledge(self, position: Position) -> None:
        feed = self._read_feed()
        # A position of another feed says nothing about this one.
        if feed and feed["epoch"] == position.token:
            body = {"version": position.ordinal}
            self._client.call("POST", "feeds", self._feed, "acknowledged", body=body)

    def close(self) -> None:
        self._limit.close()
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def request(self, method: str, *path: str, body: Any = None, query: str = "") -> Any:
        """A request within a snapshot."""
        self._limit.spend()
        return self._client.call(method, *path, body=body, query=query)

    def changes(self, after: int, upto: int) -> Json:
        """The transactions of the feed after one version, up to another."""
        found: Json = self.request("GET", "feeds", self._feed, "changes", query=f"after={after}&upto={upto}")
        return found

    def _read_feed(self) -> Json | None:
        try:
            feed: Json = self._client.call("GET", "feeds", self._feed)
        except GoneError:
            return None
        return feed


class InventorySnapshot(Snapshot):
    """One version of the inventory."""

    def __init__(
        self, adapter: InventoryAdapter, state: Json, feed: Json | None, engine: duckdb.DuckDBPyConnection
    ) -> None:
        self._adapter = adapter
        self._source = adapter.config.name
        self._version: int = state["version"]
        self._specs: Json = state["tables"]
        self._feed = feed
        self._engine = engine

    @property
    def position(self) -> Position:
        return self._position(self._version)

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        feed = self._feed
        if feed is None:
            raise ConfigurationError(f"source {self._source!r} is not prepared: it has no feed")
        drifted = [name for name, spec in feed["tables"].items() if self._specs.get(name) != spec]
        if drifted:
            raise SchemaChangedError(
                f"relation {self._source}.{drifted[0]} has changed and has to be prepared again"
            )
        if after.token not in ("", feed["epoch"]) or not feed["floor"] <= after.ordinal <= self._version:
            raise self._trimmed(after)
        try:
            found = self._adapter.changes(after.ordinal, self._version)
        except GoneError as gone:
            raise self._trimmed(after) from gone
        if found["feed"]["epoch"] != feed["epoch"]:
            raise self._trimmed(after)
        schemas = schemas_of(feed["tables"])
        return Changes.of(
            SourceTransaction(
                self._position(transaction["version"]),
                {name: delta_of(schemas[name], rows) for name, rows in transaction["changes"].items()},
            )
            for transaction in found["transactions"]
        )

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        schemas = schemas_of(self._specs)
        query.check(Catalog(self._source, schemas))
        tables: dict[str, pa.Table] = {}
        # Those that the keys restrict first; the others are then asked for what can join.
        for occurrence in sorted(query.occurrences, key=lambda o: not _keys_of(query, keys, o.alias)):
            columns = _keys_of(query, keys, occurrence.alias) or _joined(query, tables, occurrence.alias)
            tables[occurrence.alias] = self._rows(schemas[occurrence.relation], columns)
        return evaluate(self._engine, query, tables, keys).to_reader()

    def _rows(self, schema: RelationSchema, keys: Mapping[str, list[Any]]) -> pa.Table:
        body: Json = {"at": self._version}
        if keys:
            distinct = dict.fromkeys(zip(*keys.values(), strict=True))
            body |= {"columns": list(keys), "keys": list(distinct)}
        try:
            return table_of(schema, self._adapter.request("POST", "tables", schema.name, "query", body=body))
        except GoneError as gone:
            # A reader that was too slow tries again with a newer version.
            raise SourceUnavailableError(f"source {self._source!r}: {gone}") from gone

    def _trimmed(self, after: Position) -> PositionTrimmedError:
        return PositionTrimmedError(f"source {self._source!r} no longer has the changes after {after}")

    def _position(self, version: int) -> Position:
        return Position(version, self._feed["epoch"] if self._feed else "")


def _keys_of(query: LocalView, keys: Keys | None, alias: str) -> dict[str, list[Any]]:
    """The key values that restrict one occurrence, by its columns."""
    if keys is None:
        return {}
    sources = {name: query.output(name).source for name in keys.columns}
    return {ref.column: keys.values[n].to_pylist() for n, ref in sources.items() if ref.occurrence == alias}


def _joined(query: LocalView, tables: Mapping[str, pa.Table], alias: str) -> dict[str, list[Any]]:
    """The values of one join column that the tables read so far have: only such rows can join."""
    for join in query.joins:
        for here, there in ((join.left, join.right), (join.right, join.left)):
            if here.occurrence == alias and there.occurrence in tables:
                return {here.column: tables[there.occurrence][there.column].drop_null().to_pylist()}
    return {}


def schemas_of(specs: Mapping[str, Json]) -> dict[str, RelationSchema]:
    """The relations as Lockstep knows them."""
    return {
        name: RelationSchema(
            name,
            tuple(Column(c, TYPES[t], nullable=c not in spec["key"]) for c, t in spec["columns"].items()),
            tuple(spec["key"]),
        )
        for name, spec in specs.items()
    }


def table_of(schema: RelationSchema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows of JSON values as an Arrow table."""
    arrays = [pa.array([row[i] for row in rows], column.type) for i, column in enumerate(schema.columns)]
    return pa.table(arrays, names=[column.name for column in schema.columns])


def delta_of(schema: RelationSchema, rows: Sequence[tuple[int, Sequence[Any]]]) -> Delta:
    """Counted rows of JSON values."""
    counts = pa.array([count for count, _ in rows], pa.int64())
    return Delta(table_of(schema, [row for _, row in rows]).append_column(COUNT, counts))
