"""Runs the service: `python -m inventory_service DIRECTORY [PORT]`; prints the port that it listens on.

INVENTORY_TOKENS names who may do what, as `token=role,token=role`. A reader reads, a keeper also makes and
removes feeds, an owner also writes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from inventory_service.store import Refused, Store

ROLES = ("reader", "keeper", "owner")


class Service:
    """All inventories of one directory."""

    def __init__(self, directory: Path, tokens: dict[str, str]) -> None:
        self.tokens = tokens
        self._directory = directory
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()

    def store(self, name: str) -> Store:
        with self._lock:
            if name not in self._stores:
                self._stores[name] = Store(self._directory / f"{name}.jsonl")
            return self._stores[name]


class Handler(BaseHTTPRequestHandler):
    """`METHOD /INVENTORY/resource…`, JSON in, JSON out."""

    service: Service

    def handle_one(self) -> None:
        try:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(200, self._route(json.loads(body or "{}")))
        except Refused as refusal:
            self._answer(refusal.status, {"error": str(refusal)})

    do_GET = do_PUT = do_POST = do_DELETE = handle_one

    def _route(self, body: dict[str, Any]) -> Any:
        url = urlsplit(self.path)
        name, *path = [unquote(part) for part in url.path.strip("/").split("/")]
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        store = self.service.store(name)
        match (self.command, *path):
            case ("GET", "tables"):
                self._require("reader")
                return store.tables()
            case ("POST", "tables", table, "query"):
                self._require("reader")
                return store.rows(table, body["at"], body.get("columns", []), body.get("keys"))
            case ("GET", "news"):
                self._require("reader")
                return store.news(int(query["after"]), float(query["seconds"]))
            case ("GET", "feeds"):
                self._require("reader")
                return store.feeds()
            case ("GET", "feeds", feed):
                self._require("reader")
                return store.feed(feed)
            case ("GET", "feeds", feed, "changes"):
                self._require("reader")
                return store.changes(feed, int(query["after"]), int(query["upto"]))
            case ("PUT", "feeds", feed):
                self._require("keeper")
                return store.follow(feed, body["tables"])
            case ("DELETE", "feeds", feed):
                self._require("keeper")
                return store.unfollow(feed)
            case ("POST", "feeds", feed, "acknowledged"):
                self._require("keeper")
                return store.acknowledge(feed, body["version"])
            case ("POST", "transactions"):
                self._require("owner")
                return store.commit(body)
            case ("PUT", "tables"):
                self._require("owner")
                return store.define(body)
        raise Refused(404, f"there is no {self.command} {url.path}")

    def _require(self, role: str) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        has = self.service.tokens.get(token)
        if has is None:
            raise Refused(401, "the token is not known")
        if ROLES.index(has) < ROLES.index(role):
            raise Refused(403, f"this needs the role {role}, and the token has the role {has}")

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged: their urls are the users' business."""


class Server(ThreadingHTTPServer):
    """One thread per request; pending ones do not hinder the end."""

    daemon_threads = True
    request_queue_size = 64


def main() -> None:
    directory, *port = sys.argv[1:]
    tokens = dict(pair.split("=") for pair in os.environ["INVENTORY_TOKENS"].split(","))
    Handler.service = Service(Path(directory), tokens)
    with Server(("127.0.0.1", int(port[0]) if port else 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
