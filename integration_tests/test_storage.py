"""A warehouse that cannot be written: told by status and health, nothing lost, and it goes on by itself."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2

from adapters.spi import Snapshot
from algebra.arrow_ipc import from_ipc
from algebra.errors import INTERNAL_ERROR, DataError, StorageError
from integration_tests.client import Client
from integration_tests.processes import run_lockstep
from integration_tests.site import ALONE, PATIENCE, VIEW, Site, inside, wait_for
from integration_tests.test_network import health
from mediator.backoff import Backoff, Retries
from mediator.config import ViewSpecConfig
from mediator.storage_errors import storage_error
from mediator.warehouse.duck import transform
from mediator.warehouse.warehouse import Warehouse
from protos.security.settings import Connection, ServerSecurity
from protos.security.tokens import TokenFile
from wrapper.query_processor import QueryProcessor

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"needs the right to mount a small file system (run as root): {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


class Protection:
    """A second mount over a file system, at the same place, through which it can be made read-only.

    The mediator keeps its lock file open for writing, on the mount below; so the kernel would refuse to make
    that one read-only. Whatever is opened later goes through this one.
    """

    def __init__(self, place: Path) -> None:
        self.place = place

    def mount(self, *arguments: str) -> None:
        done = subprocess.run(["mount", *arguments, str(self.place)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs the right to mount read-only: {done.stderr.strip()}")

    def set(self) -> None:
        self.mount("-o", "remount,bind,ro")

    def lift(self) -> None:
        self.mount("-o", "remount,bind,rw")


@pytest.fixture
def protection(small_disk: Path) -> Iterator[Callable[[], Protection]]:
    """Puts the second mount over the disk, when a test is ready for it."""
    with ExitStack() as stack:

        def begun() -> Protection:
            made = Protection(small_disk)
            made.mount("--bind", str(small_disk))
            stack.callback(subprocess.run, ["umount", "-l", str(small_disk)], check=True)
            return made

        yield begun


def fill(disk: Path) -> Path:
    """A file that takes all the space there is."""
    filler = disk / "filler"
    descriptor = os.open(filler, os.O_CREAT | os.O_WRONLY)
    with suppress(OSError):
        while True:
            os.write(descriptor, b"x" * 4096)
    os.close(descriptor)
    return filler


def test_a_full_disk_and_space_again(site: Site, small_disk: Path) -> None:
    server, client = site.mediator(small_disk / "warehouse")
    client.create_view("v", VIEW)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("v", 1)
    filler = fill(small_disk)
    site.writers["one"].commit("INSERT INTO r VALUES (4, 1)")
    wait_for(server, lambda _: bool(client.status().problem))
    status = client.status()
    assert "the disk is full; free some space" in status.problem
    assert status.HasField("problem_since")
    assert health(client.address) == NOT_SERVING
    assert client.view("v").version == 1
    assert client.bag("v").total() == 3, "readable"
    site.writers["one"].commit("INSERT INTO r VALUES (5, 1)")
    filler.unlink()
    client.wait_for_version("v", 3)
    assert client.bag("v") == Counter({(2, 2, 20): 1, **{(k, 1, 10): 1 for k in (1, 3, 4, 5)}})
    wait_for(server, lambda _: client.status().problem == "")
    assert health(client.address) == SERVING
    assert from_ipc(client.verify("v").arrow).num_rows == 0


def test_a_full_temporary_folder_is_named_and_stops_nobody(
    site: Site, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = site.mediator()
    client.create_view("v", VIEW)
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    filler = fill(small_disk)
    for work in (lambda: client.verify("v"), lambda: client.create_view("w", VIEW)):
        with pytest.raises(grpc.RpcError) as refused:
            work()
        assert f"the temporary folder {small_disk}: the disk is full" in str(refused.value.details())
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("v", 1)
    filler.unlink()
    assert from_ipc(client.verify("v").arrow).num_rows == 0
    assert list(small_disk.glob("lockstep-extents-*")) == []


def test_a_warehouse_that_becomes_read_only(
    site: Site, small_disk: Path, protection: Callable[[], Protection]
) -> None:
    server, client = site.mediator(small_disk / "warehouse")
    client.create_view("v", VIEW)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("v", 1)
    disk = protection()
    disk.set()
    with pytest.raises(OSError, match="Read-only file system"):
        (small_disk / "probe").touch()
    site.writers["one"].commit("INSERT INTO r VALUES (4, 1)")
    wait_for(server, lambda _: bool(client.status().problem))
    status = client.status()
    assert "its file system is read-only; mount it for writing" in status.problem
    assert status.HasField("problem_since")
    assert health(client.address) == NOT_SERVING
    assert client.view("v").version == 1
    assert client.bag("v").total() == 3, "readable"
    site.writers["two"].commit("INSERT INTO s VALUES (1, 11)")
    disk.lift()
    client.wait_for_version("v", 3)
    assert client.bag("v") == Counter(
        {(2, 2, 20): 1, **{(k, 1, y): 1 for k in (1, 3, 4) for y in (10, 11)}}
    ), "nothing is lost"
    wait_for(server, lambda _: client.status().problem == "")
    assert health(client.address) == SERVING
    assert from_ipc(client.verify("v").arrow).num_rows == 0


@pytest.mark.parametrize(
    ("made_before", "problem"),
    [
        (True, "cannot be written: Read-only file system; a mediator needs to"),
        (False, "cannot be made: Read-only file system"),
    ],
)
def test_a_mediator_does_not_start_on_a_read_only_warehouse(
    site: Site, small_disk: Path, protection: Callable[[], Protection], made_before: bool, problem: str
) -> None:
    warehouse = small_disk / "warehouse"
    if made_before:
        server, client = site.mediator(warehouse)
        client.create_view("v", VIEW)
        server.stop(0)
    file = site.directory / "lockstep.yaml"
    file.write_text(f"mediator: {{listen: '127.0.0.1:0', warehouse: '{warehouse}', engine: duckdb}}")
    protection().set()
    done = run_lockstep("mediator", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: the warehouse {warehouse} {problem}\n"


def test_a_warehouse_of_which_writes_say_that_it_is_read_only(site: Site) -> None:
    """The same by injection, where nobody may mount."""
    server, client = site.mediator()
    client.create_view("v", VIEW)
    read_only = True

    def fault(name: str) -> None:
        if read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(site.warehouse))

    inside(server).warehouse._store.steps._fault = fault
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    wait_for(server, lambda _: "read-only" in client.status().problem)
    assert client.bag("v").total() == 2, "readable"
    read_only = False
    client.wait_for_version("v", 1)
    assert client.bag("v").total() == 3


def test_a_view_that_could_not_be_made_leaves_nothing(site: Site, small_disk: Path) -> None:
    """Its rows were on the disk already, and would take the space that others need."""
    server, client = site.mediator(small_disk / "warehouse")
    client.create_view("v", ALONE)
    before = sorted((small_disk / "warehouse" / "data").iterdir())
    writer = site.writers["one"]
    writer.commit(
        "CREATE TABLE wide (k INTEGER, t TEXT)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) "
        "INSERT INTO wide SELECT i, hex(randomblob(300)) FROM n",
    )

    def fault(name: str) -> None:
        if name == "before state.commit":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = inside(server).warehouse._store
    store.steps._fault = fault
    with pytest.raises(grpc.RpcError, match="the disk is full"):
        client.create_view("w", "SELECT w.k, w.t FROM one.wide AS w")
    assert sorted((small_disk / "warehouse" / "data").iterdir()) == before
    assert not store.guarded
    store.steps._fault = lambda _: None
    client.create_view("w", "SELECT w.k, w.t FROM one.wide AS w")
    assert client.bag("w").total() == 3000


def test_a_configured_view_that_the_disk_does_not_take_is_not_loaded_again_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    retries = Retries(lambda: Backoff(1.0, 30.0, uniform=lambda: 0.0), clock)
    server, _ = site.mediator()
    mediator = inside(server)
    loads: list[str] = []
    full = [True]

    def create(spec: ViewSpecConfig, _: object) -> None:
        loads.append(spec.name)
        if full:
            raise StorageError("the disk is full")
        mediator._refused_configured.add(spec.name)  # as if it was there

    monkeypatch.setattr(mediator, "_retries", retries)
    monkeypatch.setattr(mediator, "create_view", create)
    monkeypatch.setattr(mediator, "config", replace(mediator.config, views=(ViewSpecConfig("v", ALONE),)))
    wait_for(server, lambda _: len(loads) == 1)
    looks = clock.looks
    wait_for(server, lambda _: clock.looks > looks + 3)
    assert len(loads) == 1
    clock.now = 1.0
    wait_for(server, lambda _: len(loads) == 2)
    looks = clock.looks
    wait_for(server, lambda _: clock.looks > looks + 3)
    assert len(loads) == 2
    full.clear()
    clock.now = 3.0
    wait_for(server, lambda _: len(loads) == 3)


def test_it_is_told_that_the_disk_works_again_also_if_nothing_waits_to_be_stored(
    site: Site, small_disk: Path
) -> None:
    server, client = site.mediator(small_disk / "warehouse")
    client.create_view("v", ALONE)
    filler = fill(small_disk)
    inside(server)._state.write_failed(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert health(client.address) == NOT_SERVING
    tried: list[bool] = []
    try_writing = inside(server).warehouse.try_writing

    def counted() -> None:
        try:
            try_writing()
        finally:
            tried.append(True)

    inside(server).warehouse.try_writing = counted  # type: ignore[method-assign]
    wait_for(server, lambda _: len(tried) >= 2)
    assert health(client.address) == NOT_SERVING
    filler.unlink()
    wait_for(server, lambda _: client.status().problem == "")
    assert health(client.address) == SERVING


def test_it_is_told_that_the_disk_works_again_also_while_a_source_does_not_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its view has something to store, but nobody knows when."""
    server, client = site.mediator(late_seconds=0.5)
    client.create_view("v", VIEW)
    adapter = site.wrappers["two"]._adapter
    snapshot, answers = adapter.snapshot, threading.Event()

    def locked() -> AbstractContextManager[Snapshot]:
        assert answers.wait(PATIENCE)
        return snapshot()

    monkeypatch.setattr(adapter, "snapshot", locked)
    try:
        site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
        wait_for(server, lambda mediator: bool(mediator.views["v"].owing))
        inside(server)._state.write_failed(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        wait_for(server, lambda _: client.status().problem == "")
        assert client.view("v").state == "stale"
    finally:
        answers.set()
    client.wait_for_version("v", 1)


def test_a_full_disk_of_a_wrapper_is_not_taken_for_the_warehouses(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot answer, for it has to put aside what came since; the mediator's own disk takes versions."""
    later = QueryProcessor._later
    full, tried = [True], []

    def put_aside(self: QueryProcessor, *given: Any) -> Any:
        if full and self.source == "two":
            tried.append(True)
            raise StorageError("source 'two': its backlog cannot be put into the temporary folder")
        return later(self, *given)

    monkeypatch.setattr(QueryProcessor, "_later", put_aside)
    server, client = site.mediator(late_seconds=0.5)
    told: list[bool] = []
    inside(server).on_storage(told.append)
    client.create_view("v", VIEW)
    client.create_view("w", ALONE)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    wait_for(server, lambda _: len(tried) >= 2)
    wait_for(server, lambda m: "its backlog cannot be put" in m.channels["two"].problem)
    client.wait_for_version("w", 1)
    assert client.status().problem == ""
    full.clear()
    client.wait_for_version("v", 1)
    assert client.bag("v") == Counter({(2, 2, 20): 1, (1, 1, 10): 1, (3, 1, 10): 1})
    assert told == []
    assert client.view("v").state == "maintained"


def test_the_words_of_a_wrapper_are_not_taken_for_those_of_the_system(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it says of a query concerns the view that it is for, and neither the warehouse nor health."""
    later = QueryProcessor._later

    def refused(self: QueryProcessor, *given: Any) -> Any:
        if self.source == "two":
            raise DataError("source 'two': No space left on device")
        return later(self, *given)

    monkeypatch.setattr(QueryProcessor, "_later", refused)
    server, client = site.mediator()
    told: list[bool] = []
    inside(server).on_storage(told.append)
    client.create_view("v", VIEW)
    client.create_view("w", ALONE)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    wait_for(server, lambda m: bool(m.problem("v")) or bool(told))
    client.wait_for_version("w", 1)
    assert (client.view("v").state, client.view("v").problem) == (
        "paused",
        "source 'two': No space left on device",
    )
    assert (client.status().problem, told) == ("", [])


def test_only_who_manages_is_told_where_on_the_disk_and_nobody_an_exceptions_words(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Folders of the warehouse are called like their views, of which a reader may know none but its own."""
    tokens = TokenFile(site.directory / "tokens.json")
    scopes = {"boss": "manage", "ann": "read:v"}
    given = {name: tokens.create(name, [scope]) for name, scope in scopes.items()}
    server, client = site.mediator(security=ServerSecurity(tokens=tokens.path))
    mediator = inside(server)
    mediator.create_view(ViewSpecConfig("v", ALONE), lambda *_: None)
    payroll = str(mediator.warehouse.root / "data" / "payroll-1")
    errors: list[Exception] = [OSError(errno.EIO, os.strerror(errno.EIO), payroll)]

    def broken(*_: object) -> None:
        raise errors[-1]

    mediator.warehouse.try_writing = broken  # type: ignore[method-assign]
    mediator.warehouse.history = broken  # type: ignore[assignment, method-assign]
    mediator._state.write_failed(errors[-1])
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(closing(Client(client.address, PATIENCE, Connection(token=token))))
            for name, token in given.items()
        }
        for name, place in {"boss": payroll, "ann": "the warehouse"}.items():
            with pytest.raises(grpc.RpcError) as refused:
                clients[name].history("v")
            for said in (clients[name].status().problem, refused.value.details()):
                assert str(said).startswith(f"{place}: the disk reports errors")
        errors.append(ValueError("odd value 'canary'"))
        wait_for(server, lambda _: clients["boss"].status().problem == INTERNAL_ERROR)
        assert clients["ann"].status().problem.startswith("the warehouse: it does not take what is written")
    assert "canary" in caplog.text


def test_a_stored_view_that_cannot_be_read_does_not_tell_where_it_lies(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    server, client = site.mediator()
    client.create_view("v", ALONE)
    server.stop(0)
    place = str(site.warehouse / "reached.json")

    def broken(self: Warehouse, view: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Warehouse, "resume_from", broken)
        server, client = site.mediator()
        wait_for(server, lambda _: "the disk reports errors" in client.view("v").problem)
        assert client.view("v").problem.startswith("the warehouse: the disk")
    assert place in caplog.text
    wait_for(server, lambda _: client.view("v").state == "maintained")


def test_a_refresh_that_could_be_stored_ends_the_problem(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("v", ALONE)
    state = inside(server)._state

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    inside(server).warehouse.try_writing = full  # type: ignore[method-assign]
    state.storage_failed("full")
    client.refresh("v")
    assert not state.problem


def test_a_view_that_the_disk_does_not_let_be_compacted(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("v", ALONE)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("v", 1)

    def fault(name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    steps = inside(server).warehouse._store.steps
    steps._fault = fault
    with pytest.raises(grpc.RpcError) as refused:
        client.compact("v")
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(refused.value.details()).startswith("the warehouse: the disk is full; free some space")
    steps._fault = lambda _: None
    assert client.compact("v").version == 1


def test_upkeep_tells_what_the_disk_says_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mediator.mediator.UPKEEP_SECONDS", 0.01)
    failures = [
        *(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"/w/{i}.tmp") for i in range(3)),
        *(OSError(errno.EROFS, os.strerror(errno.EROFS)) for _ in range(3)),
    ]
    ran: list[bool] = []

    def maintain(_: object) -> None:
        if failures:
            raise failures.pop(0)
        ran.append(True)

    monkeypatch.setattr(Warehouse, "maintain", maintain)
    caplog.set_level(logging.INFO, "mediator.mediator")
    server, _ = site.mediator()
    wait_for(server, lambda _: len(ran) > 3)
    kept = "(versions are kept back, nothing is lost)"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "ERROR",
            "upkeep of the warehouse failed and will be tried again: "
            f"/w/0.tmp: the disk is full; free some space {kept}",
        ),
        (
            "ERROR",
            f"upkeep of the warehouse failed and will be tried again: {site.warehouse}: it cannot be "
            f"written, its file system is read-only; mount it for writing {kept}",
        ),
        (
            "INFO",
            "upkeep of the warehouse works again, after: "
            "it cannot be written, its file system is read-only; mount it for writing",
        ),
    ]


class FakeClock:
    """Time that stands still; it counts how often somebody looked."""

    now = 0.0
    looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


STEPS = [
    "before changes.write v",
    "after changes.commit v",
    "before versions.commit",
    "after versions.commit",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_disk_that_fails_at_one_step_is_tried_again(site: Site, step: str) -> None:
    """Also right after the commit: the version is there, and must not be made a second time."""
    server, client = site.mediator()
    client.create_view("v", VIEW)
    failures = 3

    def fault(name: str) -> None:
        nonlocal failures
        if name == step and failures:
            failures -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    inside(server).warehouse._store.steps._fault = fault
    for k in (3, 4, 5, 6):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
        client.wait_for_version("v", k - 2)
    assert failures == 0
    assert [version.version for version in client.history("v")] == [4, 3, 2, 1, 0]
    assert client.bag("v") == Counter({(2, 2, 20): 1, **{(k, 1, 10): 1 for k in (1, 3, 4, 5, 6)}})
    assert client.view("v").state == "maintained"
    assert from_ipc(client.verify("v").arrow).num_rows == 0


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (OSError(errno.ENOSPC, "x", "/w/f"), "/w/f: the disk is full"),
        (
            RuntimeError("Generic LocalFileSystem error: No space left on device (os error 28)"),
            "the disk is full",
        ),
        (OSError(errno.EROFS, "x"), "read-only"),
        (ValueError("something else"), None),
        (OSError(errno.ENOENT, "x"), None),
        (DataError("source 'two': No space left on device"), None),
    ],
)
def test_which_failures_are_the_disks(error: Exception, found: str | None) -> None:
    made = storage_error(error, "the warehouse")
    assert (made is None) == (found is None)
    if made is not None:
        assert str(found) in made.message


def test_a_disk_that_fails_while_rows_are_read_is_told_from_what_others_say() -> None:
    def full() -> Iterator[pa.RecordBatch]:
        raise duckdb.IOException("IO Error: Could not write file: No space left on device")
        yield

    schema = pa.schema([("x", pa.int64())])
    rows = transform(pa.RecordBatchReader.from_batches(schema, full()), schema, lambda batch: batch)
    with pytest.raises(DataError) as failed:
        rows.read_all()
    found = storage_error(failed.value, "the warehouse")
    assert found is not None
    assert "the disk is full" in found.message
