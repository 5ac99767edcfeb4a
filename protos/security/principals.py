"""Principals: who is calling, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from algebra.errors import ConfigurationError


class Verb(StrEnum):
    """What a scope allows.

    READ: query and watch a view, and see how it is doing. MANAGE: create, drop, refresh, verify and compact
    views. ATTACH: be a mediator of a source. READ and ATTACH may be narrowed to one view or source, as in
    `read:order_book`.
    """

    READ = "read"
    MANAGE = "manage"
    ATTACH = "attach"


ALL_SCOPES = frozenset(verb.value for verb in Verb)


def checked_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """The scopes, each once; ConfigurationError for one that does not exist."""
    found = tuple(dict.fromkeys(scopes))
    for scope in found:
        verb, colon, target = scope.partition(":")
        narrowed = bool(target) and verb in (Verb.READ, Verb.ATTACH)
        if verb not in ALL_SCOPES or (colon and not narrowed):
            raise ConfigurationError(
                f"{scope!r} is no scope; scopes are read, read:VIEW, manage, attach, attach:SOURCE"
            )
    if not found:
        raise ConfigurationError("give at least one scope: read, read:VIEW, manage, attach or attach:SOURCE")
    return found


@dataclass(frozen=True)
class Principal:
    """A caller. `kind` is how it is known: token, certificate or anonymous; `token_id` tells which token.

    The configuration, which has a `kind` of its own, stands for what a server does by itself.
    """

    name: str
    kind: str
    scopes: frozenset[str]
    token_id: str = ""

    def may(self, verb: Verb, target: str) -> bool:
        """Whether it may do that to a view or source.

        >>> ann = Principal("ann", "token", frozenset({"read:orders"}))
        >>> ann.may(Verb.READ, "orders"), ann.may(Verb.READ, "staff"), ann.may(Verb.MANAGE, "")
        (True, False, False)
        """
        return verb.value in self.scopes or f"{verb.value}:{target}" in self.scopes

    def may_some(self, verb: Verb) -> bool:
        """Whether it may do that to anything at all."""
        return any(scope.partition(":")[0] == verb for scope in self.scopes)

    @property
    def title(self) -> str:
        """How audit records and errors call it."""
        return self.name if self.kind == "anonymous" else f"{self.kind} {self.name!r}"


CONFIGURATION = Principal("the configuration", "configuration", frozenset())
"""Whoever wrote it has things done that nobody calls for; it calls nothing itself."""
ANONYMOUS_LOOPBACK = Principal("anonymous loopback", "anonymous", ALL_SCOPES)
ANONYMOUS = Principal("anonymous", "anonymous", ALL_SCOPES)
"""Callers of a server that does not ask who they are."""
