"""`lockstep doctor`: what would keep a deployment from starting, or its callers from reaching it, is told."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from adapters.servers.ports import free_port
from integration_tests.certificates import Authority, Pair
from integration_tests.processes import LockstepProcess, run_lockstep
from integration_tests.test_starting import written

Findings = dict[str, tuple[str, str]]


def doctor(file: Path) -> tuple[int, Findings]:
    """The exit code, and every finding with its state and text."""
    done = run_lockstep("doctor", str(file), "--json")
    found = json.loads(done.stdout)
    return done.returncode, {line["what"]: (line["state"], line["detail"]) for line in found}


def tls(pair: Pair) -> dict[str, Any]:
    return {"tls": {"certificate": str(pair.certificate), "key": str(pair.key)}}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def test_files_that_are_good(tmp_path: Path, authority: Authority) -> None:
    tokens = tmp_path / "tokens.json"
    run_lockstep("token", "create", "--name", "ada", "--scope", "read", "--file", str(tokens))
    good, client = authority.sign("good", days=100), authority.sign("client", days=100)
    connect = {
        "ca": str(authority.certificate),
        "certificate": str(client.certificate),
        "key": str(client.key),
    }
    shop = {"connect": connect, "listen": f"127.0.0.1:{free_port()}"}
    code, found = doctor(written(tmp_path, {**tls(good), "tokens": str(tokens)}, shop))
    assert code == 0, found
    state, detail = found["protection of mediator"]
    assert state == "ok"
    assert detail.startswith(f"{good.certificate} is valid until ")
    assert detail.endswith(", 1 token")
    assert found["connection to shop"][0] == "ok"
    assert "protection of wrapper shop" not in found, "it has none, and needs none on loopback"


def test_a_certificate_that_has_ended_or_ends_soon(tmp_path: Path, authority: Authority) -> None:
    ended, soon = authority.sign("ended", days=-1), authority.sign("soon", days=3)
    connect = {"ca": str(authority.certificate), "certificate": str(ended.certificate), "key": str(ended.key)}
    code, found = doctor(written(tmp_path, tls(ended), {**tls(soon), "connect": connect}))
    assert code == 1
    assert found["protection of mediator"] == ("wrong", f"{ended.certificate}: certificate has expired")
    assert found["protection of wrapper shop"][0] == "warning"
    assert found["connection to shop"] == ("wrong", f"{ended.certificate}: certificate has expired")


def test_files_that_are_not_there(tmp_path: Path, authority: Authority) -> None:
    lost = Pair(authority.sign("m").certificate, tmp_path / "lost.key")
    shop = {"tokens": str(tmp_path / "lost.json"), "connect": {"ca": str(tmp_path / "lost.pem")}}
    code, found = doctor(written(tmp_path, tls(lost), shop))
    assert code == 1
    missing = "(No such file or directory)"
    assert found["protection of mediator"] == ("wrong", f"{lost.key} cannot be read {missing}")
    assert found["protection of wrapper shop"] == (
        "wrong",
        f"{tmp_path / 'lost.json'}: cannot be read {missing}",
    )
    assert found["connection to shop"] == ("wrong", f"{tmp_path / 'lost.pem'} cannot be read {missing}")


def test_addresses_that_cannot_be_had(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # taken, though nobody answers there
        taken = f"127.0.0.1:{silent.getsockname()[1]}"
        elsewhere = {"listen": "203.0.113.1:1", "insecure": True, "address": taken}
        free = f"127.0.0.1:{free_port()}"
        code, found = doctor(written(tmp_path, {"listen": free, "metrics": taken}, elsewhere))
    assert code == 1
    assert found["mediator"] == (
        "wrong",
        f"does not run at {free}, and cannot listen on {taken}: Address already in use",
    )
    assert found["wrapper shop"] == (
        "wrong",
        f"does not run at {taken}, and cannot listen on 203.0.113.1:1: Cannot assign requested address",
    )


def test_a_wrapper_without_a_port_is_for_a_common_start(tmp_path: Path) -> None:
    file = written(tmp_path, {}, {})
    document = json.loads(file.read_text())
    del document["sources"]["shop"]["listen"], document["sources"]["shop"]["address"]
    file.write_text(json.dumps(document))
    code, found = doctor(file)
    assert code == 0
    assert found["wrapper shop"][0] == "warning"
    assert "`lockstep up` finds it there" in found["wrapper shop"][1]


def test_a_protected_wrapper_that_was_not_asked_is_not_wrong(tmp_path: Path, authority: Authority) -> None:
    """On its own host nobody may have what a mediator shows it."""
    pair, free = authority.sign("wrapper"), f"127.0.0.1:{free_port()}"
    shop = {**tls(pair), "listen": free, "address": free}
    file = written(tmp_path, {}, shop)
    wrapper = LockstepProcess("wrapper", str(file), "--source", "shop")
    try:
        wrapper.wait_ready()
        code, found = doctor(file)
        assert code == 0, found
        assert found["wrapper shop"] == (
            "warning",
            f"listens at {free}, and was not asked more: it is protected, `connect` of the mediator's file "
            "would open it",
        )
        code, found = doctor(written(tmp_path, {}, {**shop, "connect": {"ca": str(authority.certificate)}}))
        assert found["wrapper shop"][0] == "ok", found
        stranger = Authority(tmp_path / "other")
        code, found = doctor(written(tmp_path, {}, {**shop, "connect": {"ca": str(stranger.certificate)}}))
        assert (code, found["wrapper shop"][0]) == (1, "wrong"), found
    finally:
        wrapper.stop()
