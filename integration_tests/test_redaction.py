"""Secrets do not get out, however they are spelled, and what is harmless stays readable."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from adapters.spi import SourceConfig
from algebra.errors import SourceUnavailableError
from algebra.redaction import masked_url, redacted, remember, remember_options, remember_url

SECRET = "c@nary/9:x y%z"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:PASSWORD@db:5432/shop",
        "mysql+pymysql://ann:PASSWORD@db/shop?charset=utf8",
        "x://:PASSWORD@h",
        "x://h/d?password=PASSWORD&mode=1",
        "x://h/d?mode=1&api_key=PASSWORD",
    ],
)
def test_a_password_in_a_url_is_hidden_wherever_it_turns_up(url: str) -> None:
    secret = f"hunter-{abs(hash(url))}"
    config = SourceConfig("s", "a", url.replace("PASSWORD", secret))
    remember_url(config.url)
    assert secret not in repr(config)
    assert secret not in masked_url(config.url)
    error = SourceUnavailableError(f"cannot connect to {config.url}: password {secret!r} was wrong")
    assert secret not in str(error)
    assert secret not in error.message
    assert "cannot connect to" in str(error)


def test_every_spelling_of_a_secret_is_hidden() -> None:
    remember(SECRET)
    for spelling in (SECRET, quote(SECRET, safe=""), quote(SECRET)):
        assert SECRET not in redacted(f"before {spelling} after")
        assert redacted(f"before {quote(SECRET, safe='')} after") == "before *** after"
    assert redacted(f"[{SECRET}]") == "[***]"


def test_secrets_in_options_are_hidden() -> None:
    remember_options({"pool": {"sslpassword": "option-canary-1"}, "mode": "plain"})
    assert redacted("option-canary-1 in plain mode") == "*** in plain mode"


def test_what_is_harmless_stays() -> None:
    for text in (
        "cannot listen on 127.0.0.1:7000: is the address in use?",
        "sqlite:///shop.db has no relation 'orders'",
        "see https://example.org/a:b@c",
        "x = 1 AND y = 2",
    ):
        assert redacted(text) == text
    remember("abc")
    assert redacted("abc") == "abc", "too short to be told from ordinary words"


@pytest.mark.parametrize("rest", ["127.0.0.1:1/db", "127.0.0.1/db?contact=ann@example.org"])
def test_a_password_that_cuts_its_url_is_hidden_whole_and_in_part(rest: str) -> None:
    """Drivers take a slash for the end of the address, and show what is left."""
    remember_url(f"postgresql://app:fragile/ter2 CANARY@{rest}")
    assert redacted('unexpected spaces found in "ter2 CANARY@127.0.0.1:1/db"') == (
        'unexpected spaces found in "***@127.0.0.1:1/db"'
    )
    assert "CANARY" not in redacted(f"in 'CANARY@{rest}', in ter2%20CANARY@{rest}, in ter2+CANARY@{rest}")
    assert redacted("the password was fragile/ter2 CANARY") == "the password was ***"
    assert redacted('invalid integer value "fragile" for "port"') == 'invalid integer value "***" for "port"'
    assert redacted("a fragile thing, CANARY yellow") == "a fragile thing, CANARY yellow"


def test_a_parameter_ends_where_its_quote_does() -> None:
    assert redacted("there is no view 'a?token=xyz'; see b") == "there is no view 'a?token=***'; see b"
    assert redacted('{"target": "a?token=xyz", "b": 1}') == '{"target": "a?token=***", "b": 1}'


def test_a_remembered_parameter_may_hold_quotes() -> None:
    remember_url("x://h/d?password=quo'ted\"canary&mode=1")
    assert redacted("x://h/d?password=quo'ted\"canary&mode=1") == "x://h/d?password=***&mode=1"
