"""Certificates are replaced while servers run: new connections use them, and nobody has to restart."""

from __future__ import annotations

import logging
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from adapters.registry import create
from adapters.servers.ports import free_port
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError
from integration_tests.certificates import Authority, Pair
from integration_tests.client import Client
from lab.soak.deployment import wait_until
from lab.soak.proxy import Proxy
from mediator.config import MediatorConfig
from mediator.server import MediatorServer
from protos.security.settings import ClientTls, Connection, ServerSecurity, ServerTls
from protos.security.tls_files import TlsFiles
from wrapper.server import WrapperServer
from wrapper.tests.sqlite_writer import SqliteWriter

VIEW = "SELECT r.k, r.x FROM s.r AS r"
HELD = "what was read before stays in use"


def put(pair: Pair, place: Pair) -> None:
    """Replace a certificate and its key, one after the other, as tools do."""
    for new, old in ((pair.certificate, place.certificate), (pair.key, place.key)):
        scratch = old.with_name(old.name + ".new")
        scratch.write_bytes(new.read_bytes())
        scratch.replace(old)


def trust(path: Path, *authorities: Authority) -> None:
    path.write_bytes(b"".join(authority.certificate.read_bytes() for authority in authorities))


class Rotation:
    """A wrapper and its mediator with mutual TLS, over files that a test replaces."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self.folder = stack, folder
        self.old = Authority(folder / "old", "the old authority")
        self.new = Authority(folder / "new", "the new authority")
        self.served = Pair(folder / "served.pem", folder / "served.key")
        self.shown = Pair(folder / "shown.pem", folder / "shown.key")
        self.client_ca, self.ca = folder / "client-ca.pem", folder / "ca.pem"
        put(self.old.sign("wrapper"), self.served)
        put(self.old.sign("mediator"), self.shown)
        trust(self.client_ca, self.old)
        trust(self.ca, self.old)
        self.writer = stack.enter_context(SqliteWriter(folder / "s.db"))
        self.writer.commit("CREATE TABLE r (k INTEGER, x INTEGER)", "INSERT INTO r VALUES (1, 1)")
        wrapper = WrapperServer(
            create(SourceConfig("s", "sqlite", f"sqlite:///{folder / 's.db'}")),
            "127.0.0.1:0",
            ServerSecurity(ServerTls(self.served.certificate, self.served.key, self.client_ca)),
            metrics=f"127.0.0.1:{free_port()}",
        )
        self.address = wrapper.start()
        self.metrics = wrapper._metrics
        stack.callback(wrapper.stop, 0)
        self.proxy = Proxy(self.address)
        stack.callback(self.proxy.close)

    def mediator(self) -> Client:
        server = MediatorServer(
            MediatorConfig(
                "127.0.0.1:0",
                str(self.folder / "warehouse"),
                "duckdb",
                {"s": self.proxy.address},
                connections={"s": Connection(ClientTls(self.ca, self.shown.certificate, self.shown.key))},
            )
        )
        client = Client(server.start(), timeout=120)
        self._stack.callback(client.close)
        self._stack.callback(server.stop, 0)
        return client

    def handshake(self, authority: Authority, shown: Pair | None) -> str:
        """The serial number of the certificate that the server shows to a new connection; raises OSError.

        TLS 1.3 tells a client that its certificate is refused only when it reads.
        """
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.set_alpn_protocols(["h2"])
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        host, _, port = self.address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as encrypted,
        ):
            encrypted.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            if not encrypted.recv(1):
                raise ConnectionError("the server closed the connection")
            found = encrypted.getpeercert()
            assert found is not None
            return str(found["serialNumber"])

    def scrape(self, authority: Authority, shown: Pair, url: str) -> str:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(shown.certificate, shown.key)
        with urllib.request.urlopen(url, context=context, timeout=60) as response:
            return str(response.read().decode())


@pytest.fixture
def rotation(tmp_path: Path) -> Iterator[Rotation]:
    with ExitStack() as stack:
        yield Rotation(stack, tmp_path)


def held(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if HELD in record.getMessage()]


def test_a_servers_certificate_is_replaced_while_it_runs(
    rotation: Rotation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shown = rotation.old.sign("somebody")
    first = rotation.handshake(rotation.old, shown)
    assert rotation.handshake(rotation.old, shown) == first
    replacement = rotation.old.sign("wrapper-again")
    whole = replacement.certificate.read_bytes()
    rotation.served.certificate.write_bytes(whole[: len(whole) // 2])
    for _ in range(3):
        assert rotation.handshake(rotation.old, shown) == first, "half a file changes nothing"
    rotation.served.certificate.write_bytes(whole)
    assert rotation.handshake(rotation.old, shown) == first, "a certificate without its key neither"
    rotation.served.key.unlink()
    assert rotation.handshake(rotation.old, shown) == first
    (line,) = held(caplog)
    assert line.startswith(f"{rotation.served.certificate} and {rotation.served.key} are not a PEM")
    rotation.served.key.write_bytes(replacement.key.read_bytes())
    second = rotation.handshake(rotation.old, shown)
    assert second != first
    assert len(held(caplog)) == 1, "told once"
    secret = replacement.key.read_text().splitlines()[1]
    assert secret not in caplog.text


def test_metrics_follow_the_files_and_tell_if_they_are_broken(rotation: Rotation) -> None:
    assert rotation.metrics is not None
    url = f"https://{rotation.metrics._listen}/metrics"
    shown = rotation.old.sign("prometheus")
    assert "lockstep_tls_files_usable 1.0" in rotation.scrape(rotation.old, shown, url)
    rotation.served.key.write_text("nonsense")
    assert "lockstep_tls_files_usable 0.0" in rotation.scrape(rotation.old, shown, url)
    put(rotation.new.sign("wrapper"), rotation.served)
    trust(rotation.client_ca, rotation.new)
    with pytest.raises(OSError, match=r"(?i)certificate"):
        rotation.scrape(rotation.old, shown, url)
    assert "lockstep_tls_files_usable 1.0" in rotation.scrape(
        rotation.new, rotation.new.sign("prometheus"), url
    )


def test_a_peer_that_says_nothing_does_not_hold_up_metrics(rotation: Rotation) -> None:
    assert rotation.metrics is not None
    host, _, port = rotation.metrics._listen.rpartition(":")
    shown = rotation.old.sign("prometheus")
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
        assert "lockstep_tls_files_usable" in rotation.scrape(
            rotation.old, shown, f"https://{rotation.metrics._listen}/metrics"
        )


def test_a_whole_authority_is_replaced_and_the_view_goes_on(
    rotation: Rotation, caplog: pytest.LogCaptureFixture
) -> None:
    """In the order that docs/security.md gives; the connection breaks after each step."""
    client = rotation.mediator()
    client.create_view("v", VIEW)
    count = 1

    def goes_on() -> None:
        nonlocal count
        rotation.proxy.cut()
        count += 1
        rotation.writer.commit(f"INSERT INTO r VALUES ({count}, {count})")
        client.wait_for_version("v", count - 1)
        assert client.bag("v").total() == count

    goes_on()
    trust(rotation.client_ca, rotation.old, rotation.new)
    trust(rotation.ca, rotation.old, rotation.new)
    goes_on()
    put(rotation.new.sign("wrapper"), rotation.served)
    goes_on()
    rotation.shown.key.write_text("nonsense")
    goes_on()
    assert any(str(rotation.shown.key) in line for line in held(caplog)), "the mediator says so, and goes on"
    put(rotation.new.sign("mediator"), rotation.shown)
    goes_on()
    trust(rotation.client_ca, rotation.new)
    trust(rotation.ca, rotation.new)
    goes_on()
    with pytest.raises(OSError, match=r"(?i)certificate|alert|reset|closed"):
        rotation.handshake(rotation.new, rotation.old.sign("mediator"))
    with pytest.raises(ssl.SSLCertVerificationError):
        rotation.handshake(rotation.old, None)
    rotation.handshake(rotation.new, rotation.new.sign("mediator"))


def test_a_mediator_whose_authority_was_not_told_waits_and_then_goes_on(rotation: Rotation) -> None:
    """The other way round costs time, and nothing else: files that come late are used at the next attempt."""
    client = rotation.mediator()
    client.create_view("v", VIEW)
    put(rotation.new.sign("wrapper"), rotation.served)
    rotation.proxy.cut()
    rotation.writer.commit("INSERT INTO r VALUES (2, 2)")
    assert wait_until(lambda: client.status().sources[0].state != "connected", 60)
    assert client.view("v").version == 0
    trust(rotation.ca, rotation.new)
    client.wait_for_version("v", 1)
    assert client.bag("v").total() == 2


def test_files_that_change_while_they_are_read_are_read_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "a")
    pair, other = authority.sign("one"), authority.sign("two")
    files = TlsFiles(pair.certificate, pair.key, authority.certificate)
    first = files.current()
    assert files.current() is first
    original = TlsFiles._read
    put(other, pair)

    def torn(self: TlsFiles) -> tuple[bytes | None, bytes | None, bytes | None]:
        certificate, key, ca = original(self)
        return (certificate or b"") + b"\n", key, ca

    reads = iter([torn, original])
    files._read = lambda: next(reads)(files)  # type: ignore[method-assign]
    assert files.current() is first
    assert "being written" in files.problem
    del files._read
    assert files.current().certificate == other.certificate.read_bytes()
    assert not files.problem
    assert str(pair.key.read_bytes()) not in repr(files.current())


def test_broken_files_at_the_start_are_an_error(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "a")
    pair = authority.sign("one")
    with pytest.raises(ConfigurationError, match="holds no PEM certificates"):
        TlsFiles(pair.certificate, pair.key, pair.key)
    with pytest.raises(ConfigurationError, match="needs both"):
        TlsFiles(pair.certificate, None, None)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        TlsFiles(pair.certificate, tmp_path / "nothing", None)
