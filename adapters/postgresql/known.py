"""What a snapshot has to know of tables and capture, read in full only when something of it changed.

A full reading takes half a dozen statements over the catalogs. But every change of a table, a column, an
index, a trigger or a partition writes a row of a catalog, and a row's `xmin` tells by whom it was written.
So one statement over those tells whether what was read before is still true, on the same connection: on a
new one, another database may have come to this place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import psycopg

from adapters.postgresql.capture import (
    META,
    RELATIONS,
    Installed,
    changed,
    known_tables,
    note_state,
    read_installed,
)
from adapters.postgresql.catalog import OWN, SourceRelation, SourceTables
from adapters.postgresql.connection import Session, is_refused
from adapters.postgresql.options import Options
from adapters.postgresql.sql import text
from algebra.errors import SchemaChangedError

Problems = Callable[[Session, Installed, SourceTables], dict[int, str]]
"""The prepared relations whose capture no longer works, by number, with the reason in words."""

_STAMP = f"""
    SELECT m.epoch, m.trimmed, concat_ws('|',
        (SELECT string_agg(c.oid || ' ' || c.xmin, ',' ORDER BY c.oid) FROM pg_class c
         WHERE c.oid = ANY (o.oids)),
        (SELECT string_agg(a.attrelid || ' ' || a.attnum || ' ' || a.xmin, ',' ORDER BY a.attrelid, a.attnum)
         FROM pg_attribute a WHERE a.attrelid = ANY (o.oids) AND a.attnum > 0),
        (SELECT string_agg(t.oid || ' ' || t.xmin, ',' ORDER BY t.oid) FROM pg_trigger t
         WHERE t.tgrelid = ANY (o.oids)),
        (SELECT string_agg(i.inhrelid || ' ' || i.xmin, ',' ORDER BY i.inhrelid) FROM pg_inherits i
         WHERE i.inhparent = ANY (o.oids)),
        (SELECT string_agg(x.indexrelid || ' ' || x.xmin, ',' ORDER BY x.indexrelid) FROM pg_index x
         WHERE x.indrelid = ANY (o.oids)),
        (SELECT string_agg(p.oid || ' ' || p.xmin, ',' ORDER BY p.oid) FROM pg_publication_rel p
         WHERE p.prrelid = ANY (o.oids)),
        (SELECT string_agg(p.oid || ' ' || p.xmin, ',') FROM pg_publication p WHERE p.pubname = {text(OWN)}),
        (SELECT string_agg(s.srsubid || ' ' || s.srrelid, ',' ORDER BY s.srsubid, s.srrelid)
         FROM pg_subscription_rel s WHERE s.srrelid = ANY (o.oids)),
        (SELECT string_agg(r.number || ' ' || r.xmin, ',' ORDER BY r.number) FROM {RELATIONS} r))
    FROM {META} m, (SELECT %s::oid[] AS oids) o"""


@dataclass(frozen=True)
class Known:
    """The tables, what is installed, and what of it no longer works; `locked` are the prepared tables."""

    installed: Installed
    tables: SourceTables
    broken: tuple[SchemaChangedError, ...] = ()
    stamp: str = ""

    @property
    def locked(self) -> tuple[SourceRelation, ...]:
        relations = self.tables.relations
        return tuple(relations[name] for name in self.installed.names if name in relations)

    @property
    def oids(self) -> list[int]:
        return [oid for relation in self.tables.relations.values() for oid in relation.oids]


class KnownReader:
    """Reads it in an open snapshot; `writer` notes what has become of tables."""

    def __init__(
        self,
        source: str,
        options: Options,
        shown: Sequence[str] | None,
        problems: Problems,
        writer: Session,
    ) -> None:
        self._source = source
        self._options = options
        self._shown = shown
        self._problems = problems
        self._writer = writer
        self._last: Known | None = None
        self._connection: object = None

    def forget(self) -> None:
        """Read in full the next time."""
        self._last = None

    def read(self, session: Session) -> Known:
        """What the session's transaction sees."""
        last = self._last
        if last is not None and last.stamp and session.connection is self._connection:
            epoch, trimmed, stamp = session.one(_STAMP, [last.oids])
            if stamp == last.stamp:
                return replace(last, installed=replace(last.installed, epoch=epoch, trimmed=trimmed))
        installed = read_installed(session, self._source, self._options.capture)
        tables = known_tables(session, self._options, installed, self._shown)
        is_usable = installed.epoch and not installed.foreign
        problems = self._problems(session, installed, tables) if is_usable else {}
        names = {prepared.number: prepared.name for prepared in installed.relations}
        broken = tuple(changed(self._source, names[number], why) for number, why in problems.items())
        known = Known(installed, tables, broken)
        if is_usable:
            known = replace(known, stamp=session.one(_STAMP, [known.oids])[2])
            self._note(known, problems)
        self._last, self._connection = known, session.connection
        return known

    def _note(self, known: Known, problems: Collection[int]) -> None:
        """Note the states of relations that have the same rows as before, so that two things which mean
        nothing by themselves are not taken together for one that does."""
        for prepared in known.installed.relations:
            relation = known.tables.relations.get(prepared.name)
            if relation is None or prepared.number in problems or relation.state == prepared.state:
                continue
            try:
                note_state(self._writer, prepared, relation.state)
            except psycopg.Error as error:
                if not is_refused(error):  # who prepared it may be another role
                    raise
