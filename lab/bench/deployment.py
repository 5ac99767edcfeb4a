"""One run's own Lockstep: a configuration file, copied sources, wrappers, writers and a mediator."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from adapters.servers.ports import free_port
from lab.bench.client import MediatorClient
from lab.bench.processes import LISTENING, Child, Line
from lab.bench.sources import SourceFile
from lab.bench.workload import SOURCES, VIEW_NAME
from lab.bench.writers import Applied, Committed

READY_SECONDS = 180.0
"""Time that any process gets until it is ready; Spark's first start is the slowest."""

WRITE_SECONDS = 1800.0
"""Time that writers get for a whole stream."""

SUPERVISED = "--supervised"
"""Servers end when their standard input closes, so they do not outlive a benchmark that was killed."""

_READY = re.compile(r"^ready \d+$")
_ANSWER = re.compile(r"^\{.*\}$")


class Deployment:
    """The processes of one run in one directory; leaving the context stops all of them."""

    def __init__(self, directory: Path, files: Sequence[SourceFile], engine: str) -> None:
        self._directory = directory
        self._files = {file.source: file for file in files}
        self._engine = engine
        self._stack = ExitStack()
        self._mediator: Child | None = None
        self._wrappers: dict[str, Child] = {}
        self._writers: dict[str, Child] = {}
        *ports, mediator_port = (free_port() for _ in range(len(files) + 1))
        self.address = f"127.0.0.1:{mediator_port}"
        self._config = directory / "lockstep.yaml"
        self._config.write_text(self._configuration(ports), encoding="utf-8")

    @property
    def warehouse(self) -> Path:
        """The directory of the views."""
        return self._directory / "warehouse"

    @property
    def source_bytes(self) -> int:
        """The size of the source files now, write-ahead logs included."""
        paths = [path for f in self._files.values() for path in f.path.parent.glob(f"{f.path.name}*")]
        return sum(path.stat().st_size for path in paths)

    @property
    def pids(self) -> dict[str, int]:
        """The servers' process ids by role."""
        found = {f"wrapper {source}": child.pid for source, child in self._wrappers.items()}
        if self._mediator is not None:
            found["mediator"] = self._mediator.pid
        return found

    def start_wrappers(self) -> None:
        """One wrapper per source, each in its own process, all ready."""
        for source in self._files:
            self._wrappers[source] = self._child(
                f"wrapper {source}",
                "cli.main",
                ["wrapper", str(self._config), "--source", source, SUPERVISED],
            )
        for child in self._wrappers.values():
            child.wait_for(LISTENING, READY_SECONDS)

    def start_mediator(self) -> Line:
        """A mediator that is ready; the line in which it said so."""
        arguments = ["mediator", str(self._config), "--engine", self._engine, SUPERVISED]
        self._mediator = self._child("mediator", "cli.main", arguments)
        return self._mediator.wait_for(LISTENING, READY_SECONDS)[1]

    @property
    def mediator_started_ns(self) -> int:
        """When the mediator's process was started."""
        assert self._mediator is not None
        return self._mediator.started_ns

    def stop_mediator(self) -> None:
        """Ask the mediator to end, and wait until it has."""
        assert self._mediator is not None
        self._mediator.stop()
        self._mediator = None

    def start_writers(self, stream: Path, count: int) -> None:
        """A writer per source with its part of the stream's first `count` transactions, all ready."""
        for source, file in self._files.items():
            arguments = ["--stream", str(stream), "--count", str(count), "--source", source]
            arguments += ["--adapter", file.adapter, "--file", str(file.path)]
            self._writers[source] = self._child(f"writer {source}", "lab.bench.writers", arguments)
        for child in self._writers.values():
            child.wait_for(_READY, READY_SECONDS)

    def begin_all(self) -> None:
        """Let every writer commit all it has, side by side."""
        for child in self._writers.values():
            child.send("all")

    def await_all(self) -> Applied:
        """The commits of all writers together, once they are done."""
        runs = []
        for child in self._writers.values():
            match, _ = child.wait_for(_ANSWER, WRITE_SECONDS)
            runs.append(Applied(**json.loads(match[0])))
        wrote = [run for run in runs if run.commits]
        return Applied(
            commits=sum(run.commits for run in wrote),
            first_ns=min(run.first_ns for run in wrote),
            last_ns=max(run.last_ns for run in wrote),
        )

    def commit_next(self, source: str) -> Committed:
        """Let one writer commit its next transaction."""
        child = self._writers[source]
        child.send("next")
        match, _ = child.wait_for(_ANSWER, READY_SECONDS)
        return Committed(**json.loads(match[0]))

    def stop_writers(self) -> None:
        """End the writers, so that they let go of the files."""
        for child in self._writers.values():
            child.stop()

    def client(self) -> MediatorClient:
        """A client of this mediator about the benchmark's view; the caller closes it."""
        return MediatorClient(self.address, VIEW_NAME)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _child(self, name: str, module: str, arguments: Sequence[str]) -> Child:
        log = self._directory / f"{name.replace(' ', '-')}.log"
        return self._stack.enter_context(Child(name, module, arguments, log))

    def _configuration(self, ports: Sequence[int]) -> str:
        """JSON is YAML, and quotes whatever needs quoting."""
        sources = {
            source: {
                "adapter": self._files[source].adapter,
                "url": self._files[source].url,
                "listen": f"127.0.0.1:{port}",
            }
            for source, port in zip(SOURCES, ports, strict=True)
        }
        mediator = {"listen": self.address, "warehouse": str(self.warehouse), "engine": self._engine}
        return json.dumps({"mediator": mediator, "sources": sources}, indent=1)
