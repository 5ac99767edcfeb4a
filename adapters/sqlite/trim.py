"""Trimming the change log, in small write transactions, without losing where it ends."""

from __future__ import annotations

from adapters.sqlite.capture import LOG, META, REPLACED
from adapters.sqlite.connection import Connection
from adapters.sqlite.snapshot import epoch_of, token
from algebra.position import Position

_CHUNK_ROWS = 5000
_CHUNKS = 20


def trim(writer: Connection, position: Position, nonce: str) -> bool:
    """Delete log rows up to the position; True if that is done, False if a part is left for another call.

    The newest row always stays: the next row's number follows from it. A position of another history
    trims nothing. `nonce` is SQL for the nonce of a row.
    """
    for _ in range(_CHUNKS):
        with writer.transaction():
            epoch, oldest, newest, trimmed, found = writer.rows(
                f"SELECT (SELECT value FROM {META} WHERE name = 'epoch'), "
                f"(SELECT min(seq) FROM {LOG}), (SELECT max(seq) FROM {LOG}), "
                f"(SELECT value FROM {META} WHERE name = 'trimmed'), "
                f"(SELECT {nonce} FROM {LOG} WHERE seq = {position.ordinal:d})"
            )[0]
            if epoch != epoch_of(position) or position.ordinal > newest:
                return False
            if position.ordinal > trimmed:
                if position.token not in (epoch, token(epoch, found or 0)):
                    return False
                writer.execute(f"UPDATE {META} SET value = ? WHERE name = 'trimmed_nonce'", [int(found or 0)])
            # The mark first: rows below it are no longer history, whether deleted now or later.
            writer.execute(
                f"UPDATE {META} SET value = max(value, ?) WHERE name = 'trimmed'", [position.ordinal]
            )
            writer.execute(f"DELETE FROM {REPLACED}")
            limit = min(position.ordinal, newest - 1)
            writer.execute(f"DELETE FROM {LOG} WHERE seq <= ?", [min(limit, oldest + _CHUNK_ROWS - 1)])
            if oldest + _CHUNK_ROWS > limit:
                return True
    return False
