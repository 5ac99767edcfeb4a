"""Requests to the service, and what its refusals mean to Lockstep."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from algebra.errors import ConfigurationError, SourceUnavailableError


class GoneError(Exception):
    """The service has it no more, or never had."""


class Client:
    """One inventory of a service. Every request has a connection of its own, so none can go stale."""

    def __init__(self, source: str, url: str, token: str, timeout: float) -> None:
        self._source = source
        self._url = urlsplit(url)
        self._token = token
        self._timeout = timeout or None  # 0 is for ever, as in every adapter

    def call(self, method: str, *path: str, body: Any = None, query: str = "") -> Any:
        """The answer. SourceUnavailableError if there is none, ConfigurationError if it is not allowed."""
        place = "/".join([self._url.path, *(quote(part, safe="") for part in path)])
        connection = HTTPConnection(self._url.netloc, timeout=self._timeout)
        try:
            connection.request(
                method,
                f"{place}?{query}" if query else place,
                body=None if body is None else json.dumps(body),
                headers={"Authorization": f"Bearer {self._token}"},
            )
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            # Also an answer that breaks off: a part of it must never count as the whole.
            raise SourceUnavailableError(
                f"source {self._source!r}: {self._url.netloc} does not answer: {type(error).__name__}"
            ) from error
        finally:
            connection.close()
        if response.status == 200:
            return answer
        if response.status in (404, 410):
            raise GoneError(answer["error"])
        if response.status in (401, 403):
            raise ConfigurationError(f"source {self._source!r}: the service refuses: {answer['error']}")
        raise SourceUnavailableError(f"source {self._source!r}: the service says {response.status}")
