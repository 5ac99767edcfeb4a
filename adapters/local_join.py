"""A local view evaluated over Arrow tables, by DuckDB."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from algebra.expressions import ColumnRef
from algebra.local_view import Keys, LocalView


def evaluate(
    engine: duckdb.DuckDBPyConnection, query: LocalView, tables: Mapping[str, pa.Table], keys: Keys | None
) -> pa.Table:
    """The rows of `query` where each occurrence (by alias) is one of `tables`.

    Predicates are left to the caller, as the contract allows. Tables and columns go by number in the
    SQL: DuckDB ignores the case of names, the algebra does not.
    """
    aliases = [occurrence.alias for occurrence in query.occurrences]

    def sql(ref: ColumnRef) -> str:
        column = tables[ref.occurrence].column_names.index(ref.column)
        return f"t{aliases.index(ref.occurrence)}.c{column}"

    sources = {f"t{i}": tables[alias] for i, alias in enumerate(aliases)}
    conditions = [f"{sql(join.left)} = {sql(join.right)}" for join in query.joins]
    if keys is not None:
        sources["k"] = keys.values
        conditions += [f"{sql(query.output(name).source)} = k.c{i}" for i, name in enumerate(keys.columns)]
    outputs = [f"{sql(column.source)} AS o{i}" for i, column in enumerate(query.columns)]
    statement = (
        f"SELECT {', '.join(outputs)} FROM {', '.join(sources)} WHERE {' AND '.join(conditions) or 'true'}"
    )

    try:
        for name, table in sources.items():
            engine.register(name, table.rename_columns([f"c{i}" for i in range(table.num_columns)]))
        answer: pa.Table = engine.sql(statement).to_arrow_table()
    finally:
        for name in sources:
            engine.unregister(name)
    return answer.rename_columns(query.arrow.names).cast(query.arrow)
