"""The audit log tells what was done: also if its caller did not stay for it, or nobody called."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from algebra.errors import PositionTrimmedError, StorageError
from integration_tests.client import Client
from integration_tests.site import ALONE, PATIENCE, Site, inside, wait_for
from mediator import loader
from mediator.config import ViewSpecConfig
from mediator.server import MediatorServer
from mediator.warehouse.warehouse import Warehouse
from protos.lockstep.v1 import mediator_pb2 as pb
from protos.security.settings import ServerSecurity


@dataclass
class Audited:
    site: Site
    file: Path

    def mediator(self, **settings: Any) -> tuple[MediatorServer, Client]:
        return self.site.mediator(security=ServerSecurity(audit=self.file), **settings)

    def records(self, action: str) -> list[tuple[str, str, str]]:
        """Who did that to which view, and what came of it."""
        found = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [(r["who"], r["target"], r["outcome"]) for r in found if r["action"] == action]


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Audited]:
    with ExitStack() as stack:
        yield Audited(Site(stack, tmp_path), tmp_path / "audit.jsonl")


ME = "anonymous loopback"


@dataclass
class Held:
    """A step of the warehouse that waits until it is let go."""

    reached: threading.Event
    let_go: threading.Event


def held(monkeypatch: pytest.MonkeyPatch, step: str, error: Exception | None = None) -> Held:
    real, held = getattr(Warehouse, step), Held(threading.Event(), threading.Event())

    def waits(*given: Any, **named: Any) -> Any:
        held.reached.set()
        assert held.let_go.wait(PATIENCE)
        if error is not None:
            raise error
        return real(*given, **named)

    monkeypatch.setattr(Warehouse, step, waits)
    return held


def leave(call: Any, step: Held) -> None:
    """Leave a call while it is at that step, which then goes on."""
    assert step.reached.wait(PATIENCE)
    call.cancel()
    with pytest.raises(grpc.RpcError):
        list(call)
    step.let_go.set()


def written(audited: Audited, server: MediatorServer, action: str, *records: tuple[str, str, str]) -> None:
    wait_for(server, lambda _: len(audited.records(action)) >= len(records))
    assert audited.records(action) == list(records)


def test_what_is_made_although_its_caller_left_is_written_down_as_made(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = audited.mediator()
    step = held(monkeypatch, "create_view")
    leave(client.stub.CreateView(pb.CreateViewRequest(view=pb.ViewSpec(name="v", sql=ALONE))), step)
    wait_for(server, lambda mediator: "v" in mediator.views)
    written(audited, server, "create", (ME, "v", "ok"))


def test_what_could_not_be_made_after_its_caller_left_is_written_down_with_the_reason(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = audited.mediator()
    step = held(monkeypatch, "create_view", StorageError("full, for a test"))
    leave(client.stub.CreateView(pb.CreateViewRequest(view=pb.ViewSpec(name="v", sql=ALONE))), step)
    written(audited, server, "create", (ME, "v", "STORAGE"))


def test_what_is_refreshed_although_its_caller_left_is_written_down_as_refreshed(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = audited.mediator()
    client.create_view("v", ALONE)
    step = held(monkeypatch, "install")
    leave(client.stub.RefreshView(pb.RefreshViewRequest(name="v")), step)
    client.wait_for_version("v", 1)
    written(audited, server, "refresh", (ME, "v", "ok"))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(None, "ok"), (StorageError("full, for a test"), "STORAGE"), (RuntimeError("for a test"), "INTERNAL")],
)
def test_what_came_of_a_drop_is_written_down_although_its_caller_left(
    audited: Audited, monkeypatch: pytest.MonkeyPatch, error: Exception | None, outcome: str
) -> None:
    server, client = audited.mediator()
    client.create_view("v", ALONE)
    step = held(monkeypatch, "drop_view", error)
    call = client.stub.DropView.future(pb.DropViewRequest(name="v"))
    assert step.reached.wait(PATIENCE)
    call.cancel()
    step.let_go.set()
    written(audited, server, "drop", (ME, "v", outcome))


def test_views_of_the_configuration_are_written_down(audited: Audited) -> None:
    wrong = ViewSpecConfig("wrong", "SELECT r.none FROM one.r AS r")
    server, _ = audited.mediator(views=[wrong, ViewSpecConfig("v", ALONE)])
    who = "the configuration"
    written(audited, server, "create", (who, "wrong", "VIEW_DEFINITION"), (who, "v", "ok"))


def test_a_refresh_that_the_configuration_asks_for_is_written_down(audited: Audited) -> None:
    server, client = audited.mediator(on_lost_history="resync")
    client.create_view("v", ALONE)
    mediator = inside(server)
    mediator._state.pause(mediator.views["v"], PositionTrimmedError("lost, for a test"))
    written(audited, server, "refresh", ("the configuration", "v", "ok"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_view_of_the_configuration_that_breaks_keeps_no_other_from_being_made(
    audited: Audited, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It is made itself once the disk allows; what nobody foresaw is written down."""
    real, left = loader.loaded_extents, [1]

    def fails(*given: Any, **named: Any) -> Any:
        if left:
            left.clear()
            raise OSError(number, os.strerror(number))
        return real(*given, **named)

    monkeypatch.setattr("mediator.mediator.loaded_extents", fails)
    server, client = audited.mediator(views=[ViewSpecConfig("v", ALONE), ViewSpecConfig("w", ALONE)])
    who = "the configuration"
    if number == errno.ENOSPC:
        written(audited, server, "create", (who, "w", "ok"), (who, "v", "ok"))
    else:
        written(audited, server, "create", (who, "v", "INTERNAL"), (who, "w", "ok"))
    assert client.status().problem == "", "versions can be stored"
