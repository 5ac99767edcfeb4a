"""Nobody in who does not belong: real processes with TLS, tokens, allow-lists and an audit log.

One site serves all tests: two wrappers over TLS, one that demands tokens and one that demands certificates,
and a mediator between them and its clients. Every secret is a canary that must not turn up in any output.
"""

from __future__ import annotations

import json
import re
import sqlite3
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from algebra.errors import ConfigurationError, ForbiddenError, LockstepError, UnauthenticatedError
from cli import build, config
from integration_tests.certificates import Authority, Pair
from integration_tests.processes import LockstepProcess, run_lockstep
from lab.soak.deployment import wait_until
from protos.lockstep.v1 import mediator_pb2, mediator_pb2_grpc, wrapper_pb2, wrapper_pb2_grpc
from protos.security.settings import ClientTls, Connection
from protos.security.tls import open_channel
from protos.security.tokens import TokenFile
from protos.status import error_from_rpc
from protos.version import PROTOCOL_VERSION
from wrapper.tests.sqlite_writer import SqliteWriter

pytestmark = pytest.mark.xdist_group("security")  # one deployment serves all of them

VIEW = "SELECT o.id, o.cust, c.name FROM shop.orders AS o JOIN crm.customer AS c ON c.id = o.cust"
CANARY = "canary-5f2e-database-password"

CONFIG = """
mediator:
  listen: 127.0.0.1:0
  engine: duckdb
  tls: {{certificate: {mediator.certificate}, key: {mediator.key}}}
  tokens: mediator-tokens.json
  audit: audit/mediator.jsonl
  metrics: 127.0.0.1:0
sources:
  shop:
    adapter: sqlite
    url: sqlite:///shop.db
    listen: 127.0.0.1:0
    tls: {{certificate: {shop.certificate}, key: {shop.key}}}
    tokens: wrapper-tokens.json
    audit: audit/shop.jsonl
    mediators:
      main:
        relations: {{orders: [id, cust], note:}}
        max_rows: 1000
      flood: {{queries_per_second: 2}}
      small: {{max_rows: 2}}
    connect: {{ca: {ca}, token: '${{SHOP_TOKEN}}'}}
  crm:
    adapter: sqlite
    url: sqlite:///crm.db
    listen: 127.0.0.1:0
    tls: {{certificate: {crm.certificate}, key: {crm.key}, client_ca: {ca}}}
    certificates: {{the-mediator: [attach]}}
    audit: audit/crm.jsonl
    metrics: 127.0.0.1:0
    connect: {{ca: {ca}, certificate: {client.certificate}, key: {client.key}}}
"""


