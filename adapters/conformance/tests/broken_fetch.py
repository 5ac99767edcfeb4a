"""Faults in fetch: wrong rows for joins, keys, names and predicates, or rows of another moment."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from adapters.conformance.queries import whole
from adapters.conformance.tests.fault import BrokenSnapshot, edit_rows, snapshot_fault
from adapters.memory.adapter import MemorySnapshot
from adapters.spi import SourceTransaction
from algebra.delta import Delta
from algebra.expressions import ColumnRef, column_refs
from algebra.local_view import EquiJoin, Keys, LocalView, OutputColumn
from algebra.position import Position
from algebra.schema import Catalog


class ShowsChangesTooEarly(BrokenSnapshot):
    """Changes come from the newest state, fetches from the snapshot."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        newest = MemorySnapshot(self.healthy._source, self.adapter.database.version, self.healthy._engine)
        return list(newest.changes(after).transactions())


class FetchesTooNew(BrokenSnapshot):
    """Fetches come from the newest state, changes from the snapshot."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        engine = self.healthy._engine
        newest = MemorySnapshot(self.healthy._source, self.adapter.database.version, engine)
        return newest.fetch(query, keys).read_all()


class FetchesLag(BrokenSnapshot):
    """A fetch of one table misses what the last transaction did."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        table = super().answer(query, keys)
        capture = self.healthy._version.capture
        if capture is None or not capture.log or len(query.occurrences) > 1:
            return table
        last = capture.log[-1].deltas.get(query.relations[0])
        if last is None:
            return table
        before = Delta.of_bag(table).minus(Delta(last.rows.rename_columns([*table.column_names, "_count"])))
        rows = before.rows.filter(pc.greater(before.rows["_count"], 0))
        return rows.drop_columns(["_count"])


class LosesDuplicates(BrokenSnapshot):
    """Equal rows come once."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        table = super().answer(query, keys)
        return (
            table.group_by(table.column_names, use_threads=False).aggregate([]) if table.num_rows else table
        )


class LeftOuterJoins(BrokenSnapshot):
    """Rows of the first relation that match nothing come too, with NULL."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        table = super().answer(query, keys)
        if not query.joins or keys is not None:
            return table
        first = query.occurrences[0]
        mine = [column for column in query.columns if column.source.occurrence == first.alias]
        alone = replace(query, occurrences=(first,), joins=(), predicates=(), columns=tuple(mine))
        matched = set(map(repr, table.select([c.name for c in mine]).to_pylist()))
        extra = [row for row in self.healthy.fetch(alone).read_all().to_pylist() if repr(row) not in matched]
        return pa.concat_tables([table, pa.Table.from_pylist(extra, table.schema)])


class NullsJoin(BrokenSnapshot):
    """A self-join takes NULL for equal to NULL."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        table = super().answer(query, keys)
        if len(query.occurrences) != 2 or len(query.relations) != 1 or len(query.joins) != 1 or keys:
            return table
        catalog = Catalog(self.healthy._source, self.healthy._version.schemas)
        rows = self.healthy.fetch(whole(catalog, query.relations[0])).read_all()
        rows = rows.rename_columns([c.name for c in catalog.relation(query.relations[0]).columns])
        unknown = rows.filter(pc.is_null(rows[query.joins[0].left.column])).to_pylist()
        extra = [{c.name: row[c.source.column] for c in query.columns} for row in unknown]
        return pa.concat_tables([table, pa.Table.from_pylist(extra, table.schema)])


class ConfusesOccurrences(BrokenSnapshot):
    """Two occurrences of one relation are taken for one."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        first = {o.relation: o.alias for o in reversed(query.occurrences)}
        relation = {o.alias: o.relation for o in query.occurrences}

        def same(ref: ColumnRef) -> ColumnRef:
            return ColumnRef(first[relation[ref.occurrence]], ref.column)

        columns = tuple(OutputColumn(c.name, same(c.source), c.type) for c in query.columns)
        return super().answer(replace(query, columns=columns), keys)


class UsesOneJoinCondition(BrokenSnapshot):
    """Of several conditions between two occurrences only the first is used."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        joins: dict[frozenset[str], EquiJoin] = {}
        for join in query.joins:
            joins.setdefault(frozenset((join.left.occurrence, join.right.occurrence)), join)
        return super().answer(replace(query, joins=tuple(joins.values())), keys)


class IgnoresKeys(BrokenSnapshot):
    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        return super().answer(query, None)


class IgnoresEmptyKeys(BrokenSnapshot):
    """No key at all is taken for no restriction."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        return super().answer(query, keys if keys and keys.values.num_rows else None)


