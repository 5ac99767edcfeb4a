"""Options are read with their types checked, and an error says what was wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.options import GivenOptions
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError

Read = Callable[[GivenOptions], Any]


def given(value: object) -> GivenOptions:
    return GivenOptions.of(SourceConfig("shop", "x", "x", options={"it": value}))


@pytest.mark.parametrize(
    ("read", "value", "found"),
    [
        (lambda g: g.text("it", "a"), "b", "b"),
        (lambda g: g.flag("it", True), False, False),
        (lambda g: g.number("it", 1), 0, 0.0),
        (lambda g: g.seconds("it", 1), float("inf"), float("inf")),
        (lambda g: g.whole("it", 1, most=38), 38, 38),
        (lambda g: g.names("it"), ["a", "b"], ("a", "b")),
        (lambda g: g.names("it", or_one=True), "a", ("a",)),
        (lambda g: g.choice("it", "a", "b"), "b", "b"),
        (lambda g: g.secret("it"), "p", "p"),
        (lambda g: g.text("other", "a"), "b", "a"),
        (lambda g: g.names("other"), "b", ()),
        (lambda g: g.secret("other"), "b", ""),
    ],
)
def test_a_value_of_the_right_type_is_taken(read: Read, value: object, found: object) -> None:
    assert read(given(value)) == found


@pytest.mark.parametrize(
    ("read", "value", "wanted"),
    [
        (lambda g: g.text("it", "a"), 3, "3, not a text"),
        (lambda g: g.flag("it", True), "no", "'no', not true or false"),
        (lambda g: g.number("it", 1), True, "True, not a number of at least 0"),
        (lambda g: g.number("it", 1, least=0.01), 0, "0, not a number of at least 0.01"),
        (lambda g: g.seconds("it", 1), float("nan"), "nan, not a time in seconds"),
        (lambda g: g.whole("it", 1), 1.5, "1.5, not a whole number of at least 0"),
        (lambda g: g.whole("it", 1), True, "True, not a whole number of at least 0"),
        (lambda g: g.whole("it", 1, most=38), 39, "39, not a whole number from 0 to 38"),
        (lambda g: g.names("it"), "a", "'a', not a list of names"),
        (lambda g: g.names("it"), [1], "[1], not a list of names"),
        (lambda g: g.choice("it", "a", "b", "c"), "d", "'d', not a, b or c"),
    ],
)
def test_any_other_is_refused(read: Read, value: object, wanted: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(given(value))
    assert str(caught.value) == f"source 'shop': option it is {wanted}"


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="option it is not a text") as caught:
        given(123456).secret("it")
    assert "123456" not in str(caught.value)


@pytest.mark.parametrize(("known", "listed"), [(["b", "a"], "a, b"), ((), "none")])
def test_an_unknown_option_is_told_with_those_there_are(known: list[str], listed: str) -> None:
    given(1).refuse_unknown(["it"])
    with pytest.raises(ConfigurationError) as caught:
        given(1).refuse_unknown(known, "it has")
    assert str(caught.value) == f"source 'shop': unknown option 'it'; it has: {listed}"
