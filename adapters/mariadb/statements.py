"""What a statement in the binlog means for captured relations.

In row format, the binlog holds row images of all changes of rows, and the text of all else: changes of
schemas, and TRUNCATE, which takes rows away without an image. A text is not parsed; it is cut into words, and
asked whether it names a captured relation, and what it begins with. Where that cannot decide, the answer is
the careful one.

How text is quoted depends on the session's `sql_mode`: "…" may be a name or a string, and a backslash may
hide the quote after it or not. Here "…" is a name, and a text with a backslash is read in both ways. It is in
the session's character set, too: letters that are not UTF-8 may be any, so a name with them may be many.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

_TOKEN = r"""
    (?P<gap> \s+ | /\*(?!M?!).*?\*/ | --(?=\s|\Z)[^\n]* | \#[^\n]*
           | /\*M?!(?:\d{{5,6}})? | \*/ )                # the marks around what is no comment for the server
  | (?P<name> `(?:[^`]|``)*` | "(?:{quoted}|[^"]|"")*+" )
  | (?P<string> '(?:{quoted}|[^']|'')*+' )
  | (?P<word> [\w$\x80-\U0010ffff]+ )                   # for the server, all beyond ASCII is a letter
  | (?P<sign> . )"""
_READINGS = tuple(
    re.compile(_TOKEN.format(quoted=quoted), re.S | re.X | re.A)
    for quoted in (r"\\.", r"(?!)")  # (?!) is nothing
)
_ANY = "\N{REPLACEMENT CHARACTER}"
_UNREADABLE = re.compile(r"(\\x[0-9a-f]{2})+")
"""How the library writes bytes that are not UTF-8."""
_HARMLESS_ALTER = re.compile(
    r"ALTER (ONLINE )?TABLE \S+( \. \S+)? "
    r"((ADD|DROP) (UNIQUE |FULLTEXT |SPATIAL )?(INDEX|KEY)|COMMENT|AUTO_INCREMENT)\b[^,]*"
    r"(\([^()]*\))?[^,]*"
)
"""In the text form of tokens (`_plain`). IGNORE is not harmless: a unique index takes rows away then."""
_ENDS = ("COMMIT", "ROLLBACK")
_INSIDE = ("BEGIN", "START", "SAVEPOINT", "RELEASE", "SET")
_ROWS = ("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "WITH", "EXECUTE", "DO")
_SHAPES = ("ALTER", "DROP", "RENAME", "CREATE")


@dataclass(frozen=True)
class _Token:
    """A word, a quoted `name` without its quotes, a `string` or a `sign`."""

    kind: str
    text: str

    @property
    def is_word(self) -> bool:
        return self.kind in ("word", "name")


def _tokens(text: str, reading: re.Pattern[str]) -> list[_Token]:
    found = []
    for match in reading.finditer(text):
        kind, token = match.lastgroup or "", match[0]
        if kind == "name":
            token = token[1:-1].replace(token[0] * 2, token[0])
        if kind != "gap":
            found.append(_Token(kind, token))
    return found


def _plain(tokens: Sequence[_Token]) -> str:
    """The statement without what its user chose: words in capitals, and a sign for each quoted thing."""
    signs = {"name": "`", "string": "'"}
    return " ".join(signs.get(token.kind, token.text.upper()) for token in tokens)


def _chains(tokens: Sequence[_Token]) -> list[list[str]]:
    """Names with those that a dot puts before them, in small letters."""
    chains: list[list[str]] = []
    is_open = False
    for token in tokens:
        if token.is_word and is_open:
            chains[-1].append(token.text.lower())
        elif token.is_word:
            chains.append([token.text.lower()])
        is_open = token.text == "." and token.kind == "sign" and bool(chains)
    return chains


def _named(tokens: Sequence[_Token], schema: str, database: str, relations: Collection[str]) -> str | None:
    """The first of the relations that a statement names; without its schema, it is of the one in use."""
    for words in _chains(tokens):
        for name in relations:
            if len(words) > 1 and _may_be(words[0], database) and _may_be(words[1], name):
                return name
            # Followed by a dot, a name may also be that of a relation before its column.
            if schema == database and _may_be(words[0], name):
                return name
    return None


def _may_be(word: str, name: str) -> bool:
    if _ANY not in word:
        return word == name.lower()
    return re.fullmatch(".+".join(map(re.escape, word.split(_ANY))), name.lower()) is not None


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
    text = _UNREADABLE.sub(_ANY, text)
    for reading in _READINGS if "\\" in text else _READINGS[:1]:
        found = _effect(_tokens(text, reading), schema, database, relations)
        if found[0] is not Effect.NOTHING:
            return found
    return Effect.NOTHING, ""


def _effect(
    tokens: Sequence[_Token], schema: str, database: str, relations: Collection[str]
) -> tuple[Effect, str]:
    words = [token.text for token in tokens if token.is_word]
    if [word.upper() for word in words[:2]] == ["SET", "STATEMENT"]:
        # SET STATEMENT setting = value FOR another statement; a value may have the word in it, too.
        rests = (tokens[i + 1 :] for i, token in enumerate(tokens) if token.text.upper() == "FOR")
        effects = (_effect(rest, schema, database, relations) for rest in rests)
        return next((found for found in effects if found[0] is not Effect.NOTHING), (Effect.NOTHING, ""))
    if not words:
        return Effect.NOTHING, ""
    verb = words[0].upper()
    if verb in _ENDS and not (len(words) > 1 and words[1].upper() == "TO"):
        return (Effect.COMMIT if verb == "COMMIT" else Effect.ROLLBACK), ""
    if verb == "XA":
        return Effect.XA, ""
    if verb in _INSIDE:
        return Effect.NOTHING, ""
    is_of_database = words[1:2] and words[1].upper() in ("DATABASE", "SCHEMA")
    if verb == "DROP" and is_of_database and any(_may_be(word.lower(), database) for word in words):
        return Effect.SHAPE, next(iter(relations), "")
    named = _named(tokens, schema, database, relations)
    if named is None:
        return Effect.NOTHING, ""
    if verb in _ROWS:
        return Effect.UNSEEN_ROWS, named
    if verb == "TRUNCATE":
        return Effect.EMPTIED, named
    if verb == "CREATE" and "REPLACE" not in (word.upper() for word in words[1:3]):
        return Effect.NOTHING, ""
    if verb in _SHAPES and any(word.upper() in ("TABLE", "TABLES") for word in words[1:4]):
        harmless = _HARMLESS_ALTER.fullmatch(_plain(tokens)) is not None
        return (Effect.NOTHING, "") if harmless else (Effect.SHAPE, named)
    return Effect.NOTHING, ""
