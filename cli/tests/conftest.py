"""A mediator with canned answers on the loopback interface, and a runner for the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.tests.fake_mediator import FakeMediator
from protos.lockstep.v1 import mediator_pb2_grpc

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command line; the environment's own settings are left out."""
    for name in (
        "ADDRESS",
        "TIMEOUT",
        "ENGINE",
        "WAREHOUSE",
        "MEDIATOR_LISTEN",
        "MAX_BATCH",
        "DEBUG",
        "LOG_LEVEL",
        "LOG_FORMAT",
        "CA",
        "CERTIFICATE",
        "KEY",
        "SERVER_NAME",
        "INSECURE",
        "TOKEN",
        "TOKENS",
    ):
        monkeypatch.delenv(f"LOCKSTEP_{name}", raising=False)
    monkeypatch.setenv("TERM", "dumb")

    def invoke(*arguments: str | Path, environment: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield invoke
    root.handlers[:] = handlers  # a command logs to a stream that ends with it
    root.setLevel(level)


@pytest.fixture
def fake() -> Iterator[FakeMediator]:
    """A running mediator that answers what it is told to; `fake.address` is where."""
    server = grpc.server(ThreadPoolExecutor(4))
    servicer = FakeMediator()
    mediator_pb2_grpc.add_MediatorServiceServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(0)


@pytest.fixture
def ask(run: Run, fake: FakeMediator) -> Run:
    """Runs a client command against the fake mediator."""

    def invoke(*arguments: str | Path) -> Result:
        return run(*arguments, "--address", fake.address)

    return invoke