@dataclass
class Site:
    """The running processes, the tokens by name, and everything they printed."""

    folder: Path
    authority: Authority
    client: Pair
    tokens: dict[str, str]
    wrapper_tokens: dict[str, str]
    processes: dict[str, LockstepProcess]
    printed: list[str] = field(default_factory=list)

    def address(self, name: str) -> str:
        return self.processes[name].address

    def connection(
        self, token: str = "", certificate: Pair | None = None, ca: Path | None = None
    ) -> Connection:
        tls = ClientTls(
            ca or self.authority.certificate,
            certificate.certificate if certificate else None,
            certificate.key if certificate else None,
        )
        return Connection(tls, token)

    def mediator(self, stack: ExitStack, token: str = "") -> mediator_pb2_grpc.MediatorServiceStub:
        channel = stack.enter_context(
            open_channel(self.address("mediator"), self.connection(token), PROTOCOL_VERSION)
        )
        return mediator_pb2_grpc.MediatorServiceStub(channel)

    def wrapper(self, stack: ExitStack, source: str, **how: Any) -> wrapper_pb2_grpc.WrapperServiceStub:
        channel = stack.enter_context(
            open_channel(self.address(source), self.connection(**how), PROTOCOL_VERSION)
        )
        return wrapper_pb2_grpc.WrapperServiceStub(channel)

    def run(self, *arguments: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {
            "LOCKSTEP_ADDRESS": self.address("mediator"),
            "LOCKSTEP_CA": str(self.authority.certificate),
            "LOCKSTEP_TOKEN": token or "",
        }
        done = run_lockstep(*arguments, environment=environment)
        self.printed += [done.stdout, done.stderr]
        return done

    def audit(self, server: str) -> list[dict[str, str]]:
        lines = (self.folder / "audit" / f"{server}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("security")
    authority = Authority(folder / "tls")
    pairs = {name: authority.sign(name) for name in ("mediator", "shop", "crm")}
    client = authority.sign("the-mediator")
    for name, statements in {
        "shop": ["CREATE TABLE orders (id INTEGER PRIMARY KEY, cust INTEGER, card TEXT)",
                 "CREATE TABLE note (id INTEGER, body TEXT)", "CREATE TABLE staff (id INTEGER, wage INTEGER)",
                 "INSERT INTO orders VALUES (1, 10, 'x'), (2, 20, 'y'), (3, 10, 'z')"],
        "crm": ["CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT)",
                "INSERT INTO customer VALUES (10, 'Ann'), (20, 'Bob')"],
    }.items():  # fmt: skip
        with sqlite3.connect(folder / f"{name}.db") as database:
            for statement in statements:
                database.execute(statement)
        database.close()
    mediators = TokenFile(folder / "mediator-tokens.json")
    tokens = {
        "boss": mediators.create("boss", ["manage", "read"]),
        "reader": mediators.create("reader", ["read:v"]),
        "stolen": mediators.create("stolen", ["read"]),
        "early": mediators.create("early", ["read:soon"]),
        "wrong-scope": mediators.create("wrong-scope", ["attach"]),
    }
    wrappers = TokenFile(folder / "wrapper-tokens.json")
    wrapper_tokens = {
        name: wrappers.create(name, [scope])
        for name, scope in {
            "main": "attach:shop", "flood": "attach", "small": "attach", "unlisted": "attach",
            "elsewhere": "attach:crm", "stolen": "attach",
        }.items()
    }  # fmt: skip
    file = folder / "lockstep.yaml"
    file.write_text(CONFIG.format(ca=authority.certificate, client=client, **_namespaces(pairs)))
    environment = {"SHOP_TOKEN": wrapper_tokens["main"]}
    processes: dict[str, LockstepProcess] = {}
    with ExitStack() as stack:
        for source in ("shop", "crm"):
            processes[source] = LockstepProcess(
                "--debug",
                "--log-format",
                "json",
                "wrapper",
                str(file),
                "--source",
                source,
                environment=environment,
            )
            stack.callback(processes[source].stop)
        addresses = [
            word
            for source in ("shop", "crm")
            for word in ("--source-address", f"{source}={processes[source].wait_ready()}")
        ]
        processes["mediator"] = LockstepProcess(
            "--debug", "--log-format", "json", "mediator", str(file), *addresses, environment=environment
        )
        stack.callback(processes["mediator"].stop)
        processes["mediator"].wait_ready()
        made = Site(folder, authority, client, tokens, wrapper_tokens, processes)
        done = made.run("view", "create", "v", "--sql", VIEW, token=tokens["boss"])
        assert done.returncode == 0, done.stderr + processes["mediator"].output
        yield made


def _namespaces(pairs: dict[str, Pair]) -> dict[str, Any]:
    return dict(pairs)


def refusal(call: Any) -> LockstepError:
    """The error of a call that must fail."""

    def all_of_it() -> None:
        found = call()
        if isinstance(found, Iterator):
            list(found)

    with pytest.raises(grpc.RpcError) as refused:
        all_of_it()
    return error_from_rpc(refused.value)


def test_a_view_is_kept_over_mutual_tls_and_tokens(site: Site) -> None:
    with SqliteWriter(site.folder / "shop.db") as writer:
        writer.commit("INSERT INTO orders VALUES (4, 20, 'secret card')")
    with ExitStack() as stack:
        stub = site.mediator(stack, site.tokens["reader"])
        newest = stub.GetView(mediator_pb2.GetViewRequest(name="v"), timeout=60).view.version
        watch = stub.WatchView(mediator_pb2.WatchViewRequest(name="v", after=0), timeout=120)
        assert newest >= 1 or next(watch).version.version >= 1
    done = site.run("query", "SELECT id, name FROM v ORDER BY id", "-f", "csv", token=site.tokens["reader"])
    assert done.stdout.splitlines()[1:] == ['1,"Ann"', '2,"Bob"', '3,"Ann"', '4,"Bob"'], done.stderr


def test_plain_text_and_other_authorities_are_not_served(site: Site, tmp_path: Path) -> None:
    other = Authority(tmp_path, "somebody else")
    for source, how in {
        "mediator": Connection(token=site.tokens["boss"]),
        "shop": site.connection(site.wrapper_tokens["main"], ca=other.certificate),
        "crm": site.connection(certificate=other.sign("the-mediator")),
    }.items():
        with open_channel(site.address(source), how, PROTOCOL_VERSION) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, source
    done = run_lockstep("status", "--address", site.address("mediator"), "--ca", str(other.certificate))
    assert done.returncode == 1
    assert "the TLS handshake failed" in done.stderr, done.stderr


def test_a_caller_must_show_who_it_is(site: Site) -> None:
    with ExitStack() as stack:
        request = mediator_pb2.GetStatusRequest()
        for token in ("", "nonsense", site.tokens["boss"] + "x", site.wrapper_tokens["main"]):
            error = refusal(lambda token=token: site.mediator(stack, token).GetStatus(request, timeout=60))
            assert isinstance(error, UnauthenticatedError), token
        describe = wrapper_pb2.DescribeSourceRequest()
        unknown = site.wrapper(stack, "crm", certificate=site.authority.sign("a-stranger"))
        error = refusal(lambda: unknown.DescribeSource(describe, timeout=60))
        assert str(error).startswith("the certificate of 'a-stranger' is not known here")
        known = site.wrapper(stack, "crm", certificate=site.client)
        assert [r.name for r in known.DescribeSource(describe, timeout=60).relations] == ["customer"]
    done = site.run("status")
    assert (done.returncode, done.stderr.startswith("error: no token was sent")) == (1, True)


def test_health_is_open_and_reflection_is_not(site: Site) -> None:
    with open_channel(site.address("mediator"), site.connection(), PROTOCOL_VERSION) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=60).status == 1
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        error = refusal(lambda: stub.ServerReflectionInfo(iter([request]), timeout=60))
        assert isinstance(error, UnauthenticatedError)
    with open_channel(
        site.address("mediator"), site.connection(site.tokens["reader"]), PROTOCOL_VERSION
    ) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=60)
        assert "lockstep.v1.MediatorService" in {s.name for s in answer.list_services_response.service}


