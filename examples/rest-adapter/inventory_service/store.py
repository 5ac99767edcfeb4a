"""One inventory: versioned tables, the transactions that made them, and feeds that follow those.

Everything is a line of a journal, so a service that is started again on the same directory goes on.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

KEPT_VERSIONS = 256
"""So many versions can be read; a reader of an older one is told that it is gone."""

Json = dict[str, Any]


class Refused(Exception):
    """The request cannot be served; the HTTP status, and one line that says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Store:
    """An inventory, safe for many threads. Tables are never changed in place: a version keeps its own."""

    def __init__(self, journal: Path) -> None:
        self.changed = threading.Condition()
        self.version = 0
        self._specs: Json = {}
        self._rows: dict[str, Counter[str]] = {}
        self._versions: dict[int, tuple[Json, dict[str, Counter[str]]]] = {}
        self._history: list[tuple[int, Json]] = []
        self._feeds: dict[str, Json] = {}
        text = journal.read_text() if journal.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        for line in whole.splitlines():
            self._apply(json.loads(line))
        if whole != text:  # the service was ended while it wrote
            journal.write_text(whole)
        self._versions.setdefault(0, ({}, {}))
        self._journal = journal.open("a")

    # Reading

    def tables(self) -> Json:
        return {"version": self.version, "tables": self._specs}

    def rows(self, table: str, at: int, columns: list[str], keys: list[Any] | None) -> list[Any]:
        """The rows of a table in one version; with keys, those that have one of them in these columns."""
        specs, tables = self._at(at)
        if table not in specs:
            raise Refused(404, f"version {at} has no table {table!r}")
        rows = [(json.loads(text), count) for text, count in tables[table].items()]
        if keys is not None:
            names = list(specs[table]["columns"])
            places = [names.index(column) for column in columns]
            wanted = {tuple(key) for key in keys if None not in key}
            rows = [(row, count) for row, count in rows if tuple(row[i] for i in places) in wanted]
        return [row for row, count in rows for _ in range(count)]

    def changes(self, feed: str, after: int, upto: int) -> Json:
        found = self.feed(feed)
        if after < found["floor"]:
            raise Refused(410, f"the transactions after {after} are gone")
        followed = found["tables"]
        transactions = [
            {"version": version, "changes": {t: rows for t, rows in changes.items() if t in followed}}
            for version, changes in self._history
            if after < version <= upto
        ]
        return {"feed": found, "transactions": transactions}

    def feed(self, name: str) -> Json:
        if name not in self._feeds:
            raise Refused(404, f"there is no feed {name!r}")
        feed = self._feeds[name]
        return {**feed, "kept": sum(version > feed["floor"] for version, _ in self._history)}

    def feeds(self) -> list[str]:
        return sorted(self._feeds)

    def news(self, after: int, seconds: float) -> int:
        """The version, as soon as it is another than `after`, or when the time is up."""
        with self.changed:
            self.changed.wait_for(lambda: self.version != after, seconds)
            return self.version

    # Writing

    def commit(self, changes: Json) -> int:
        """One transaction: rows to add (count > 0) and to take away (count < 0), by table."""
        with self.changed:
            for table, rows in changes.items():
                if table not in self._specs:
                    raise Refused(404, f"there is no table {table!r}")
                for count, row in rows:
                    if self._rows[table][json.dumps(row)] + count < 0:
                        raise Refused(409, f"table {table!r} has no row {row}")
            return self._do({"commit": changes})

    def define(self, tables: Json) -> int:
        """Tables to make anew, with their rows, or to drop (None); all in one version."""
        with self.changed:
            return self._do({"define": tables})

    def follow(self, name: str, tables: list[str]) -> Json:
        """Make or extend a feed. One whose tables changed since begins anew, with another epoch."""
        with self.changed:
            unknown = [table for table in tables if table not in self._specs]
            if unknown:
                raise Refused(404, f"there is no table {unknown[0]!r}")
            old = self._feeds.get(name)
            if old is None or any(self._specs.get(t) != spec for t, spec in old["tables"].items()):
                old = {
                    "epoch": uuid.uuid4().hex,
                    "floor": self.version,
                    "tables": old["tables"] if old else {},
                }
            followed = [t for t in dict.fromkeys((*old["tables"], *tables)) if t in self._specs]
            self._do({"feed": {name: {**old, "tables": {t: self._specs[t] for t in followed}}}})
            return self.feed(name)

    def unfollow(self, name: str) -> None:
        with self.changed:
            self._do({"feed": {name: None}})

    def acknowledge(self, name: str, version: int) -> None:
        """The transactions up to here are no longer needed for this feed."""
        with self.changed:
            feed = self._feeds.get(name)
            if feed and feed["floor"] < version <= self.version:
                self._do({"feed": {name: {**feed, "floor": version}}})

    def _do(self, line: Json) -> int:
        self._journal.write(json.dumps(line) + "\n")
        self._journal.flush()
        self._apply(line)
        self.changed.notify_all()
        return self.version

    def _apply(self, line: Json) -> None:
        for name, feed in line.get("feed", {}).items():
            self._feeds.pop(name, None)
            if feed is not None:
                self._feeds[name] = feed
            floor = min((feed["floor"] for feed in self._feeds.values()), default=self.version)
            self._history = [entry for entry in self._history if entry[0] > floor]
        if "feed" in line:
            return
        self._specs, self._rows = dict(self._specs), dict(self._rows)
        for table, made in line.get("define", {}).items():
            self._specs.pop(table, None)
            self._rows.pop(table, None)
            if made is not None:
                # With the version: a table that is made anew in the same shape is another one.
                self._specs[table] = {
                    "columns": made["columns"],
                    "key": made["key"],
                    "made": self.version + 1,
                }
                self._rows[table] = Counter(json.dumps(row) for row in made["rows"])
        for table, changed in line.get("commit", {}).items():
            rows = Counter(self._rows[table])
            for count, row in changed:
                text = json.dumps(row)
                rows[text] += count
                if not rows[text]:
                    del rows[text]
            self._rows[table] = rows
        self.version += 1
        self._history.append((self.version, line.get("commit", {})))
        self._versions[self.version] = (self._specs, self._rows)
        self._versions.pop(self.version - KEPT_VERSIONS, None)

    def _at(self, version: int) -> tuple[Json, dict[str, Counter[str]]]:
        if version not in self._versions:
            raise Refused(410, f"version {version} is no longer kept")
        return self._versions[version]
