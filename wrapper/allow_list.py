"""What a mediator may ask a wrapper for: only what its source shows, and of that only what is allowed to it.

A source's owner may give each mediator a list of relations and columns. What is not on the list is treated as
if it were not there: `DescribeSource` leaves it out, and a definition or query that names it is refused with
the same words whether or not it exists, so that nobody learns by asking.

Nor by what goes wrong. A source tells its troubles in words of its own, about whatever it keeps: another
relation that was altered, a column that a driver names. So a mediator with a list is told what kind of
trouble it is, and the wrapper's log has the words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from algebra.assembly import RESERVED
from algebra.errors import (
    DataError,
    ForbiddenError,
    LimitExceededError,
    LockstepError,
    ProtocolVersionError,
    RefusedError,
    ResyncRequiredError,
    SchemaChangedError,
    SourceUnavailableError,
)
from algebra.expressions import Call, ColumnRef, Expression, Literal, Operator, column_refs
from algebra.local_view import LocalView
from algebra.schema import Catalog, RelationSchema
from algebra.sql_types import family
from protos.status import error_of

_TROUBLES: Mapping[type[LockstepError], str] = {
    DataError: "it holds a value or a row that does not fit its declaration",
    SchemaChangedError: "a relation of it has changed, and has to be prepared again",
    ResyncRequiredError: "its history has a gap, and it has to be read again",
    SourceUnavailableError: "it does not answer",
    LockstepError: "it cannot be read as asked",
}
"""What a mediator that may not see everything is told of an error of the source, by the nearest class."""

EVERYONE_ELSE = "*"
"""The name under which a policy for mediators that are not named is given."""


@dataclass(frozen=True)
class MediatorPolicy:
    """What one mediator may see, and how much of it.

    `relations` maps each relation it may see to the columns it may see, None meaning all; None instead of the
    mapping means every relation. `max_rows` bounds each extent and each answer; `queries_per_second` how
    often it may ask. Absent limits do not limit.
    """

    relations: Mapping[str, frozenset[str] | None] | None = None
    max_rows: int | None = None
    queries_per_second: float | None = None

    def visible(self, catalog: Catalog) -> Catalog:
        """The catalog without what the mediator must not see."""
        if self.relations is None:
            return catalog
        shown = {
            name: _columns_of(relation, self.relations[name])
            for name, relation in catalog.relations.items()
            if name in self.relations
        }
        return Catalog(catalog.source, shown)

    def may_read(self, relation: str, column: str) -> bool:
        """Whether a column is on the mediator's list; it need not exist."""
        if self.relations is None:
            return True
        columns = self.relations.get(relation, frozenset())
        return columns is None or column in columns

    def told(self, error: LockstepError, source: str) -> LockstepError:
        """The error as the mediator may hear it: of a source's troubles, nothing that may be hidden from
        it."""
        about_the_request = isinstance(error, RefusedError | ProtocolVersionError)
        if self.relations is None or about_the_request:
            return error
        trouble = next(_TROUBLES[kind] for kind in type(error).__mro__ if kind in _TROUBLES)
        return error_of(error.reason, f"source {source!r}: {trouble}; the log of its wrapper tells more")

    def bounded(self, batches: Iterator[pa.RecordBatch], what: str) -> Iterator[pa.RecordBatch]:
        """The batches, until there are more rows than allowed: then LimitExceededError, and not a row
        more."""
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            if self.max_rows is not None and rows > self.max_rows:
                raise LimitExceededError(
                    f"{what} has more than the {self.max_rows} rows that this mediator may read at once"
                )
            yield batch


UNRESTRICTED = MediatorPolicy()


def _columns_of(relation: RelationSchema, columns: frozenset[str] | None) -> RelationSchema:
    if columns is None:
        return relation
    kept = tuple(column for column in relation.columns if column.name in columns)
    # A key of which a column is hidden would be no key of what is left.
    key = relation.key if all(name in columns for name in relation.key) else ()
    return replace(relation, columns=kept, key=key)


@dataclass(frozen=True)
class Policies:
    """The policy of each mediator, by the name of its token or certificate; None lets all see everything."""

    by_mediator: Mapping[str, MediatorPolicy] | None = None

    def of(self, mediator: str) -> MediatorPolicy:
        """The mediator's policy; ForbiddenError if there are policies and none is for it."""
        if self.by_mediator is None:
            return UNRESTRICTED
        found = self.by_mediator.get(mediator, self.by_mediator.get(EVERYONE_ELSE))
        if found is None:
            raise ForbiddenError(f"mediator {mediator!r} is not one that this source is shown to")
        return found


def allowed_view(view: LocalView, catalog: Catalog, policy: MediatorPolicy = UNRESTRICTED) -> LocalView:
    """The local view if everything it names is shown to this mediator; RefusedError otherwise."""
    catalog = policy.visible(catalog)
    if view.source != catalog.source:
        raise RefusedError(
            f"local view {view.name!r} is for source {view.source!r}, this is {catalog.source!r}"
        )
    aliases = {o.alias: o.relation for o in view.occurrences}
    for occurrence in view.occurrences:
        if occurrence.relation not in catalog.relations:
            raise RefusedError(f"source {catalog.source!r} does not show relation {occurrence.relation!r}")
        reserved = [c.name for c in catalog.relation(occurrence.relation).columns if c.name in RESERVED]
        if reserved:
            raise RefusedError(
                f"relation {catalog.source}.{occurrence.relation} has a column {reserved[0]!r}, "
                "a name that Lockstep keeps for itself"
            )
    refs = [c.source for c in view.columns] + [r for j in view.joins for r in (j.left, j.right)]
    refs += [ref for predicate in view.predicates for ref in column_refs(predicate)]
    for ref in refs:
        if ref.occurrence not in aliases:
            raise RefusedError(f"local view {view.name!r} has no occurrence {ref.occurrence!r}")
        if not policy.may_read(aliases[ref.occurrence], ref.column):
            raise RefusedError(
                f"source {catalog.source!r} does not show column {aliases[ref.occurrence]}.{ref.column}"
            )
    view.check(catalog)
    relations = {alias: catalog.relation(relation) for alias, relation in aliases.items()}
    for join in view.joins:
        left, right = _family(join.left, relations), _family(join.right, relations)
        if left != right:
            raise RefusedError(f"local view {view.name!r} joins {left} with {right}, which do not compare")
    for predicate in view.predicates:
        if _family(predicate, relations) not in _CONDITIONS:
            raise RefusedError(f"a predicate of local view {view.name!r} is no condition")
    return view


_CONDITIONS = frozenset({"boolean", "null"})


def _family(expression: Expression, relations: Mapping[str, RelationSchema]) -> str:
    """The family of an expression's type; RefusedError if it combines what does not go together.

    An engine would try to cast one to the other, and fail at the first row where it cannot.
    """
    match expression:
        case ColumnRef(occurrence, column):
            return family(relations[occurrence].column(column).type)
        case Literal(_, type_):
            return family(type_)
        case Call(operator, arguments):
            found = {_family(argument, relations) for argument in arguments}
            if operator in (Operator.AND, Operator.OR, Operator.NOT):
                if not found <= _CONDITIONS:
                    raise RefusedError(f"{operator.value} of what is no condition in a predicate")
            elif len(found - {"null"}) > 1:
                compared = " with ".join(sorted(found - {"null"}))
                raise RefusedError(f"a predicate compares {compared}, which do not compare")
            return "boolean"
    raise AssertionError(f"unknown expression {expression!r}")