def test_a_reader_of_one_view_reads_that_view_only(site: Site) -> None:
    pb, reader = mediator_pb2, site.tokens["reader"]
    with ExitStack() as stack:
        boss = site.mediator(stack, site.tokens["boss"])
        list(boss.CreateView(pb.CreateViewRequest(view=pb.ViewSpec(name="w", sql=VIEW)), timeout=120))
        stack.callback(boss.DropView, pb.DropViewRequest(name="w"), timeout=120)
        stub = site.mediator(stack, reader)
        assert [view.spec.name for view in stub.ListViews(pb.ListViewsRequest(), timeout=60).views] == ["v"]
        status = stub.GetStatus(pb.GetStatusRequest(), timeout=60)
        assert ([view.view for view in status.views], list(status.sources)) == (["v"], [])
        assert status.warehouse == "", "where it lies is for who manages it"
        assert boss.GetStatus(pb.GetStatusRequest(), timeout=60).warehouse
        # Of the sources of its own view it sees names and positions; docs/security.md says so.
        (seen,) = stub.ListViews(pb.ListViewsRequest(), timeout=60).views
        assert set(seen.sources) == set(seen.vector) != set()
        refused = {
            "create": lambda: stub.CreateView(pb.CreateViewRequest(view=pb.ViewSpec(name="x", sql=VIEW))),
            "drop": lambda: stub.DropView(pb.DropViewRequest(name="v")),
            "refresh": lambda: stub.RefreshView(pb.RefreshViewRequest(name="v")),
            "verify": lambda: stub.VerifyView(pb.VerifyViewRequest(name="v")),
            "compact": lambda: stub.CompactView(pb.CompactViewRequest(name="v")),
            "describe": lambda: stub.GetView(pb.GetViewRequest(name="w")),
            "history": lambda: stub.GetHistory(pb.GetHistoryRequest(name="w")),
            "watch": lambda: stub.WatchView(pb.WatchViewRequest(name="w")),
            "explain": lambda: stub.Explain(pb.ExplainRequest(view="w")),
            "explain a new one": lambda: stub.Explain(pb.ExplainRequest(spec=pb.ViewSpec(sql=VIEW))),
        }
        for what, call in refused.items():
            assert isinstance(refusal(call), ForbiddenError), what
        messages = {
            str(refusal(lambda sql=sql: stub.Query(pb.QueryRequest(sql=sql), timeout=60)))
            for sql in ("SELECT * FROM w", "SELECT * FROM v, W",
                        "SELECT * FROM v WHERE id IN (SELECT id FROM w)", "SELECT * FROM does_not_exist",
                        "WITH x AS (SELECT * FROM w) SELECT * FROM x",
                        "SELECT * FROM (WITH w AS (SELECT 1) FROM w), w")
        }  # fmt: skip
        assert messages == {"token 'reader' may read v, and the query names more"}, "no name is given away"
        nobody = site.mediator(stack, site.tokens["wrong-scope"])
        assert isinstance(
            refusal(lambda: nobody.ListViews(pb.ListViewsRequest(), timeout=60)), ForbiddenError
        )


