"""Writes the Python stubs of `protos/lockstep/v1/*.proto` beside them.

`python protos/generate.py` rewrites the stubs; `--check` only tells whether the checked-in ones are what the
protos say now. Messages and services get stubs for `mypy --strict` from mypy-protobuf.

protoc derives Python imports from the proto's path below the module root, `lockstep/v1/…`, while our import
package starts one folder higher, at `protos`. Adding the root to `sys.path` would make every stub importable
under two names and register it twice with protobuf; so the imports inside the stubs are rewritten instead.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
STUB_SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")

_SERVICE = re.compile(r"^class \w+Servicer\b", re.MULTILINE)
_ABSOLUTE_IMPORT = re.compile(r"^(\s*)from lockstep(\.|\s)", re.MULTILINE)


class GenerationError(Exception):
    """The stubs cannot be written; the message is one line that says why."""


def proto_files(root: Path) -> list[Path]:
    """The protos below `root`, relative to it, in a stable order."""
    return sorted(path.relative_to(root) for path in root.glob("lockstep/**/*.proto"))


def stubs_in(root: Path) -> dict[str, str]:
    """Every generated file below `root`: its relative path and its text."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(root.glob("lockstep/**/*"))
        if path.name.endswith(STUB_SUFFIXES)
    }


def generate(root: Path) -> dict[str, str]:
    """The stubs that the protos below `root` should have, as relative path → text."""
    protos = proto_files(root)
    if not protos:
        return {}
    with tempfile.TemporaryDirectory(prefix="lockstep-protos-") as scratch:
        _run_protoc(root, protos, Path(scratch))
        return {
            name: _rehome_imports(text)
            for name, text in stubs_in(Path(scratch)).items()
            if "_pb2_grpc." not in name
            or _SERVICE.search(text)  # a proto without services needs no gRPC stub
        }


def drift(expected: dict[str, str], actual: dict[str, str]) -> list[str]:
    """What differs between the two sets of stubs, one line per file; empty if nothing does."""
    lines = [f"{name} is missing" for name in expected if name not in actual]
    lines += [f"{name} has no proto" for name in actual if name not in expected]
    lines += [
        f"{name} is out of date" for name in expected if name in actual and actual[name] != expected[name]
    ]
    return sorted(lines)


def write(root: Path, stubs: dict[str, str]) -> list[str]:
    """Makes the stubs below `root` equal to `stubs`, stale ones removed; returns the paths that changed."""
    actual = stubs_in(root)
    for name in actual.keys() - stubs.keys():
        (root / name).unlink()
    changed = [name for name, text in stubs.items() if actual.get(name) != text]
    for name in changed:
        (root / name).write_text(stubs[name], encoding="utf-8")
    return sorted([*changed, *(actual.keys() - stubs.keys())])


def _run_protoc(root: Path, protos: Sequence[Path], out: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--python_out={out}"]
    command.append(f"--grpc_python_out={out}")
    for plugin in ("mypy", "mypy_grpc"):
        command.append(f"--plugin=protoc-gen-{plugin}={_executable(f'protoc-gen-{plugin}')}")
        command.append(f"--{plugin}_out=quiet:{out}")
    command += [path.as_posix() for path in protos]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    if result.returncode != 0:
        raise GenerationError(f"protoc failed: {(result.stderr or result.stdout).strip()}")


def _executable(name: str) -> str:
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise GenerationError(f"{name} is not installed; run 'make setup' (or pip install 'lockstep[dev]')")
    return found


def _rehome_imports(text: str) -> str:
    return _ABSOLUTE_IMPORT.sub(r"\1from protos.lockstep\2", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Write the Python stubs of the protos beside them.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if the stubs are out of date"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the buf module root (default: this folder)")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        stubs = generate(root)
    except GenerationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.check:
        differences = drift(stubs, stubs_in(root))
        if differences:
            print(
                f"error: stubs differ from the protos, run 'make proto': {'; '.join(differences)}",
                file=sys.stderr,
            )
            return 1
        print(f"{len(stubs)} stubs are up to date")
        return 0
    changed = write(root, stubs)
    print(f"{len(stubs)} stubs, {len(changed)} changed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
