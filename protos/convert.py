"""Definitions between their Python form and their wire form; unknown or hostile input is refused."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable

import pyarrow as pa

from algebra.arrow_ipc import from_ipc, schema_to_ipc, to_ipc
from algebra.errors import DataError, RefusedError
from algebra.expressions import MAX_DEPTH, Call, ColumnRef, Expression, Literal, Operator
from algebra.global_transaction import GlobalTransaction
from algebra.local_view import EquiJoin, LocalView, Occurrence, OutputColumn
from algebra.position import Position
from algebra.schema import Catalog, Column, RelationSchema
from protos.lockstep.v1 import types_pb2 as pb
from protos.version import PROTOCOL_VERSION as PROTOCOL_VERSION

MAX_OCCURRENCES = 64
"""Relations that one local view joins at most: a hostile definition must not make the source join without
end."""
MAX_COLUMNS = 4096
MAX_TEXT = 1024
"""Characters of a name at most."""

_LITERALS = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_null,
)

_MOST_DIGITS = 38
"""Of a decimal that every engine has."""

_OPERATORS = {operator: getattr(pb, f"OPERATOR_{operator.name}") for operator in Operator}
_OPERATORS_BACK = {value: operator for operator, value in _OPERATORS.items()}


def position_to_proto(position: Position) -> pb.Position:
    return pb.Position(ordinal=position.ordinal, token=position.token)


def position_from_proto(message: pb.Position) -> Position:
    return Position(message.ordinal, message.token)


def global_transaction_to_proto(mark: GlobalTransaction | None) -> list[pb.GlobalTransaction]:
    """All global transactions of a part; none if it is a part of none."""
    found = mark.all if mark is not None else ()
    return [pb.GlobalTransaction(id=one.id, participants=sorted(one.participants)) for one in found]


def global_transaction_from_proto(messages: Iterable[pb.GlobalTransaction]) -> GlobalTransaction | None:
    return GlobalTransaction.joined(GlobalTransaction(m.id, frozenset(m.participants)) for m in messages)


def _ref_to_proto(ref: ColumnRef) -> pb.ColumnRef:
    return pb.ColumnRef(occurrence=ref.occurrence, column=ref.column)


def _ref_from_proto(message: pb.ColumnRef) -> ColumnRef:
    return ColumnRef(message.occurrence, message.column)


def expression_to_proto(expression: Expression) -> pb.Expression:
    match expression:
        case ColumnRef():
            return pb.Expression(column=_ref_to_proto(expression))
        case Literal(value, type_):
            # Dates, timestamps and decimals are held as text; they travel in their own type.
            held = pa.array([value], pa.string() if isinstance(value, str) else type_)
            table = pa.table({"value": held.cast(type_)})
            return pb.Expression(literal=pb.Literal(arrow=to_ipc(table)))
        case Call(operator, arguments):
            return pb.Expression(
                call=pb.Call(
                    operator=_OPERATORS[operator], arguments=[expression_to_proto(a) for a in arguments]
                )
            )


def expression_from_proto(message: pb.Expression, depth: int = 0) -> Expression:
    if depth > MAX_DEPTH:
        raise RefusedError(f"a predicate is nested deeper than {MAX_DEPTH} levels")
    match message.WhichOneof("node"):
        case "column":
            return _ref_from_proto(message.column)
        case "literal":
            return _literal_from_proto(message.literal)
        case "call":
            operator = _OPERATORS_BACK.get(message.call.operator)
            if operator is None:
                raise RefusedError(f"unknown operator {message.call.operator} in a predicate")
            arguments = tuple(expression_from_proto(a, depth + 1) for a in message.call.arguments)
            _check_arity(operator, len(arguments))
            return Call(operator, arguments)
    raise RefusedError("an empty expression in a predicate")


def _literal_from_proto(message: pb.Literal) -> Literal:
    table = from_ipc(message.arrow)
    if table.column_names != ["value"] or table.num_rows != 1:
        raise RefusedError("a literal must be one value")
    column = table["value"]
    if not any(is_kind(column.type) for is_kind in _LITERALS) or not _is_common(column.type):
        raise RefusedError(f"a literal of type {column.type} in a predicate")
    try:
        value = column[0].as_py()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(value)
        if isinstance(value, (bool, int, float, str, type(None))):
            return Literal(value, column.type)
        return Literal(column.cast(pa.string())[0].as_py(), column.type)
    except (pa.ArrowException, ValueError, OverflowError, LookupError, OSError, ImportError):
        # A time zone nobody knows, a date before year 1, a number that is none.
        raise RefusedError(f"a literal of type {column.type} has no usable value") from None


def _is_common(type_: pa.DataType) -> bool:
    """Whether engines other than Arrow have it too: not so for all decimals."""
    return not pa.types.is_decimal(type_) or (
        type_.precision <= _MOST_DIGITS and 0 <= type_.scale <= type_.precision
    )


def _check_arity(operator: Operator, count: int) -> None:
    match operator:
        case Operator.NOT | Operator.IS_NULL:
            allowed = count == 1
        case Operator.AND | Operator.OR:
            allowed = count >= 1
        case Operator.IN:
            allowed = count >= 2
        case _:
            allowed = count == 2
    if not allowed:
        raise RefusedError(f"{operator.value} with {count} arguments in a predicate")


def local_view_to_proto(view: LocalView) -> pb.LocalView:
    return pb.LocalView(
        name=view.name,
        source=view.source,
        occurrences=[pb.Occurrence(alias=o.alias, relation=o.relation) for o in view.occurrences],
        joins=[pb.EquiJoin(left=_ref_to_proto(j.left), right=_ref_to_proto(j.right)) for j in view.joins],
        predicates=[expression_to_proto(p) for p in view.predicates],
        columns=[pb.OutputColumn(name=c.name, source=_ref_to_proto(c.source)) for c in view.columns],
        arrow_schema=schema_to_ipc(view.arrow),
        distinct=view.distinct,
    )


def local_view_from_proto(message: pb.LocalView) -> LocalView:
    if len(message.occurrences) > MAX_OCCURRENCES:
        raise RefusedError(f"a local view joins more than {MAX_OCCURRENCES} relations")
    if max(len(message.columns), len(message.joins), len(message.predicates)) > MAX_COLUMNS:
        raise RefusedError(f"a local view has more than {MAX_COLUMNS} columns, joins or predicates")
    names = [message.name, message.source, *(c.name for c in message.columns)]
    if any(not name or len(name) > MAX_TEXT for name in names):
        raise RefusedError(f"a local view or column has no name, or one of more than {MAX_TEXT} characters")
    if len({c.name for c in message.columns}) != len(message.columns):
        raise RefusedError(f"local view {message.name!r} shows a column twice")
    schema = from_ipc(message.arrow_schema).schema
    if schema.names != [c.name for c in message.columns]:
        raise RefusedError(f"local view {message.name!r}: the schema does not fit its columns")
    aliases = [o.alias for o in message.occurrences]
    if not aliases or len(set(aliases)) != len(aliases):
        raise RefusedError(f"local view {message.name!r}: occurrences must be named, each once")
    return LocalView(
        name=message.name,
        source=message.source,
        occurrences=tuple(Occurrence(o.alias, o.relation) for o in message.occurrences),
        joins=tuple(EquiJoin(_ref_from_proto(j.left), _ref_from_proto(j.right)) for j in message.joins),
        predicates=tuple(expression_from_proto(p) for p in message.predicates),
        columns=tuple(
            OutputColumn(c.name, _ref_from_proto(c.source), field.type)
            for c, field in zip(message.columns, schema, strict=True)
        ),
        distinct=message.distinct,
    )


def relation_to_proto(relation: RelationSchema) -> pb.Relation:
    return pb.Relation(
        name=relation.name,
        arrow_schema=schema_to_ipc(relation.arrow),
        key=relation.key,
        row_estimate=relation.row_estimate,
    )


def catalog_from_proto(source: str, relations: list[pb.Relation]) -> Catalog:
    found: dict[str, RelationSchema] = {}
    for relation in relations:
        schema = from_ipc(relation.arrow_schema).schema
        names = set(schema.names)
        if len(names) != len(schema) or not set(relation.key) <= names or relation.name in {"", *found}:
            raise DataError(f"source {source!r} shows relation {relation.name!r} in a way that cannot be")
        found[relation.name] = RelationSchema(
            relation.name,
            tuple(Column(f.name, f.type, f.nullable) for f in schema),
            tuple(relation.key),
            relation.row_estimate if relation.HasField("row_estimate") else None,
        )
    return Catalog(source, found)


def now() -> datetime.datetime:
    """The current time, with zone."""
    return datetime.datetime.now(datetime.UTC)