def test_who_may_read_some_views_learns_no_name_of_others(site: Site) -> None:
    """Neither from a view of its own that is not there, nor from one that goes, nor from spellings."""
    pb = mediator_pb2
    with ExitStack() as stack:
        boss = site.mediator(stack, site.tokens["boss"])
        stub = site.mediator(stack, site.tokens["early"])
        calls = {
            "describe": lambda: stub.GetView(pb.GetViewRequest(name="soon"), timeout=60),
            "history": lambda: stub.GetHistory(pb.GetHistoryRequest(name="soon"), timeout=60),
            "watch": lambda: stub.WatchView(pb.WatchViewRequest(name="soon"), timeout=60),
            "explain": lambda: stub.Explain(pb.ExplainRequest(view="soon"), timeout=60),
        }
        for what, call in calls.items():
            assert str(refusal(call)) == "there is no view 'soon'; there are no views yet", what
        for name in ("soon", "SOON"):
            list(boss.CreateView(pb.CreateViewRequest(view=pb.ViewSpec(name=name, sql=VIEW)), timeout=120))
        stack.callback(boss.DropView, pb.DropViewRequest(name="SOON"), timeout=120)
        both = stub.Query(pb.QueryRequest(sql="SELECT count(*) FROM SOON, soon"), timeout=60)
        assert next(both).versions == {"soon": 0}, "only its own view is one"
        watch = stub.WatchView(pb.WatchViewRequest(name="soon"), timeout=120)
        boss.DropView(pb.DropViewRequest(name="soon"), timeout=120)
        assert str(refusal(lambda: watch)) == "there is no view 'soon'; there are no views yet"


