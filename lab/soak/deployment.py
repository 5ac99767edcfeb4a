"""The deployment under soak: sources, writers, wrappers behind proxies and a mediator, each a real process.

Sources on a server share one of each product. A wrapper takes any free port, so that after every restart it
is somewhere else; its proxy is told. What a process prints goes into a file of its own. A guard ends all of
them if this process is killed.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from adapters.servers.process import END_SECONDS, ServerProcess
from lab.bench.errors import BenchmarkError
from lab.bench.processes import LISTENING, Child
from lab.soak.guard import Guard
from lab.soak.kinds import KINDS, SERVERS
from lab.soak.layout import Source, View, sources_of, views_of
from lab.soak.proxy import Proxy

READY_SECONDS = 300.0
JVM_ENDED = "the Java process of Spark has ended"
"""What a mediator says as it ends because of that."""
_WRITING = re.compile("^writing$")


class Process(Child):
    """A child that can also be killed, and stopped and continued by signals."""

    killed = False

    def kill(self) -> None:
        """End it at once, as `kill -9` does; its own children (a JVM) with it."""
        self.killed = True
        children = self._descendants()
        self.signal(signal.SIGKILL)
        self._process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        if self._process.stdin:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def hurry(self) -> None:
        """Write a line to its standard input, if it still reads that."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def finish(self, timeout: float) -> None:
        """Close its standard input, which asks it to stop, and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout)


@dataclass(frozen=True)
class Settings:
    """What a deployment is made of. `load` is how often each writer writes, in bursts per second."""

    directory: Path
    kinds: Sequence[str]
    engine: str = "duckdb"
    seed: int = 1
    load: float = 8.0
    mediator: Mapping[str, object] = field(default_factory=dict)


class Deployment:
    """Everything that runs; use it as a context manager.

    A process is known by its role: "mediator", "wrapper NAME", "writer NAME" or "server PRODUCT".
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.directory = settings.directory
        self._guard = Guard()
        self.servers: dict[str, ServerProcess] = {}
        self.sources: tuple[Source, ...] = tuple(
            self._placed(source) for source in sources_of(settings.kinds, settings.directory)
        )
        self.views: tuple[View, ...] = views_of(self.sources)
        self.proxies = {source.name: Proxy() for source in self.sources}
        self.address = ""
        """Where the mediator listens now; empty while it does not."""
        self.processes: dict[str, Process] = {}
        self.starts: dict[str, int] = {}
        self._random = random.Random(settings.seed)
        self._lock = threading.Lock()
        self._last_away: dict[str, float] = {}
        """When each server was last down or paused; infinity while it is."""
        self.memory = MemoryMeter(self.processes, self.servers)
        self._scratch = settings.directory / "tmp"
        self._scratch.mkdir(exist_ok=True)
        self.file = settings.directory / "lockstep.yaml"
        self.file.write_text(json.dumps(self._configuration()), encoding="utf-8")

    def _placed(self, source: Source) -> Source:
        """The source where it will be: on its server, if it has one."""
        product = KINDS[source.kind].server
        if not product:
            return source
        if product not in self.servers:
            # Apart from ours: PostgreSQL does not run as root, to whose folders others have no access.
            folder = Path(tempfile.mkdtemp(prefix=f"lockstep-{product}-"))
            self.servers[product] = SERVERS[product](folder)
            self.servers[product].popen = self._guard.popen
        return replace(source, place=self.servers[product].url(source.name))

    def _configuration(self) -> dict[str, object]:
        """JSON is YAML."""
        mediator = {
            "listen": "127.0.0.1:0",
            "warehouse": "./warehouse",
            "engine": self.settings.engine,
            "keepalive_seconds": 1.0,
            "late_seconds": 0.5,
            "max_batch": 200,
            **self.settings.mediator,
        }
        sources = {
            source.name: {
                **KINDS[source.kind].section(source),
                "relations": [relation.name for relation in source.relations],
                "listen": "127.0.0.1:0",
            }
            for source in self.sources
        }
        views = {view.name: {"sql": view.sql} for view in self.views}
        return {"mediator": mediator, "sources": sources, "views": views}

    def __enter__(self) -> Deployment:
        self._guard.start()
        self.memory.start()
        try:
            for server in self.servers.values():
                self._guard.delete(server.folder)
            if self.servers:
                with ThreadPoolExecutor(len(self.servers)) as pool:
                    list(pool.map(lambda server: server.install(), self.servers.values()))
                    list(pool.map(self.start, [f"server {product}" for product in self.servers]))
            for source in self.sources:
                if product := KINDS[source.kind].server:
                    self.servers[product].create_database(source.name)
                with closing(KINDS[source.kind].open(source)) as store:
                    store.create()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.memory.stop()
        for proxy in self.proxies.values():
            proxy.close()
        with self._lock:
            processes = list(self.processes.values())
        for process in processes:
            process.signal(signal.SIGCONT)
            if not process.ended:
                process.kill()
            process.stop(1)
        for product, server in self.servers.items():
            server.kill()
            if server.log.exists():
                shutil.copyfile(server.log, self._log(f"server {product}"))
            shutil.rmtree(server.folder, ignore_errors=True)
        self._guard.close()

    # Starting and stopping

    def start_wrapper(self, source: Source) -> None:
        """Start a source's wrapper; the proxy leads to it as soon as it listens.

        A wrapper ends if it does not find its source when it starts. Then it is started again, as a service
        manager would do, but only as long as that source is away.
        """
        words = ["wrapper", str(self.file), "--source", source.name, "--supervised"]
        deadline = time.monotonic() + READY_SECONDS
        while True:
            began = time.monotonic()
            child = self._start(f"wrapper {source.name}", "cli.main", words)
            try:
                found = self._ready(child, LISTENING)
            except BenchmarkError:
                was_away = self._last_away.get(KINDS[source.kind].server, 0.0) > began
                if not child.ended or not was_away or began > deadline:
                    raise
                continue
            if found is not None:
                self.proxies[source.name].target = f"{found['host']}:{found['port']}"
            return

    def start_mediator(self) -> None:
        addresses = [
            word
            for source in self.sources
            for word in ("--source-address", f"{source.name}={self.proxies[source.name].address}")
        ]
        child = self._start("mediator", "cli.main", ["mediator", str(self.file), "--supervised", *addresses])
        if (found := self._ready(child, LISTENING)) is not None:
            self.address = f"{found['host']}:{found['port']}"

    def start_writer(self, source: Source) -> None:
        names = [relation.name + "+" * relation.ticketed for relation in source.relations]
        with self._lock:
            seed = self._random.randrange(1 << 30)
        pause = 1 / self.settings.load
        words = [source.kind, source.place, str(seed), str(pause), *names]
        self._ready(self._start(f"writer {source.name}", "lab.soak.writer", words), _WRITING)

    def start(self, role: str) -> None:
        """Start the process of a role."""
        what, _, name = role.partition(" ")
        if what == "mediator":
            self.start_mediator()
            return
        if what == "server":
            self._count_start(role)
            self.servers[name].start()
            self._last_away[name] = time.monotonic()
            return
        source = next(source for source in self.sources if source.name == name)
        (self.start_wrapper if what == "wrapper" else self.start_writer)(source)

    def start_all(self, writers: bool = True) -> None:
        roles = [f"wrapper {source.name}" for source in self.sources] + ["mediator"]
        roles += [f"writer {source.name}" for source in self.sources] if writers else []
        with ThreadPoolExecutor(len(roles)) as pool:
            list(pool.map(self.start, roles))

    def hurry(self, source: Source) -> None:
        """Let the writer of a source write without a pause for a moment, if it runs."""
        self.processes[f"writer {source.name}"].hurry()

    def kill(self, role: str) -> None:
        """`kill -9`."""
        if role == "mediator":
            self.address = ""
        what, _, name = role.partition(" ")
        if what == "server":
            self._last_away[name] = math.inf
            self.servers[name].kill()
        else:
            self.processes[role].kill()

    def kill_jvm(self) -> None:
        """`kill -9` of the mediator's Java process, by which the mediator ends by itself."""
        mediator, said = self.processes["mediator"], self.output("mediator").count(JVM_ENDED)
        (jvm,) = _jvms(psutil.Process(mediator.pid))
        jvm.kill()
        if not wait_until(lambda: mediator.ended, READY_SECONDS):
            raise TimeoutError("the mediator goes on without its Java process")
        self.address = ""
        # What it said last may still be on its way into the log.
        if not wait_until(lambda: self.output("mediator").count(JVM_ENDED) > said, END_SECONDS):
            raise RuntimeError("the mediator does not say that its Java process has ended")

    @contextmanager
    def stopped(self, role: str) -> Iterator[None]:
        """The process of a role does nothing meanwhile (SIGSTOP)."""
        what, _, name = role.partition(" ")
        if what == "server":
            self._last_away[name] = math.inf
            try:
                with self.servers[name].paused():
                    yield
            finally:
                self._last_away[name] = time.monotonic()
            return
        process = self.processes[role]
        process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.signal(signal.SIGCONT)

    def ended(self) -> list[str]:
        """The roles whose process does not run, though nobody has stopped it; servers first."""
        roles = [*(f"server {product}" for product in self.servers), *self.processes]
        return [role for role in roles if self.has_ended(role)]

    def has_ended(self, role: str) -> bool:
        what, _, name = role.partition(" ")
        return not self.servers[name].processes() if what == "server" else self.processes[role].ended

    def last_words(self, role: str) -> str:
        """What to say of a process that has ended by itself."""
        lines = [line for line in self.output(role).splitlines() if line.strip()]
        return f"{role} ended by itself: {lines[-1][:300] if lines else ''}"

    def stop_writers(self) -> None:
        """Let every writer finish its transaction and end."""
        for source in self.sources:
            self.processes[f"writer {source.name}"].finish(READY_SECONDS)

    def output(self, role: str) -> str:
        """Everything that the processes of a role have printed."""
        what, _, name = role.partition(" ")
        log = self.servers[name].log if what == "server" else self._log(role)
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def _log(self, role: str) -> Path:
        return self.directory / f"{role.replace(' ', '-')}.log"

    def _start(self, role: str, module: str, arguments: Sequence[str]) -> Process:
        child = Process(role, module, arguments, self._log(role), self._popen)
        with self._lock:
            self.processes[role] = child
        self._count_start(role)
        return child

    def _popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a process whose temporary files lie in our folder: it is killed too often to clean up."""
        environment = {**options.pop("env"), "TMPDIR": str(self._scratch)}
        return self._guard.popen(command, env=environment, **options)

    def _count_start(self, role: str) -> None:
        with self._lock:
            self.starts[role] = self.starts.get(role, 0) + 1

    def _ready(self, child: Process, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The line that says that it is ready; None if it was killed before."""
        try:
            return child.wait_for(pattern, READY_SECONDS)[0]
        except Exception:
            if child.killed:
                return None
            raise


class MemoryMeter:
    """Samples the resident memory of processes by role, and keeps the largest; a JVM counts by itself.

    A server counts with all its processes, and what these share once.
    """

    def __init__(
        self, processes: Mapping[str, Process], servers: Mapping[str, ServerProcess], seconds: float = 0.2
    ) -> None:
        self._processes, self._servers, self._seconds = processes, servers, seconds
        self.peak: dict[str, int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            for role, process in list(self._processes.items()):
                with suppress(psutil.Error):
                    found = psutil.Process(process.pid)
                    self._note(role, found.memory_info().rss)
                    for jvm in _jvms(found):
                        self._note(f"JVM of {role}", jvm.memory_info().rss)
            for product, server in self._servers.items():
                self._note(f"server {product}", sum(map(_share, server.processes())))

    def _note(self, role: str, size: int) -> None:
        self.peak[role] = max(self.peak.get(role, 0), size)


def _share(process: psutil.Process) -> int:
    """What a process uses, with its part of what it shares with others."""
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def _jvms(process: psutil.Process) -> Iterator[psutil.Process]:
    return (child for child in process.children() if "java" in child.name())


def wait_until(what: Callable[[], bool], seconds: float, every: float = 0.2) -> bool:
    """Whether it becomes true within that time."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
