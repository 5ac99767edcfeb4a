"""What log capture installs in the database: a publication, a trigger per table, the marker, and a slot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from adapters.postgresql.capture import (
    EPOCH,
    META,
    RELATIONS,
    Installed,
    Prepared,
    check_creation,
    check_rights,
    create_base,
    create_marker,
    drift,
    drop_marker,
    known_tables,
    note_relation,
    read_home,
    read_installed,
)
from adapters.postgresql.catalog import OWN, SourceRelation, SourceTables
from adapters.postgresql.connection import Session
from adapters.postgresql.options import LOG, Options
from adapters.postgresql.pgoutput import MARK_PREFIX, TRUNCATE_PREFIX
from adapters.postgresql.sql import path, quote, text
from adapters.postgresql.trigger_layout import CANONICAL, ROOT, SEES_ALL
from algebra.errors import ConfigurationError

PUBLICATION = OWN
IDLE = f"{OWN}.idle"
_PUBLISHED = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
SLOT_PREFIX = "lockstep_"

_SLOTS = f"""
    SELECT slot_name, (confirmed_flush_lsn - '0/0')::int8, coalesce(wal_status, '') FROM pg_replication_slots
    WHERE database = current_database() AND NOT temporary AND plugin = 'pgoutput'
      AND starts_with(slot_name, {text(SLOT_PREFIX)})
    ORDER BY slot_name"""


@dataclass(frozen=True)
class Slot:
    """The slot that keeps our place; `confirmed` is that place."""

    name: str
    confirmed: int

    @property
    def epoch(self) -> str:
        return self.name.removeprefix(SLOT_PREFIX)


def read_slot(session: Session) -> Slot | None:
    """The slot of this database, if there is one whose history is all there."""
    for name, confirmed, status in session.rows(_SLOTS):
        if status != "lost" and confirmed is not None:
            return Slot(name, confirmed)
    return None


@dataclass(frozen=True)
class Plan:
    """Statements that install capture: one by one, then `together` in one transaction, then one by one again.

    A slot is neither made nor dropped in a transaction, and its name is the epoch. So where history was lost
    the old slot goes first: should it end after that, every position of before is refused already, and a
    second `prepare` makes the slot. Wrong way: *make the new slot, then drop the old one*, after the
    relations were mended; if that fails (no free slot, a lost connection), nothing tells of the loss.
    """

    first: tuple[str, ...]
    together: tuple[str, ...]
    last: tuple[str, ...]

    @property
    def steps(self) -> list[str]:
        """All of them, in order."""
        return [*self.first, *self.together, *self.last]


class LogInstallation:
    """Plans what is installed and removed, and leaves it to others to do so."""

    def __init__(self, source: str, options: Options, control: Session) -> None:
        self._source = source
        self._options = options
        self._control = control

    def plan(self, names: Sequence[str]) -> Plan:
        """What puts these relations under capture, and mends those that drifted."""
        installed = read_installed(self._control, self._source, LOG)
        with self._control.reading():
            tables = known_tables(self._control, self._options, installed, None)
        wanted = tables.select(names)
        for relation in wanted:
            relation.schema_shown(self._source)
        check_rights(self._control, self._source, wanted, ["SELECT"])
        self._check_server()
        found = {} if installed.foreign else problems(self._control, installed, tables)
        broken = [p for p in installed.relations if p.number in found or installed.foreign]
        wanted += [
            tables.relations[prepared.name] for prepared in broken if prepared.name in tables.relations
        ]
        have = {p.name for p in installed.relations} - {p.name for p in broken}
        number = max((p.number for p in installed.relations), default=0)
        new = {r.name: r for r in wanted if r.name not in have}
        self._check_owner(list(new.values()))
        remembered = {oid: identity for prepared in broken for oid, identity in prepared.identity}
        kept = {oid for relation in new.values() for oid, *_ in self._identities(relation)}
        steps: list[str] = []
        for prepared in broken:
            steps += self._unprepare(prepared, kept)
        if installed.foreign:
            steps += self._drop_base()
        if not installed.epoch or installed.foreign:
            check_creation(self._control, self._source, self._options.schema, base=True)
            steps += create_base(LOG, read_home(self._control))
            steps.append(f"CREATE TABLE {IDLE} (epoch text NOT NULL, last int8 NOT NULL, upto int8 NOT NULL)")
            steps += create_marker(
                self._options.schema,
                f"{OWN}.mark",
                f"PERFORM pg_logical_emit_message(true, {text(MARK_PREFIX)},"
                " convert_to(json_build_array(NEW.id, NEW.participants)::text, 'UTF8'));",
                definer=False,
            )
            steps.append(f"CREATE PUBLICATION {PUBLICATION} WITH ({_PUBLISHED})")
        else:
            steps += self._mend_publication()
        for relation in new.values():
            number += 1
            steps += self._prepare_relation(number, relation, remembered)
        slots = [row[0] for row in self._control.rows(_SLOTS)]
        slot = read_slot(self._control)
        if slot is not None and not broken and not installed.foreign:
            return Plan((), tuple(steps), ())
        name = f"{text(SLOT_PREFIX)} || left({EPOCH}, 16)"
        return Plan(
            tuple(f"SELECT pg_drop_replication_slot({text(old)})" for old in slots),
            tuple(steps),
            (f"SELECT pg_create_logical_replication_slot({name}, 'pgoutput')",),
        )

    def _mend_publication(self) -> list[str]:
        """What makes the publication tell all changes, if somebody dropped or altered it."""
        found = self._control.one(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot"
            " FROM pg_publication WHERE pubname = %s",
            [PUBLICATION],
        )
        if found is None:
            return [f"CREATE PUBLICATION {PUBLICATION} WITH ({_PUBLISHED})"]
        return [] if found[0] else [f"ALTER PUBLICATION {PUBLICATION} SET ({_PUBLISHED})"]

    def _prepare_relation(
        self, number: int, relation: SourceRelation, remembered: Mapping[str, str]
    ) -> list[str]:
        identities = self._identities(relation)
        steps = [
            f"ALTER TABLE {table} REPLICA IDENTITY FULL"
            for _, table, identity in identities
            if identity != "FULL"
        ]
        function = f"{OWN}.truncate_{number}"
        row = quote(f"{OWN} row")
        # All else comes in UTF-8, whatever the database's encoding; messages come as the bytes that they are.
        steps.append(
            f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
            f" {CANONICAL} AS $lockstep$ BEGIN"
            f" IF NOT {SEES_ALL} THEN PERFORM pg_logical_emit_message(true, {text(TRUNCATE_PREFIX)},"
            f" convert_to('{number} ' || to_json(TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME), 'UTF8'));"
            " RETURN NULL; END IF;"
            f" PERFORM pg_logical_emit_message(true, {text(TRUNCATE_PREFIX)}, '{number} []');"
            f" EXECUTE format('SELECT pg_logical_emit_message(true,"
            f" {text(TRUNCATE_PREFIX).replace(chr(39), chr(39) * 2)},"
            f" convert_to(''{number} '' || json_agg(part.v)::text, ''UTF8''))"
            f" FROM (SELECT {row}::%s::text AS v,"
            f" (row_number() OVER () - 1) / 500 AS n FROM ONLY %I.%I AS {row}) AS part GROUP BY part.n',"
            f" {ROOT}, TG_TABLE_SCHEMA, TG_TABLE_NAME);"
            " RETURN NULL; END $lockstep$"
        )
        for _, table, _ in identities:
            steps.append(
                f"CREATE TRIGGER _lockstep_truncate BEFORE TRUNCATE ON {table}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
            )
            # Of a partition that is truncated by its own name, the log tells nothing else.
            steps.append(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER _lockstep_truncate")
        # Partitions too, whose rows are told as the root's: what is published cannot be made UNLOGGED.
        published = ", ".join([relation.scanned, *relation.partitions])
        steps.append(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {published}")
        before = [(oid, remembered.get(oid, identity)) for oid, _, identity in identities]
        steps.append(note_relation(number, relation, [pair for pair in before if pair[1] != "FULL"]))
        return steps

    def _identities(self, relation: SourceRelation) -> list[tuple[str, str, str]]:
        """The table and its partitions: oid, name, and replica identity as ALTER TABLE says it.

        Whether old rows are logged is up to the partition, whether they are sent as such is up to the root.
        """
        found = []
        for table in relation.tables:
            oid, kind, index = self._control.one(
                "SELECT c.oid::text, c.relreplident::text, (SELECT quote_ident(i.relname) FROM pg_index x"
                " JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = c.oid AND x.indisreplident)"
                " FROM pg_class c WHERE c.oid = %s::regclass",
                [table],
            )
            words = {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": f"USING INDEX {index}"}
            found.append((oid, table, words[kind] if kind != "i" or index else "DEFAULT"))
        return found

    def _unprepare(self, prepared: Prepared, kept: Collection[str] = ()) -> list[str]:
        """Undo what was done to one relation, as far as its tables are there and not `kept` (by oid)."""
        name = f"truncate_{prepared.number}"
        published = self._control.rows(
            "SELECT DISTINCT r.prrelid::regclass::text FROM pg_publication_rel r"
            " JOIN pg_publication p ON p.oid = r.prpubid"
            " LEFT JOIN (pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid"
            "            JOIN pg_namespace n ON n.oid = f.pronamespace AND n.nspname = %s AND f.proname = %s)"
            "   ON r.prrelid = t.tgrelid OR r.prrelid IN (SELECT relid FROM"
            " pg_partition_ancestors(t.tgrelid))"
            " WHERE p.pubname = %s AND (t.oid IS NOT NULL OR r.prrelid = to_regclass(%s))",
            [OWN, name, PUBLICATION, path(prepared.schema, prepared.table)],
        )
        steps = [f"ALTER PUBLICATION {PUBLICATION} DROP TABLE {table}" for (table,) in published]
        steps.append(f"DROP FUNCTION {OWN}.{name}() CASCADE")
        for oid, identity in prepared.identity:
            table = self._control.one(
                "SELECT oid::regclass::text FROM pg_class WHERE oid = %s::oid AND relreplident = 'f'", [oid]
            )
            if table is not None and oid not in kept:
                steps.append(f"ALTER TABLE {table[0]} REPLICA IDENTITY {identity}")
        steps.append(f"DELETE FROM {RELATIONS} WHERE number = {prepared.number}")
        return steps

    def _check_server(self) -> None:
        level, role = self._control.one(
            "SELECT current_setting('wal_level'),"
            " (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)"
        )
        if level != "logical":
            raise ConfigurationError(
                f"source {self._source!r}: wal_level is {level}; set wal_level = logical and restart"
                " the server,"
                " or use capture: trigger"
            )
        if not role:
            user = self._control.one("SELECT quote_ident(current_user)")[0]
            raise ConfigurationError(
                f"source {self._source!r}: the right to replicate is missing; ALTER ROLE {user} REPLICATION,"
                " or use capture: trigger"
            )

    def _check_owner(self, relations: Sequence[SourceRelation]) -> None:
        for relation in relations:
            owns, owner, user = self._control.one(
                "SELECT pg_has_role(relowner, 'USAGE'), quote_ident(pg_get_userbyid(relowner)),"
                " quote_ident(current_user) FROM pg_class WHERE oid = %s::oid",
                [relation.oid],
            )
            if not owns:
                raise ConfigurationError(
                    f"source {self._source!r}: only its owner may publish {relation.qualified}; GRANT"
                    f" {owner} TO"
                    f" {user}, or let the owner prepare it once"
                )

    def removal(self) -> tuple[list[str], list[str]]:
        """The statements that take out what is in the database, and after them those that drop slots."""
        steps: list[str] = []
        slots = [f"SELECT pg_drop_replication_slot({text(row[0])})" for row in self._control.rows(_SLOTS)]
        installed = read_installed(self._control, self._source, LOG)
        if installed.epoch:
            for prepared in installed.relations:
                steps += self._unprepare(prepared)
            steps += self._drop_base()
        return steps, slots

    def _drop_base(self) -> list[str]:
        """Undo what was done for all relations together."""
        return [
            *drop_marker(self._control),
            f"DROP PUBLICATION IF EXISTS {PUBLICATION}",
            f"DROP FUNCTION IF EXISTS {OWN}.mark()",
            *(f"DROP TABLE {table}" for table in (IDLE, RELATIONS, META)),
            f"DROP SCHEMA {OWN}",
        ]


def problems(session: Session, installed: Installed, tables: SourceTables) -> dict[int, str]:
    """The prepared relations whose capture no longer works, by number, with the reason in words."""
    oids = [oid for relation in tables.relations.values() for oid in relation.oids]
    found = {
        oid: state
        for oid, *state in session.rows(
            "SELECT c.oid::int8, c.relreplident = 'f',"
            " (SELECT array_agg(p.proname::text) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid"
            "   JOIN pg_namespace n ON n.oid = p.pronamespace"
            "   WHERE t.tgrelid = c.oid AND n.nspname = %s AND t.tgenabled IN ('O', 'A')),"
            " EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid"
            "   WHERE p.pubname = %s AND r.prrelid = c.oid)"
            " FROM pg_class c WHERE c.oid = ANY (%s::oid[])",
            [OWN, PUBLICATION, oids],
        )
    }
    broken = {}
    for prepared in installed.relations:
        relation = tables.relations.get(prepared.name)
        problem = drift(prepared, relation)
        if problem is None and relation is not None:
            states = [found[oid] for oid in relation.oids]
            if not all(full for full, _, _ in states):
                problem = "lost its replica identity"
            elif not all(f"truncate_{prepared.number}" in (triggers or ()) for _, triggers, _ in states):
                problem = "lost its trigger"
            elif not all(published for _, _, published in states):
                problem = "is no longer published"
            elif any(
                prepared.state[oid].get("published") != state["published"]
                for oid, state in relation.state.items()
            ):
                problem = "was not published all the time, or not all of its changes were,"
            elif any(_was_emptied(prepared.state[oid], state) for oid, state in relation.state.items()):
                problem = "may have been truncated (it has a new file, and its triggers were altered)"
        if problem is not None:
            broken[prepared.number] = problem
    return broken


def _was_emptied(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether a table may have been truncated while its trigger was disabled, which alters the trigger."""
    return before["file"] != now["file"] and before["triggers"] != now["triggers"]