def test_a_mediator_does_not_see_what_is_hidden_from_it(site: Site) -> None:
    with ExitStack() as stack:
        stub = site.wrapper(stack, "shop", token=site.wrapper_tokens["main"])
        described = stub.DescribeSource(wrapper_pb2.DescribeSourceRequest(), timeout=60)
        assert [relation.name for relation in described.relations] == ["note", "orders"]
        assert b"card" not in described.SerializeToString()
        everything = site.wrapper(stack, "shop", token=site.wrapper_tokens["small"])
        described = everything.DescribeSource(wrapper_pb2.DescribeSourceRequest(), timeout=60)
        assert b"card" in described.SerializeToString()
        for name in ("unlisted", "elsewhere"):
            other = site.wrapper(stack, "shop", token=site.wrapper_tokens[name])
            error = refusal(lambda other=other: other.DescribeSource(wrapper_pb2.DescribeSourceRequest()))
            assert isinstance(error, ForbiddenError), name
        boss, pb = site.mediator(stack, site.tokens["boss"]), mediator_pb2
        for sql, problem in {
            "SELECT id, card FROM shop.orders": "unknown column 'card'",
            "SELECT * FROM shop.staff": "has no relation 'staff'; it has: note, orders",
        }.items():
            request = pb.CreateViewRequest(view=pb.ViewSpec(name="x", sql=sql))
            assert problem in str(refusal(lambda request=request: boss.CreateView(request, timeout=120)))


def test_a_stolen_token_is_worthless_after_it_is_revoked(site: Site) -> None:
    """Open streams end by themselves; the mediator promises two seconds, the test waits for the event."""
    tokens, wrapper_tokens = site.folder / "mediator-tokens.json", site.folder / "wrapper-tokens.json"
    with SqliteWriter(site.folder / "shop.db") as writer:
        writer.commit("UPDATE orders SET id = id WHERE id = 1")  # a version that changes no row
    with ExitStack() as stack:
        thief = site.mediator(stack, site.tokens["stolen"])
        watch = thief.WatchView(mediator_pb2.WatchViewRequest(name="v", after=0), timeout=240)
        next(watch)
        owner = site.mediator(stack, site.tokens["boss"])
        other = owner.WatchView(mediator_pb2.WatchViewRequest(name="v"), timeout=240)
        done = site.run("token", "revoke", "stolen", "--file", str(tokens))
        assert done.returncode == 0, done.stderr
        with pytest.raises(grpc.RpcError) as ended:
            list(watch)
        assert ended.value.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAUTHENTICATED)
        request = mediator_pb2.QueryRequest(sql="SELECT * FROM v")
        assert isinstance(refusal(lambda: thief.Query(request, timeout=60)), UnauthenticatedError)
        assert other.is_active(), "another's stream goes on"
        attacker = site.wrapper(stack, "shop", token=site.wrapper_tokens["stolen"])
        describe = wrapper_pb2.DescribeSourceRequest()
        assert isinstance(refusal(lambda: attacker.DescribeSource(describe)), ForbiddenError), "not listed"
        TokenFile(wrapper_tokens).revoke("stolen")
        assert isinstance(refusal(lambda: attacker.DescribeSource(describe)), UnauthenticatedError)
    watched = [r for r in site.audit("mediator") if (r["who"], r["action"]) == ("stolen", "watch")]
    assert [r["outcome"] for r in watched] == ["begun", "UNAUTHENTICATED"], "it ended once"


def test_another_protocol_version_is_refused_with_both_named(site: Site) -> None:
    with open_channel(site.address("mediator"), site.connection(site.tokens["boss"]), 99) as channel:
        stub = mediator_pb2_grpc.MediatorServiceStub(channel)
        error = refusal(lambda: stub.GetStatus(mediator_pb2.GetStatusRequest(), timeout=60))
    both = f"the caller speaks protocol version 99, this server {PROTOCOL_VERSION}"
    assert str(error) == f"{both}: upgrade the older one"


