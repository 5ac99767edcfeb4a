"""What each RPC needs: the one table. An RPC that is not in it is refused to everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from algebra.errors import ForbiddenError
from protos.security.principals import Principal, Verb

Need = tuple[Verb, ...]


@dataclass(frozen=True)
class Rule:
    """What a caller must be allowed, one of `needs` with all its verbs, and how audit records call the act.

    `target` is the field of the request that names the view; without one, the verb must be allowed for
    something, and the service looks after the rest (the views of a query are known only when it is parsed).
    An RPC on a source always has that source as its target. `open` means that nobody is asked who they are.
    `lasting` streams are recorded when they begin, too.
    """

    action: str
    needs: tuple[Need, ...] = ()
    target: str = ""
    open: bool = False
    lasting: bool = False


_READ: Need = (Verb.READ,)
_MANAGE: Need = (Verb.MANAGE,)
_ATTACH: Need = (Verb.ATTACH,)
_ANYBODY_KNOWN: tuple[Need, ...] = ((),)

_MEDIATOR = "/lockstep.v1.MediatorService/"
_WRAPPER = "/lockstep.v1.WrapperService/"
_HEALTH = "/grpc.health.v1.Health/"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/"

RULES: Mapping[str, Rule] = {
    _MEDIATOR + "CreateView": Rule("create", (_MANAGE,)),
    _MEDIATOR + "DropView": Rule("drop", (_MANAGE,), "name"),
    _MEDIATOR + "RefreshView": Rule("refresh", (_MANAGE,), "name"),
    _MEDIATOR + "CompactView": Rule("compact", (_MANAGE,), "name"),
    # It shows rows that differ, and makes all sources read their relations.
    _MEDIATOR + "VerifyView": Rule("verify", ((Verb.MANAGE, Verb.READ),), "name"),
    _MEDIATOR + "ListViews": Rule("list", (_READ, _MANAGE)),
    _MEDIATOR + "GetView": Rule("describe", (_READ, _MANAGE), "name"),
    _MEDIATOR + "GetHistory": Rule("history", (_READ, _MANAGE), "name"),
    _MEDIATOR + "GetStatus": Rule("status", (_READ, _MANAGE)),
    _MEDIATOR + "Explain": Rule("explain", (_READ, _MANAGE)),
    _MEDIATOR + "Query": Rule("query", (_READ,)),
    _MEDIATOR + "WatchView": Rule("watch", (_READ,), "name", lasting=True),
    _WRAPPER + "DescribeSource": Rule("describe", (_ATTACH,)),
    _WRAPPER + "LoadLocalView": Rule("load", (_ATTACH,)),
    _WRAPPER + "Exchange": Rule("attach", (_ATTACH,), lasting=True),
    _HEALTH + "Check": Rule("health", open=True),
    _HEALTH + "Watch": Rule("health", open=True),
    _HEALTH + "List": Rule("health", open=True),
    _REFLECTION + "ServerReflectionInfo": Rule("reflect", _ANYBODY_KNOWN),
}


def check(principal: Principal, method: str, rule: Rule, target: str) -> None:
    """Raise ForbiddenError unless the caller may use the method on the target; empty means not known yet."""

    def allowed(verb: Verb) -> bool:
        return principal.may(verb, target) if target else principal.may_some(verb)

    if any(all(allowed(verb) for verb in need) for need in rule.needs):
        return
    wanted = " or ".join(" and ".join(need) for need in rule.needs) or "a scope that does not exist"
    on = f" on {target!r}" if target else ""
    raise ForbiddenError(f"{principal.title} may not {rule.action}{on}: it needs the scope {wanted}")


def require(principal: Principal, verb: Verb, target: str) -> None:
    """Raise ForbiddenError unless the caller may do that to a view or source."""
    if not principal.may(verb, target):
        raise ForbiddenError(f"{principal.title} may not {verb.value} {target!r}")
