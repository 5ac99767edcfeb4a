"""What a snapshot has to know of tables and capture, read in full only when something of it changed.

A full reading takes half a dozen statements over the catalogs. But every change of a table, a column, an
index, a trigger or a partition writes a row of a catalog, and a row's `xmin` tells by whom it was written.
So one statement over those tells whether what was read before is still true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from adapters.postgresql.capture import META, RELATIONS, Installed, changed, known_tables, read_installed
from adapters.postgresql.catalog import SourceRelation, SourceTables
from adapters.postgresql.connection import Session
from adapters.postgresql.options import Options
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
    """Reads it in an open snapshot."""

    def __init__(
        self, source: str, options: Options, shown: Sequence[str] | None, problems: Problems
    ) -> None:
        self._source = source
        self._options = options
        self._shown = shown
        self._problems = problems
        self._last: Known | None = None

    def forget(self) -> None:
        """Read in full the next time."""
        self._last = None

    def read(self, session: Session) -> Known:
        """What the session's transaction sees."""
        last = self._last
        if last is not None and last.stamp:
            epoch, trimmed, stamp = session.one(_STAMP, [last.oids])
            if stamp == last.stamp:
                return replace(last, installed=replace(last.installed, epoch=epoch, trimmed=trimmed))
        installed = read_installed(session, self._source, self._options.capture)
        tables = known_tables(session, self._options, installed, self._shown)
        problems = self._problems(session, installed, tables) if installed.epoch else {}
        names = {prepared.number: prepared.name for prepared in installed.relations}
        broken = tuple(changed(self._source, names[number], why) for number, why in problems.items())
        known = Known(installed, tables, broken)
        if installed.epoch:
            known = replace(known, stamp=session.one(_STAMP, [known.oids])[2])
        self._last = known
        return known