def test_the_audit_log_tells_who_did_what(site: Site) -> None:
    with ExitStack() as stack:
        boss = site.mediator(stack, site.tokens["boss"])
        spec = mediator_pb2.ViewSpec(name="short_lived", sql=VIEW)
        list(boss.CreateView(mediator_pb2.CreateViewRequest(view=spec), timeout=120))
        boss.DropView(mediator_pb2.DropViewRequest(name="short_lived"), timeout=120)
        reader = site.mediator(stack, site.tokens["reader"])
        assert list(reader.Query(mediator_pb2.QueryRequest(sql="SELECT * FROM v"), timeout=60))
        refusal(lambda: reader.RefreshView(mediator_pb2.RefreshViewRequest(name="v"), timeout=60))
    found = {(r["who"], r["action"], r["target"], r["outcome"]) for r in site.audit("mediator")}
    assert {
        ("boss", "create", "v", "ok"),
        ("boss", "create", "short_lived", "ok"),
        ("boss", "drop", "short_lived", "ok"),
        ("reader", "query", "v", "ok"),
        ("reader", "refresh", "v", "FORBIDDEN"),
    } <= found
    assert {"time", "peer", "by", "server"} <= site.audit("mediator")[0].keys()
    with ExitStack() as stack:
        reader = site.mediator(stack, site.tokens["reader"])
        sql = "SELECT CAST('a value' || id AS INTEGER) FROM v"
        error = refusal(lambda: reader.Query(mediator_pb2.QueryRequest(sql=sql), timeout=60))
    assert "a value" in str(error), "the caller is told"
    failed = next(r for r in site.audit("mediator") if r["outcome"] == error.reason)
    assert not failed.get("detail"), "values of rows are not written down"
    attached = {
        (r["who"], r["by"], r["action"], r["outcome"]) for r in site.audit("shop") + site.audit("crm")
    }
    assert {
        ("main", "token", "attach", "begun"),
        ("the-mediator", "certificate", "attach", "begun"),
    } <= attached


def scraped(site: Site, server: str, certificate: Pair | None = None) -> dict[tuple[str, ...], float]:
    """Every sample that a server's endpoint shows, by its name and the values of its labels."""
    found = re.search(r"metrics at (https://\S+/metrics)", site.processes[server].output)
    assert found is not None
    trust = ssl.create_default_context(cafile=str(site.authority.certificate))
    if certificate is not None:
        trust.load_cert_chain(certificate.certificate, certificate.key)
    with urllib.request.urlopen(found[1], context=trust, timeout=60) as response:
        text = response.read().decode()
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return {(s.name, *(value for _, value in sorted(s.labels.items()))): s.value for s in samples}


def test_metrics_are_served_with_the_servers_own_protection(site: Site) -> None:
    before = scraped(site, "mediator")[("lockstep_view_transactions_total", "v")]
    with SqliteWriter(site.folder / "shop.db") as writer:
        writer.commit("INSERT INTO orders VALUES (9, 10, 'secret card')")
        writer.commit("DELETE FROM orders WHERE id = 9")  # as it was, for the other tests

    def shown() -> bool:
        seen = scraped(site, "mediator")
        return bool(
            seen[("lockstep_view_transactions_total", "v")] >= before + 2
            and not seen[("lockstep_view_pending_transactions", "v")]
        )

    assert wait_until(shown, 60)
    mediator = scraped(site, "mediator")
    assert mediator[("lockstep_source_connected", "shop")] == 1
    assert mediator[("lockstep_source_transactions_total", "shop")] >= 1
    assert mediator[("lockstep_source_received_bytes_total", "crm")] > 0
    assert mediator[("lockstep_view_version", "v")] >= 1
    assert mediator[("lockstep_view_transactions_total", "v")] >= 1
    assert mediator[("lockstep_view_batch_transactions_count", "v")] >= 1
    assert mediator[("lockstep_view_queries_total", "v")] >= 1
    assert mediator[("lockstep_view_pending_transactions", "v")] == 0
    assert mediator[("lockstep_view_source_lag_seconds", "shop", "v")] == 0
    assert mediator[("lockstep_commit_seconds_count",)] >= 1
    assert mediator[("lockstep_memory_bytes",)] > 0
    assert {("lockstep_view_lag_seconds", "v"), ("lockstep_view_compensations_total", "v")} <= mediator.keys()
    wrapper = scraped(site, "crm", site.client)
    assert wrapper[("lockstep_wrapper_attached", "crm")] == 1
    assert wrapper[("lockstep_wrapper_queries_total", "crm")] >= 1
    assert wrapper[("lockstep_wrapper_answer_seconds_count", "crm")] >= 1
    with pytest.raises(OSError, match=r"(?i)certificate|alert|closed|reset|EOF"):
        scraped(site, "crm")  # no certificate, no metrics


