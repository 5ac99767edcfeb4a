"""What a statement in the binlog means for captured relations.

In row format, the binlog holds row images of all changes of rows, and the text of all else: changes of
schemas, and TRUNCATE, which takes rows away without an image. A text is not parsed; it is asked whether it
names a captured relation, and what it begins with. Where that cannot decide, the answer is the careful one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum

_COMMENT = re.compile(r"/\*(?!M?!).*?\*/|--[ \t][^\n]*|#[^\n]*", re.S)
_WORD = re.compile(r"`(?:[^`]|``)+`|[\w$]+", re.U)
_NAME = re.compile(rf"(?:{_WORD.pattern})(?:\s*\.\s*(?:{_WORD.pattern}))*", re.U)
_HARMLESS_ALTER = re.compile(
    r"^ALTER\s+(ONLINE\s+)?(IGNORE\s+)?TABLE\s+\S+\s+"
    r"((ADD|DROP)\s+(UNIQUE\s+|FULLTEXT\s+|SPATIAL\s+)?(INDEX|KEY)\b|COMMENT\b|AUTO_INCREMENT\b)[^,]*"
    r"(\([^()]*\))?[^,]*$",
    re.I | re.S,
)
_ENDS = ("COMMIT", "ROLLBACK")
_INSIDE = ("BEGIN", "START", "SAVEPOINT", "RELEASE", "SET")
_ROWS = ("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "WITH", "EXECUTE", "DO")
_SHAPES = ("ALTER", "DROP", "RENAME", "CREATE")


def _named(plain: str, schema: str, database: str, relations: Collection[str]) -> str | None:
    """The first of the relations that a statement names; without its schema, it is of the one in use."""
    by_name = {name.lower(): name for name in relations}
    for chain in _NAME.findall(plain):
        words = [word.strip("`").replace("``", "`").lower() for word in _WORD.findall(chain)]
        if len(words) > 1 and words[0] == database.lower() and words[1] in by_name:
            return by_name[words[1]]
        # Followed by a dot, a name may also be that of a relation before its column.
        if schema == database and words[0] in by_name:
            return by_name[words[0]]
    return None


class Effect(Enum):
    """What a statement does, as far as captured relations are concerned."""

    NOTHING = "nothing"
    COMMIT = "ends a transaction"
    ROLLBACK = "undoes a transaction"
    XA = "is part of a transaction of two phases"
    EMPTIED = "was truncated"
    SHAPE = "was altered, renamed or dropped"
    UNSEEN_ROWS = "was changed by a statement that was logged as text (binlog_format is not ROW)"


def effect(text: str, schema: str, database: str, relations: Collection[str]) -> tuple[Effect, str]:
    """What a statement does, and to which relation; `schema` is the one it was issued in."""
    plain = _COMMENT.sub(" ", text).strip().removeprefix("/*!").removeprefix("/*M!").lstrip("0123456789 ")
    words = [word.strip("`").replace("``", "`") for word in _WORD.findall(plain)]
    if not words:
        return Effect.NOTHING, ""
    verb = words[0].upper()
    if verb in _ENDS and not (len(words) > 1 and words[1].upper() == "TO"):
        return (Effect.COMMIT if verb == "COMMIT" else Effect.ROLLBACK), ""
    if verb == "XA":
        return Effect.XA, ""
    if verb in _INSIDE:
        return Effect.NOTHING, ""
    if verb == "DROP" and words[1:2] and words[1].upper() in ("DATABASE", "SCHEMA") and database in words:
        return Effect.SHAPE, next(iter(relations), "")
    named = _named(plain, schema, database, relations)
    if named is None:
        return Effect.NOTHING, ""
    if verb in _ROWS:
        return Effect.UNSEEN_ROWS, named
    if verb == "TRUNCATE":
        return Effect.EMPTIED, named
    if verb == "CREATE" and "REPLACE" not in (word.upper() for word in words[1:3]):
        return Effect.NOTHING, ""
    if verb in _SHAPES and any(word.upper() in ("TABLE", "TABLES") for word in words[1:4]):
        return (Effect.NOTHING, "") if _HARMLESS_ALTER.match(plain) else (Effect.SHAPE, named)
    return Effect.NOTHING, ""