class UsesFirstKeyColumn(BrokenSnapshot):
    """Of composite keys only the first column is compared."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        if keys is None or len(keys.columns) < 2:
            return super().answer(query, keys)
        first = keys.values.select(keys.columns[:1]).group_by(keys.columns[:1]).aggregate([])
        return super().answer(query, Keys(keys.columns[:1], first))


class NullKeysMatch(BrokenSnapshot):
    """Rows with NULL in a key column match any key."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        table = super().answer(query, keys)
        if keys is None:
            return table
        everything = super().answer(query, None)
        unknown = edit_rows(everything, lambda row: row if row[keys.columns[0]] is None else None)
        return pa.concat_tables([table, unknown])


class UsesFewKeys(BrokenSnapshot):
    """A limit on parameters cuts the keys off."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        return super().answer(query, keys and Keys(keys.columns, keys.values.slice(0, 10_000)))


class CutsLongAnswers(BrokenSnapshot):
    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        return super().answer(query, keys).slice(0, 10_000)


class AppliesNullPredicatesWrong(BrokenSnapshot):
    """Rows with NULL in any column of a predicate are dropped."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        table = super().answer(query, keys)
        tested = {ref for predicate in query.predicates for ref in column_refs(predicate)}
        names = [column.name for column in query.columns if column.source in tested]
        return edit_rows(table, lambda row: None if any(row[name] is None for name in names) else row)


class AnswersOnce(BrokenSnapshot):
    """A cursor that was read to its end stays there."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        table = super().answer(query, keys)
        asked = self.__dict__.setdefault("asked", [])
        again = (query, keys is None) in asked
        asked.append((query, keys is None))
        return table.slice(0, 0) if again else table


class UnquotedTables(BrokenSnapshot):
    """A table whose name is no plain word is taken for an empty one."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        table = super().answer(query, keys)
        return table if all(name.isidentifier() for name in query.relations) else table.slice(0, 0)


class UnquotedColumns(BrokenSnapshot):
    """A column whose name is no plain word is read as its own name."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        ugly = [column.name for column in query.columns if not column.source.column.isidentifier()]
        return edit_rows(super().answer(query, keys), lambda row: {**row, **dict.fromkeys(ugly, 0)})


class ShadowsColumns(BrokenSnapshot):
    """A column named as one of the adapter's own is read as that one."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        mine = [column.name for column in query.columns if column.source.column in ("seq", "op", "tx")]
        return edit_rows(super().answer(query, keys), lambda row: {**row, **dict.fromkeys(mine, 1)})


class IgnoresCase(BrokenSnapshot):
    """Columns are found by their lower-case names."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        def fold(column: OutputColumn) -> OutputColumn:
            source = column.source
            lower = source.column.lower()
            schema = self.healthy._version.schemas[query.relations[0]]
            known = schema.has_column(lower)
            return replace(column, source=ColumnRef(source.occurrence, lower)) if known else column

        return super().answer(replace(query, columns=tuple(map(fold, query.columns))), keys)


FAULTS = (
    snapshot_fault(ShowsChangesTooEarly, "snapshots-stay-as-they-are"),
    snapshot_fault(FetchesTooNew, "snapshots-stay-as-they-are"),
    snapshot_fault(
        FetchesLag,
        "a-snapshot-that-waits-for-a-writer-agrees",
        "snapshots-agree-under-concurrent-writers",
        "joins-agree-with-their-tables",
        "transactions-stay-whole-under-concurrent-writers",
        "inserts",
    ),
    snapshot_fault(LosesDuplicates, "duplicates-are-counted", "projections", "joins-of-several-relations"),
    snapshot_fault(LeftOuterJoins, "joins-of-several-relations", "joins-agree-with-their-tables"),
    snapshot_fault(NullsJoin, "nulls-never-join"),
    snapshot_fault(ConfusesOccurrences, "self-joins"),
    snapshot_fault(UsesOneJoinCondition, "several-join-conditions"),
    snapshot_fault(IgnoresKeys, "keys-select-rows", "composite-keys", "no-keys-no-rows", "many-keys"),
    snapshot_fault(IgnoresEmptyKeys, "no-keys-no-rows"),
    snapshot_fault(UsesFirstKeyColumn, "composite-keys", "many-keys"),
    snapshot_fault(NullKeysMatch, "null-never-equals-a-key", "key-of-integer"),
    snapshot_fault(UsesFewKeys, "many-keys"),
    snapshot_fault(CutsLongAnswers, "many-rows"),
    snapshot_fault(AppliesNullPredicatesWrong, "predicates-never-lose-rows"),
    snapshot_fault(AnswersOnce, "fetches-do-not-disturb-each-other"),
    snapshot_fault(UnquotedTables, "ugly-table-names"),
    snapshot_fault(UnquotedColumns, "ugly-column-names"),
    snapshot_fault(ShadowsColumns, "names-an-adapter-may-use-itself"),
    snapshot_fault(IgnoresCase, "names-that-differ-in-case"),
)