def test_one_id_follows_a_transaction_through_both_logs(site: Site) -> None:
    def events(server: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for line in site.processes[server].output.splitlines():
            record = json.loads(line) if line.startswith("{") else {}
            for transaction in record.get("transactions", ()):
                found.setdefault(transaction, set()).add(record["message"].partition(":")[0].split(",")[0])
        return found

    with SqliteWriter(site.folder / "shop.db") as writer:
        writer.commit("UPDATE orders SET id = id WHERE id = 1")

    def followed() -> bool:
        shown = {t for t, what in events("mediator").items() if {"delivered", "view v shows"} <= what}
        return any(t.startswith("shop@") and "reported" in events("shop").get(t, ()) for t in shown)

    assert wait_until(followed, 60)


def test_no_secret_is_ever_shown(site: Site) -> None:
    """Runs last: it looks through everything that was printed, logged and recorded until here."""
    bad = site.folder / "bad.yaml"
    bad.write_text(
        "sources: {shop: {adapter: sqlite, url: 'sqlite:///nowhere/x.db?password=${DATABASE_PASSWORD}'}}"
    )
    for flag in (["--log-format", "json"], ["--debug"]):
        done = run_lockstep(*flag, "wrapper", str(bad), environment={"DATABASE_PASSWORD": CANARY})
        assert done.returncode == 1
        site.printed += [done.stdout, done.stderr]
    for command in (["status"], ["--debug", "query", "SELECT * FROM nowhere"]):
        done = site.run(*command, token=site.tokens["boss"])
        site.printed += [done.stdout, done.stderr]
    everything = "\n".join(
        [
            *site.printed,
            *(process.output for process in site.processes.values()),
            *(path.read_text() for path in (site.folder / "audit").iterdir()),
            *(path.read_text() for path in site.folder.glob("*-tokens.json")),
        ]
    )
    keys = [path.read_text().splitlines()[1] for path in (site.folder / "tls").glob("*.key")]
    for secret in [CANARY, *site.tokens.values(), *site.wrapper_tokens.values(), *keys]:
        assert secret not in everything
        assert secret.split("_", 2)[-1] not in everything  # of a token, what follows its id
    assert "Traceback" in everything, "traces were among what was looked through"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mediator: {listen: '0.0.0.0:0'}", "other machines reach 0.0.0.0:0: give `tls`"),
        ("mediator: {listen: '0.0.0.0:0', tokens: t.json}", "other machines reach 0.0.0.0:0: give `tls`"),
        ("mediator: {tls: {certificate: nowhere.pem, key: k.pem}}", "cannot be read"),
        ("mediator: {tokens: nowhere.json}", "nowhere.json: cannot be read"),
        ("sources: {s: {address: 'db.lan:1', connect: {token: 'lst_a_b'}}}", "does not belong in a file"),
        ("sources: {s: {address: 'db.example.com:1'}}", "plain text is for this machine alone"),
        ("sources: {s: {adapter: sqlite, url: 'x://u:hunter22@h/d'}}", "sources.s.url: holds a password"),
    ],
)  # fmt: skip
def test_a_server_that_would_not_be_safe_does_not_start(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "lockstep.yaml"
    file.write_text(text.replace("mediator: {", "mediator: {engine: duckdb, "))
    (tmp_path / "t.json").write_text('{"format": 1, "tokens": []}')

    def start() -> None:
        configuration = config.load(file)
        build.mediator_server(configuration, configuration.mediator, {}).start()

    with pytest.raises(ConfigurationError) as refused:
        start()
    assert problem in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert "hunter22" not in str(refused.value)


def test_the_refusal_to_start_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "lockstep.yaml"
    file.write_text("sources: {s: {adapter: sqlite, url: 'sqlite:///s.db', listen: '0.0.0.0:0'}}")
    sqlite3.connect(tmp_path / "s.db").close()
    done = run_lockstep("wrapper", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: other machines reach 0.0.0.0:0: give `tls`, or allow plain text with `insecure: true`\n"
    )
