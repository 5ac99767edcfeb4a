"""The reference engine's expressions against DuckDB's."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
import sqlglot

from algebra.engines.reference import evaluate, knows

VALUES: dict[str, str] = {
    "n": "CAST(NULL AS INTEGER)",
    "i": "7",
    "x": "CAST(2.25 AS DOUBLE)",
    "m": "CAST('-2.50' AS DECIMAL(8,2))",
    "t": "'Ada'",
    "yes": "TRUE",
    "d": "DATE '2024-02-29'",
    "ts": "TIMESTAMP '2024-02-29 12:00:00'",
    "tz": "TIMESTAMPTZ '2024-02-29 12:00:00+00:00'",
}

EXPRESSIONS = [
    "CAST(m AS INTEGER)",
    "CAST(x AS INTEGER)",
    "CAST('12' AS BIGINT)",
    "CAST(m AS DECIMAL(8,1))",
    "CAST(x AS DECIMAL(8,1))",
    "CAST('1.005' AS DECIMAL(8,2))",
    "CAST('2024-02-29' AS DATE)",
    "CAST(ts AS DATE)",
    "CAST(d AS TIMESTAMP)",
    "CAST('2024-02-29 01:02:03' AS TIMESTAMP)",
    "CAST('true' AS BOOLEAN)",
    "CAST(i AS BOOLEAN)",
    "CAST(yes AS VARCHAR)",
    "CAST(yes AS INTEGER)",
    "CAST(m AS VARCHAR)",
    "CAST(d AS VARCHAR)",
    "CAST(ts AS VARCHAR)",
    "TRY_CAST(t AS INTEGER)",
    "TRY_CAST(t AS DATE)",
    "TRY_CAST(t AS BOOLEAN)",
    "d > '2024-02-28'",
    "d = ts",
    "d < ts",
    "ts BETWEEN '2024-02-29 12:00:00' AND '2024-03-01'",
    "tz > '2024-02-29 11:59:59+00:00'",
    "m IN (1, -2.5)",
    "d IN ('2024-01-01', '2024-02-29')",
    "i NOT IN (1, n)",
    "i BETWEEN n AND 3",
    "yes IS TRUE",
    "(n > 1) IS NOT FALSE",
    "n IS NULL",
    "t LIKE 'A_a'",
    "t LIKE '%d%'",
    "t NOT LIKE 'd%'",
    "t || i || yes",
    "x * 1.5",
    "m * 2",
    "x > m",
    "greatest(i, n, 3)",
    "least(m, 1.5)",
    "year(d) + month(ts) + day(d)",
    "CASE i WHEN 7 THEN 'seven' ELSE 'other' END",
    "CASE n WHEN n THEN 1 END",
    "nullif(i, 7)",
    "nullif(n, 7)",
]


@pytest.mark.parametrize("sql", EXPRESSIONS)
def test_an_expression_means_what_it_means_in_duckdb(sql: str) -> None:
    expression = sqlglot.parse_one(sql, dialect="duckdb")
    assert knows(expression)
    columns = ", ".join(f"{value} AS {name}" for name, value in VALUES.items())
    with duckdb.connect() as connection:
        row = connection.sql(f"SELECT {columns}").to_arrow_table().to_pylist()[0]
        table = connection.sql(f"SELECT {sql} AS value FROM (SELECT {columns})").to_arrow_table()
    expected: Any = table["value"].to_pylist()[0]
    found = evaluate(expression, lambda _, name: row[name])
    assert found == expected
    assert isinstance(found, bool) == isinstance(expected, bool)


@pytest.mark.parametrize("sql", ["substring(t, 1, 1)", "trim(t)", "CAST(t AS BLOB)", "abs(length(trim(t)))"])
def test_what_it_does_not_know(sql: str) -> None:
    assert not knows(sqlglot.parse_one(sql, dialect="duckdb"))
