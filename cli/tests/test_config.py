from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from algebra.errors import ConfigurationError
from algebra.redaction import redacted
from cli import build, config
from cli.config_model import Engine, MediatorSection

Write = Callable[[str], Path]

WHOLE = """\
mediator: {listen: 127.0.0.1:7000, warehouse: ./warehouse, engine: duckdb, spark_conf: {spark.ui: false}}
sources:
  shop: {adapter: sqlite, url: sqlite:///shop.db, relations: [orders, lineitem], listen: 127.0.0.1:7001}
  crm: {adapter: duckdb, url: duckdb:///data/crm.duckdb, listen: 0.0.0.0:7002, options: {poll: 0}}
  far: {address: far.example:7003}
views:
  order_book:
    sql: SELECT o.id FROM shop.orders o
    allow_cross_join: true
  stock: {sql: SELECT s.id FROM shop.stock s, maintenance: strobe, consistency: strong, force: true}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def written(text: str) -> Path:
        Path("shop.yaml").write_text(text, encoding="utf-8")
        return Path("shop.yaml")

    return written


def test_the_whole_file(write: Write, tmp_path: Path) -> None:
    loaded = config.load(write(WHOLE))
    assert loaded.mediator.engine is Engine.DUCKDB
    assert loaded.mediator.warehouse == str(tmp_path / "warehouse")
    assert loaded.mediator.spark_conf == {"spark.ui": "false"}
    assert loaded.sources["shop"].url == f"sqlite:///{tmp_path}/shop.db"
    assert loaded.sources["shop"].relations == ("orders", "lineitem")
    assert loaded.sources["crm"].url == f"duckdb:///{tmp_path}/data/crm.duckdb"
    assert loaded.sources["crm"].options == {"poll": 0}
    book, stock = loaded.views["order_book"], loaded.views["stock"]
    assert (book.maintenance, book.consistency, book.force) == ("", None, False)
    assert (stock.maintenance, stock.consistency, stock.force) == ("strobe", "strong", True)
    assert loaded.views["order_book"].allow_cross_join is True
    assert list(loaded.served) == ["shop", "crm"]
    assert [loaded.address(name) for name in loaded.sources] == [
        "127.0.0.1:7001",
        "127.0.0.1:7002",
        "far.example:7003",
    ]


@pytest.mark.parametrize("text", ["", "views:\n", "sources: {}\n"])
def test_any_part_may_be_absent(write: Write, text: str) -> None:
    loaded = config.load(write(text))
    assert (loaded.mediator.listen, loaded.mediator.max_batch) == ("127.0.0.1:7000", 10_000)
    assert loaded.sources == {}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:////abs/x.db", "sqlite:////abs/x.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite:///x.db?mode=ro", "sqlite:///{folder}/x.db?mode=ro"),
        ("duckdb:///../x.duckdb", "duckdb:///{folder}/../x.duckdb"),
        ("files:///inbox", "files:///{folder}/inbox"),
        ("files:////srv/inbox", "files:////srv/inbox"),
        ("file:///srv/inbox", "file:///srv/inbox"),
        ("postgresql:///shop", "postgresql:///shop"),
        ("postgresql://me@host/shop", "postgresql://me@host/shop"),
    ],
)
def test_only_database_files_are_relative(write: Write, tmp_path: Path, url: str, expected: str) -> None:
    loaded = config.load(write(f"sources: {{a: {{adapter: x, url: '{url}'}}}}"))
    assert loaded.sources["a"].url == expected.format(folder=tmp_path)


@pytest.mark.parametrize(("text", "kept"), [("s3://bucket/w", True), ("/srv/w", True), ("w", False)])
def test_the_warehouse_may_be_elsewhere(write: Write, tmp_path: Path, text: str, kept: bool) -> None:
    loaded = config.load(write(f"mediator: {{warehouse: '{text}'}}"))
    assert loaded.mediator.warehouse == (text if kept else str(tmp_path / text))


def test_environment_references(write: Write) -> None:
    text = "sources: {a: {adapter: x, url: 'x://u:${PASSWORD}@h', options: {list: ['${N}', '$${N}', $5]}}}"
    loaded = config.load(write(text), {"PASSWORD": "a: {b}#'", "N": "7"})
    assert loaded.sources["a"].url == "x://u:a: {b}#'@h"
    assert loaded.sources["a"].options == {"list": ["7", "${N}", "$5"]}


def test_references_may_stand_for_numbers_and_booleans(write: Write) -> None:
    text = "mediator: {max_batch: '${N}'}\nviews: {v: {sql: s, allow_cross_join: '${B}'}}"
    loaded = config.load(write(text), {"N": "5", "B": "false"})
    assert loaded.mediator.max_batch == 5
    assert loaded.views["v"].allow_cross_join is False


def test_false_and_zero_override() -> None:
    section = MediatorSection(max_batch=7)
    assert config.override(section, max_batch=0, listen=None).max_batch == 0
    assert config.override(section, max_batch=None).max_batch == 7


BAD = {
    "broken YAML": ("sources: {a: [}", "shop.yaml:1:15: "),
    "tab": ("mediator:\n\tlisten: x", "shop.yaml:2:1: "),
    "key twice": ("views:\n  a: {sql: x}\n  a: {sql: y}", "shop.yaml:3:3: the key 'a' is given twice"),
    "object": ("views: !!python/object:os.system {}", "shop.yaml:1:8: could not determine a constructor"),
    "list at the top": ("- a", "shop.yaml: expected the sections mediator, sources, views"),
    "unknown section": ("source: {}", "shop.yaml: source: unknown key; did you mean 'sources'?"),
    "unknown key": (
        "sources: {shop: {adapter: a, url: b, adress: h:1}}",
        "shop.yaml: sources.shop.adress: unknown key; did you mean 'address'?",
    ),
    "unlike any key": (
        "mediator: {zzz: 1}",
        "shop.yaml: mediator.zzz: unknown key; known keys: listen, ",
    ),
    "engine": (
        "mediator: {engine: flink}",
        "shop.yaml: mediator.engine: input should be 'spark', 'duckdb' or 'auto'",
    ),
    "address": ("mediator: {listen: '7000'}", "shop.yaml: mediator.listen: expected an address as host:port"),
    "port": ("mediator: {listen: 'h:70000'}", "shop.yaml: mediator.listen: expected an address as host:port"),
    "no url": ("sources: {shop: {adapter: sqlite}}", "shop.yaml: sources.shop: `url` is missing"),
    "no adapter": (
        "sources: {shop: {url: 'sqlite:///x', address: 'h:1'}}",
        "shop.yaml: sources.shop: `adapter`",
    ),
    "nothing": ("sources: {shop: {listen: 'h:1'}}", "shop.yaml: sources.shop: give `adapter` and `url`"),
    "consistency": ("views: {v: {sql: x, consistency: best}}", "shop.yaml: views.v.consistency: "),
    "no sql": ("views: {v: {}}", "shop.yaml: views.v.sql: is missing"),
    "name": ("views: {a-b: {sql: x}}", "shop.yaml: views.a-b: a name starts with a letter"),
    "batch": ("mediator: {max_batch: 0}", "shop.yaml: mediator.max_batch: input should be greater than"),
    "undefined": (
        "sources: {shop: {adapter: a, url: 'x:${NOPE}'}}",
        "shop.yaml: sources.shop.url: environment variable NOPE is not set",
    ),
    "undefined in a list": (
        "sources: {shop: {adapter: a, url: x, relations: [a, '${NOPE}']}}",
        "shop.yaml: sources.shop.relations[1]: environment variable NOPE is not set",
    ),
    "a user that there is not": (
        "sources: {a: {address: 'h:1', tls: {certificate: ~nobody-of-that-name/x, key: k}}}",
        "shop.yaml: sources.a.tls.certificate: ~ stands for a user that there is not, or has no home",
    ),
    "NUL": ('mediator: {warehouse: "a\\0b"}', "shop.yaml: mediator.warehouse: holds the character NUL"),
    "NUL in an option": (
        'sources: {a: {adapter: a, url: x, options: {list: [{k: "\\0"}]}}}',
        "shop.yaml: sources.a.options: holds the character NUL",
    ),
    "NUL in a name": (
        'sources: {a: {address: "h:1", mediators: {m: {relations: {"r\\0": }}}}}',
        "shop.yaml: sources.a.mediators.m.relations: holds the character NUL",
    ),
    "a number of too many digits": (
        f"mediator: {{umq_rows: 0x{'f' * 4000}}}",
        "shop.yaml: mediator.umq_rows: is a number of more than 64 bits",
    ),
    "such a number in an option": (
        f"sources: {{a: {{adapter: a, url: x, options: {{poll: {2**63}}}}}}}",
        "shop.yaml: sources.a.options: is a number of more than 64 bits",
    ),
    "a number without end": (
        "mediator: {query_seconds: .inf}",
        "shop.yaml: mediator.query_seconds: is not a finite number",
    ),
    "no number in an option": (
        "sources: {a: {adapter: a, url: x, options: {poll: [.nan]}}}",
        "shop.yaml: sources.a.options: is not a finite number",
    ),
    "more seconds than gRPC counts": (
        "mediator: {keepalive_seconds: 1.0e+10}",
        "shop.yaml: mediator.keepalive_seconds: input should be less than or equal to 2000000",
    ),
    "half a character": (
        'mediator: {audit: "a\\ud800b"}',
        "shop.yaml: mediator.audit: holds characters that no text has",
    ),
    "unclosed": (
        "mediator: {warehouse: '${HOME'}",
        "shop.yaml: mediator.warehouse: '${' starts no",
    ),
}


@pytest.mark.parametrize(("text", "expected"), BAD.values(), ids=BAD.keys())
def test_a_problem_is_one_line(write: Write, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config.load(write(text), {})
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_a_variable_whose_bytes_are_no_text_is_refused(write: Write) -> None:
    text = "sources: {a: {address: 'h:1', connect: {token: '${S}'}}}"
    with pytest.raises(ConfigurationError) as caught:
        config.load(write(text), {"S": os.fsdecode(b"\xff")})
    assert str(caught.value) == "shop.yaml: sources.a.connect.token: holds characters that no text has"


def test_every_problem_has_its_line(write: Write) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config.load(write("mediator: {engine: x, listen: y}\nviews: {v: {}}"))
    keys = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert sorted(keys) == ["mediator.engine", "mediator.listen", "views.v.sql"]


def test_a_secret_is_not_printed(write: Write) -> None:
    text = "mediator: {listen: '${S}', max_batch: '${S}', engine: '${S}'}\nsources: {a: {adapter: '${S}'}}"
    with pytest.raises(ConfigurationError) as caught:
        config.load(write(text), {"S": "hunter2"})
    assert len(str(caught.value).splitlines()) == 4
    assert "hunter2" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such file"):
        config.load(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        config.load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"views: \xff\xfe")
    with pytest.raises(ConfigurationError, match="it is not UTF-8 text"):
        config.load(tmp_path / "latin.yaml")


def test_an_unknown_adapter_is_named_when_it_is_needed(write: Write) -> None:
    loaded = config.load(write("sources: {shop: {adapter: oracle, url: x}}"))
    with pytest.raises(ConfigurationError) as caught:
        build.check_adapters(loaded, ["shop"])
    assert str(caught.value).startswith(
        "shop.yaml: sources.shop.adapter: unknown adapter 'oracle'; installed"
    )


def test_sources_that_cannot_be_served_or_found(write: Write) -> None:
    loaded = config.load(write("sources: {far: {address: 'h:1'}, free: {adapter: a, url: b}}"))
    with pytest.raises(ConfigurationError, match="there is no source 'nope'; sources: far, free"):
        loaded.source("nope")
    with pytest.raises(ConfigurationError, match=r"sources\.far: has no `adapter`"):
        loaded.chosen("far")
    with pytest.raises(ConfigurationError, match=r"sources\.free: give `address`"):
        loaded.address("free")
    with pytest.raises(ConfigurationError, match="no source with an `adapter`"):
        config.load(write("sources: {far: {address: 'h:1'}}")).chosen(None)


SOURCE = "sources: {a: {adapter: x, url: '%s'}}"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (SOURCE % "x://u:hunter22@h/d", "sources.a.url"),
        (SOURCE % "x://u:hun/ter 22@h/d", "sources.a.url"),
        (SOURCE % "x://u:$${hunter22@h/d", "sources.a.url"),
        (SOURCE % "x://u@h/d?password=hunter22", "sources.a.url"),
        (SOURCE % "x://u@h/d?mode=1&sslpassword=hunter22", "sources.a.url"),
        (SOURCE % "x://u:${S}@h/d?api_key=hunter22", "sources.a.url"),
        (SOURCE % "x://h;token=hunter22", "sources.a.url"),
        (
            "sources: {a: {adapter: x, url: 'x://h', options: {password: 12345678}}}",
            "sources.a.options.password",
        ),
        (
            "sources: {a: {adapter: x, url: 'x://h', options: {connect_args: {password: hunter22}}}}",
            "sources.a.options.connect_args.password",
        ),
        ("mediator: {spark_master: 'sc://h;token=hunter22'}", "mediator.spark_master"),
        *(
            (f"mediator: {{spark_conf: {{{name}: hunter22}}}}", f"mediator.spark_conf.{name}")
            for name in (
                "spark.hadoop.fs.s3a.secret.key",
                "spark.hadoop.fs.s3a.access.key",
                "spark.hadoop.fs.azure.account.key.me.example.net",
                "spark.hadoop.fs.s3a.session.token",
                "spark.ssl.keyPassword",
                "spark.authenticate.secret",
            )
        ),
    ],
)
def test_a_literal_secret_is_refused(write: Write, text: str, where: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config.load(write(text), {"S": "hunter2"})
    assert str(caught.value).startswith(f"shop.yaml: {where}: ")
    assert "write ${VARIABLE}" in str(caught.value)
    assert "hunter22" not in str(caught.value)
    assert "12345678" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        SOURCE % "x://u:${S}@h/d?password=${S}&sslmode=require&sslkey=/k.pem",
        "mediator: {spark_conf: {spark.hadoop.fs.s3a.secret.key: '${S}', "
        "spark.sql.mapKeyDedupPolicy: LAST_WIN, spark.hadoop.fs.s3a.aws.credentials.provider: some.Provider, "
        "spark.ssl.keyStore: /k.jks, spark.security.credentials.hive.enabled: false}}",
    ],
)
def test_references_to_secrets_are_accepted(write: Write, text: str) -> None:
    config.load(write(text), {"S": "conf-canary-1"})
    assert redacted("[conf-canary-1]") == "[***]"


def test_spark_settings_that_came_by_reference_are_told_apart(write: Write) -> None:
    text = (
        "mediator: {spark_conf: {spark.hadoop.fs.s3a.secret.key: '${S}', spark.sql.x: 'a${S}', "
        "spark.sql.y: '$${S}', spark.ui.enabled: false}}"
    )
    loaded = config.load(write(text), {"S": "conf-canary-2"})
    assert loaded.spark_secrets == {"spark.hadoop.fs.s3a.secret.key", "spark.sql.x"}
    assert loaded.mediator.spark_conf["spark.sql.y"] == "${S}"
    given = vars(build.mediator_server(loaded, loaded.mediator, {}))["_config"]
    assert given.spark_secrets == {
        "spark.hadoop.fs.s3a.secret.key": "conf-canary-2",
        "spark.sql.x": "aconf-canary-2",
    }
    assert given.spark_conf == {"spark.sql.y": "${S}", "spark.ui.enabled": "false"}


def test_a_secret_that_is_empty_is_none(write: Write) -> None:
    assert "a" in config.load(write(SOURCE % "x://h:5432/d?password="), {}).sources
