"""One cycle: the new states of the prepared relations compared with the shadow, in one transaction.

Problem: give changes that agree with the rows of the same state, for relations with and without keys, without
holding a relation in memory or touching a row in Python, and give the same changes again after a crash.

Wrong ways: compare keys or timestamps alone (bags have none, and a timestamp may lie); keep the shadow in
memory (a restart loses what was not delivered); show a difference before it is durable (a crash would
compute another one).

Chosen way: the shadow holds, per relation, every distinct row with its number of copies. A cycle sums +1 for
each row that is there now and -copies for each row of the shadow, grouped by all columns (GROUP BY takes NULL
and NaN as equal to themselves); what does not cancel is the difference. DuckDB streams the new rows into that
sum, and spills to disk what does not fit into memory. State, differences, ordinal and notes are committed in
one transaction before anyone is shown them: after a crash, all of a cycle is there, or nothing of it.

A relation with a key may instead be patched (`outdated`, then `patch`): the adapter streams nothing but keys
and a hint (a row version or a modification time) of all rows, is told which rows to read, and reads those.
The sum is the same, over the rows of those keys and of the keys that are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from adapters.shadow.engine import one
from adapters.shadow.extent import Extent
from adapters.shadow.layout import RELATIONS, Kept
from algebra.errors import DataError

_FOUND = "_lockstep_found"
_READ = "_lockstep_read"
_SEEN = "_lockstep_seen"
_STALE = "_lockstep_stale"


@dataclass(frozen=True)
class Outdated:
    """What is known of a relation after its keys and hints were looked through.

    `keys`: of the rows that must be read again, named as the relation names them. `rows`: how many rows the
    relation has now.
    """

    relation: str
    keys: pa.Table
    rows: int


class Cycle:
    """The transaction of one cycle on the attached shadow; made by `OpenShadow.cycle`.

    `now` is the wall-clock time before the source's read transaction began, in seconds; it only matters to
    relations that are patched.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        source: str,
        relations: Mapping[str, Kept],
        ordinal: int,
        now: float,
    ) -> None:
        self._connection = connection
        self._source = source
        self._relations = relations
        self._ordinal = ordinal
        self._now = now
        self.found = False
        """Whether anything differed so far."""

    def replace(self, relation: str, rows: Extent, *, note: str = "", track: bool = False) -> None:
        """Take these rows for the whole new state of the relation.

        `note` is kept with the state. `track` remembers the keys that differ as fresh, for `outdated`.
        """
        kept = self._relations[relation]
        with rows.scanned(self._connection) as scan:
            self._compare(kept, scan, f"SELECT * FROM {kept.state}")
        self._settle(kept, note, track)

    def outdated(self, relation: str, versions: Extent, hint: str, overlap: float) -> Outdated:
        """Which rows must be read again, given the key and the hint of all rows there are now.

        `versions` has the key columns in the key's order, then the column `hint`. Rows must be read if their
        key is new, or their hint differs from the one in the shadow or is NULL, or if that hint is fresh: for
        `overlap` seconds after it was first seen, another change of the row may leave it as it is.
        """
        kept = self._relations[relation]
        keys = kept.key_columns
        names = [*keys, kept.column(hint)]
        types = dict(zip(kept.columns, kept.stored, strict=True))
        casts = ", ".join(f"CAST(c{i} AS {types[c]}) AS {c}" for i, c in enumerate(names))
        with versions.scanned(self._connection) as scan:
            self._run(f"CREATE OR REPLACE TEMP TABLE {_SEEN} AS SELECT {casts} FROM {scan}")
        version = kept.column(hint)
        fresh = (
            f"EXISTS (SELECT 1 FROM {kept.recent} AS r WHERE {_same('r', 'n', keys)})" if overlap else "false"
        )
        self._run(
            f"CREATE OR REPLACE TEMP TABLE {_STALE} AS SELECT {_columns('n', keys)} FROM {_SEEN} AS n "
            f"LEFT JOIN {kept.state} AS s ON {_same('s', 'n', keys)} "
            f"WHERE s.copies IS NULL OR n.{version} IS NULL OR n.{version} IS DISTINCT FROM s.{version} "
            f"OR {fresh}"
        )
        # Read once more by this cycle, which began after their time was over.
        self._run(f"DELETE FROM {kept.recent} WHERE seen + $1 < $2", [overlap, self._now])
        outputs = ", ".join(keys)
        stale = self._connection.sql(f"SELECT {outputs} FROM {_STALE}").to_arrow_table()
        fields = [kept.arrow.field(name) for name in kept.key]
        seen = one(self._connection, f"SELECT count(*) FROM {_SEEN}")
        return Outdated(relation, stale.rename_columns(list(kept.key)).cast(pa.schema(fields)), int(seen[0]))

    def patch(self, outdated: Outdated, rows: Extent, *, note: str, track: bool) -> bool:
        """Take these rows for those that were outdated; what was not seen any more is gone.

        False, and nothing is changed, unless there is exactly one row for each outdated key: then the source
        or the hint is not what it seemed, and the relation must be read as a whole.
        """
        kept = self._relations[outdated.relation]
        keys = kept.key_columns
        with rows.scanned(self._connection) as scan:
            self._run(f"CREATE OR REPLACE TEMP TABLE {_READ} AS SELECT {kept.cast} FROM {scan}")
        counted = one(
            self._connection,
            f"SELECT (SELECT count(*) FROM {_READ}), count(*) "
            f"FROM (SELECT DISTINCT {', '.join(keys)} FROM {_READ}) AS r "
            f"JOIN {_STALE} AS o ON {_same('o', 'r', keys)}",
        )
        if tuple(counted) != (outdated.keys.num_rows, outdated.keys.num_rows):
            return False
        self._compare(
            kept,
            _READ,
            f"SELECT s.* FROM {kept.state} AS s "
            f"WHERE EXISTS (SELECT 1 FROM {_STALE} AS o WHERE {_same('o', 's', keys)}) "
            f"OR NOT EXISTS (SELECT 1 FROM {_SEEN} AS n WHERE {_same('n', 's', keys)})",
        )
        self._settle(kept, note, track)
        return True

    def note(self, relation: str, note: str) -> None:
        """Keep another note with a state that stays as it is."""
        self._run(
            f"UPDATE {RELATIONS} SET note = $1 WHERE number = $2", [note, self._relations[relation].number]
        )

    def _compare(self, kept: Kept, new: str, old: str) -> None:
        columns = ", ".join(kept.columns)
        self._run(
            f"CREATE OR REPLACE TEMP TABLE {_FOUND} AS "
            f"SELECT {columns}, sum(copies)::BIGINT AS copies, sum(present)::BIGINT AS present "
            f"FROM (SELECT {kept.cast}, 1 AS copies, 1 AS present FROM {new} "
            f"UNION ALL SELECT {columns}, -copies, 0 FROM ({old})"
            f") GROUP BY {', '.join(kept.identity)} HAVING sum(copies) <> 0"
        )

    def _settle(self, kept: Kept, note: str, track: bool) -> None:
        if note != kept.note:
            self.note(kept.name, note)
        row = one(self._connection, f"SELECT count(*) FROM {_FOUND}")
        if not row[0]:
            return
        self.found = True
        columns = ", ".join(kept.columns)
        same = " AND ".join(f"s.i{n} IS NOT DISTINCT FROM f.i{n}" for n in range(len(kept.identity)))
        parts = ", ".join(f"{expression} AS i{n}" for n, expression in enumerate(kept.identity))
        self._run(f"INSERT INTO {kept.diff} SELECT {self._ordinal}, copies, {columns} FROM {_FOUND}")
        self._run(
            f"DELETE FROM {kept.state} WHERE rowid IN (SELECT s.place "
            f"FROM (SELECT rowid AS place, {parts} FROM {kept.state}) AS s "
            f"JOIN (SELECT {parts} FROM {_FOUND}) AS f ON {same})"
        )
        self._run(f"INSERT INTO {kept.state} SELECT present, {columns} FROM {_FOUND} WHERE present > 0")
        check_key(self._connection, self._source, kept, f"(SELECT * FROM {_FOUND} WHERE present > 0)")
        if track:
            keys = ", ".join(kept.key_columns)
            self._run(
                f"INSERT INTO {kept.recent} SELECT $1, {keys} FROM {_FOUND} WHERE present > 0", [self._now]
            )

    def _run(self, statement: str, values: Sequence[object] = ()) -> None:
        self._connection.execute(statement, list(values))


def check_key(connection: duckdb.DuckDBPyConnection, source: str, kept: Kept, among: str = "") -> None:
    """Raise DataError if the relation's key does not tell its rows apart; `among`: which rows to look at.

    Views would count such rows wrongly; better none than that.
    """
    if not kept.key:
        return
    keys = kept.key_columns
    restricted = f"SEMI JOIN {among} AS f ON {_same('f', 's', keys)} " if among else ""
    twice = one(
        connection,
        f"SELECT {_columns('s', keys)} FROM {kept.state} AS s {restricted}"
        f"GROUP BY {_columns('s', keys)} HAVING sum(s.copies) > 1 LIMIT 1",
    )
    if twice is not None:
        values = ", ".join(f"{name} = {value!r}" for name, value in zip(kept.key, twice, strict=True))
        relation = f"relation {source}.{kept.name}"
        raise DataError(
            f"{relation} has more than one row with {values}, which is said to be its key",
            told=f"{relation} has more than one row with the same key",
        )


def _columns(alias: str, columns: Sequence[str]) -> str:
    return ", ".join(f"{alias}.{column}" for column in columns)


def _same(left: str, right: str, columns: Sequence[str]) -> str:
    return " AND ".join(f"{left}.{column} = {right}.{column}" for column in columns)
