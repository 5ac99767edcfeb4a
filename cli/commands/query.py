"""`lockstep query`: rows of a SELECT over the views."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from algebra.errors import ConfigurationError
from cli import rows, text
from cli.client import DEFAULT_TIMEOUT, MediatorClient
from cli.options import DEFAULT_ADDRESS, Address, Timeout
from cli.rows import Format
from protos.lockstep.v1 import mediator_pb2 as pb


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT in which views are tables.")],
    as_of: Annotated[
        int | None, typer.Option("--as-of", min=0, help="The version to read; default: the newest.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="How rows are written.")] = Format.TABLE,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Query the views, at their newest version or as of any other.

    Rows stream as they arrive. With a table, the versions that were read follow on stderr.
    """
    if form is Format.ARROW and output is None and sys.stdout.isatty():
        raise ConfigurationError("Arrow is not for terminals; give --output FILE, or pipe it")
    request = pb.QueryRequest(sql=sql)
    if as_of is not None:
        request.as_of = as_of
    with MediatorClient(address, timeout) as mediator, _sink(output) as out:
        width = shutil.get_terminal_size().columns if output is None and sys.stdout.isatty() else None
        total, versions = _copy(mediator.stream(mediator.stub.Query, request), rows.writer(form, out, width))
    if form is Format.TABLE and output is None:
        read = ", ".join(f"{text.visible(view)} at version {versions[view]}" for view in sorted(versions))
        print(f"{text.count(total, 'row')}{f' ({read})' if read else ''}", file=sys.stderr)


def _copy(answers: Iterator[pb.QueryResponse], writer: rows.RowWriter) -> tuple[int, dict[str, int]]:
    from algebra.arrow_ipc import from_ipc

    total, begun, versions = 0, False, dict[str, int]()
    for answer in answers:
        versions.update(answer.versions)
        if not answer.arrow:
            continue
        chunk = from_ipc(answer.arrow)
        if not begun:
            writer.begin(chunk.schema)
            begun = True
        writer.write(chunk)
        total += chunk.num_rows
    if begun:
        writer.end()
    return total, versions


@contextmanager
def _sink(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        file = output.open("wb")
    except OSError as error:
        raise ConfigurationError(f"{output}: cannot be written ({error.strerror})") from error
    with file:
        yield file
