"""What errors of the engine mean to whoever asked, and what they are told of them."""

from __future__ import annotations

import duckdb
import pytest

from adapters.shadow.engine import translated
from algebra.errors import INTERNAL_ERROR, DataError, LockstepError, SourceUnavailableError


def error_of(statement: str) -> LockstepError:
    with duckdb.connect() as connection, pytest.raises(LockstepError) as caught, translated("s"):
        connection.execute(statement).fetchall()
    return caught.value


@pytest.mark.parametrize(
    "statement", ["SELECT nothing", "SELEC 1", "SELECT CAST(1 AS DECIMAL(38,-5))", "SELECT 1 + 'a'::BLOB"]
)
def test_a_statement_that_is_wrong_is_not_tried_again(statement: str) -> None:
    error = error_of(statement)
    assert not isinstance(error, SourceUnavailableError)
    assert error.message == f"source 's': {INTERNAL_ERROR}"


def test_a_value_that_does_not_fit_is_not_repeated_to_others() -> None:
    error = error_of("SELECT CAST(v AS INTEGER) FROM (VALUES ('canary')) AS t (v)")
    assert isinstance(error, DataError)
    assert "canary" in str(error), "the owner reads which"
    assert error.message == "source 's': a value does not fit its type"


def test_a_file_that_cannot_be_read_may_be_there_later() -> None:
    assert isinstance(error_of("ATTACH '/no/such/folder/file'"), SourceUnavailableError)
