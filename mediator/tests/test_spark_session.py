"""Spark's session: secrets are seen by nobody but Spark, its files by nobody but its user; it ends last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from py4j.protocol import Py4JNetworkError

from algebra.engines.embedded import EmbeddedEngine
from algebra.errors import ConfigurationError
from mediator.engines.spark import SparkEngine, spark_session

CANARY = "spark-canary-5391"

# A process of its own, for one has at most one session. What is looked for comes by the environment.
SCRIPT = """
import json, os, stat, sys
from pathlib import Path
from algebra.errors import ConfigurationError
from mediator.engines.spark import spark_session

os.umask(0)
canary = os.environ["CANARY"].encode()
place = Path(os.environ["TMPDIR"])

def processes(what):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if what in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            pass
    return found

def open_to_others(folder):
    found = []
    for path in folder.iterdir():
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            found += open_to_others(path) if path.is_dir() else [path.name]
    return found

session = spark_session(
    "local[1]",
    {"spark.local.dir": str(place), "spark.sql.session.timeZone": "UTC"},
    {
        "spark.hadoop.fs.s3a.secret.key": canary.decode(),
        "spark.sql.catalog.elsewhere.token": canary.decode(),
    },
)
session.range(1000, numPartitions=4).repartition(3).collect()
hadoop = session._jsparkSession.sessionState().newHadoopConf()
told = {
    "hadoop": hadoop.get("fs.s3a.secret.key"),
    "sql": session.conf.get("spark.sql.catalog.elsewhere.token"),
    "plain on command lines": bool(processes(b"spark.sql.session.timeZone=UTC")),
    "secret on command lines": processes(canary),
    "shuffled": len(list(place.rglob("shuffle_*"))),
    "open": open_to_others(place),
    "secret in files": [str(p) for p in place.rglob("*") if p.is_file() and canary in p.read_bytes()],
}
session.stop()
try:
    spark_session("local[1]", {}, {"spark.sql.warehouse.dir": canary.decode()})
    refused = ""
except ConfigurationError as error:
    refused = str(error)
print(json.dumps({**told, "refused": refused}))
"""


@pytest.mark.spark
@pytest.mark.slow
def test_secrets_are_on_no_command_line_and_in_effect_and_files_are_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    environment = {**os.environ, "CANARY": CANARY, "TMPDIR": str(tmp_path), "JDK_JAVA_OPTIONS": ""}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert "spark.sql.warehouse.dir cannot be set by reference" in told.pop("refused")
    assert told.pop("shuffled") > 0
    assert told == {
        "hadoop": CANARY,
        "sql": CANARY,
        "plain on command lines": True,
        "secret on command lines": [],
        "open": [],
        "secret in files": [],
    }
    assert not list(tmp_path.glob("lockstep-spark-*")), "Spark's files stay behind"


@pytest.mark.parametrize("key", ["spark.ssl.keyPassword", "spark.authenticate.secret", "spark.driver.memory"])
def test_a_secret_that_spark_reads_at_its_start_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        spark_session("local[1]", {}, {key: CANARY})
    assert str(refused.value).startswith(f"spark_conf: {key} cannot be set by reference")
    assert "spark-defaults.conf" in str(refused.value)
    assert CANARY not in str(refused.value)


# A service manager tells all processes of a service to stop, the Java process of Spark too.
STOPPED_TOGETHER = """
import os, signal, time
from mediator.engines.spark import spark_session

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("SIGTERM"))
signal.signal(signal.SIGINT, lambda *_: told.append("SIGINT"))
session = spark_session("local[1]", {})
process = session.sparkContext._gateway.proc
for number in (signal.SIGTERM, signal.SIGINT):
    os.killpg(0, number)
try:
    process.wait(3)
except Exception:
    pass
print(*told, session.range(7).count(), process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.spark
@pytest.mark.slow
def test_spark_goes_on_when_all_processes_are_told_to_stop_and_ends_with_a_killed_one(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED_TOGETHER],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        *told, count, pid = process.stdout.readline().split()
        assert (told, count) == (["SIGTERM", "SIGINT"], "7")
        java = psutil.Process(int(pid))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    java.wait(60)


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "Connection refused"), EOFError(), Py4JNetworkError("no answer")]
)
def test_a_java_process_that_is_just_ending_is_no_error(error: Exception) -> None:
    def stop() -> None:
        raise error

    gateway = SimpleNamespace(proc=SimpleNamespace(poll=lambda: None))
    session = SimpleNamespace(
        stop=stop,
        conf={"spark.master": "local[1]"},
        sparkContext=SimpleNamespace(_gateway=gateway),
    )
    engine = SparkEngine(cast(Any, session), EmbeddedEngine(), owns_session=False)
    engine._owns_session = True  # as if it had warmed up
    engine.close()


def test_what_is_embedded_beside_spark_ends_with_it() -> None:
    session = SimpleNamespace(conf={"spark.master": "local[1]"})
    embedded = EmbeddedEngine()
    spilled = embedded._spill.path
    assert spilled.is_dir()
    SparkEngine(cast(Any, session), embedded, owns_session=False).close()
    assert not spilled.exists()
