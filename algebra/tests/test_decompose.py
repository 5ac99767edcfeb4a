"""Decomposition: Example 4 of the wrapper paper, general join graphs, and every refusal with its place."""

from __future__ import annotations

import pyarrow as pa
import pytest

from algebra.decompose import Decomposition, decompose, readable_sql
from algebra.errors import LimitExceededError, ViewDefinitionError
from algebra.expressions import Call, ColumnRef, Literal, Operator
from algebra.plan import SweepPlan
from algebra.schema import Catalog, Column, RelationSchema

INT, TEXT = pa.int64(), pa.string()


def relation(name: str, key: tuple[str, ...] = (), /, **columns: pa.DataType) -> RelationSchema:
    return RelationSchema(name, tuple(Column(c, t) for c, t in columns.items()), key)


CATALOGS = {
    "IS1": Catalog("IS1", {"R1": relation("R1", A=INT, C=INT), "R2": relation("R2", D=INT, E=INT)}),
    "IS2": Catalog("IS2", {"R3": relation("R3", B=INT, F=INT)}),
    "shop": Catalog(
        "shop",
        {
            "orders": relation("orders", ("id",), id=INT, cust=INT, day=pa.date32(), note=TEXT),
            "line": relation("line", ("ord", "n"), ord=INT, n=INT, price=pa.decimal128(10, 2)),
        },
    ),
    "crm": Catalog("crm", {"customer": relation("customer", ("id",), id=INT, name=TEXT, boss=INT)}),
}


def parts(sql: str, **options: bool) -> Decomposition:
    return decompose("V", sql, CATALOGS, **options)


def test_example_4_gives_the_papers_local_views_and_assembly_query() -> None:
    """Reference: wrapper paper, section 3.3, Example 4, Figures 3 to 5."""
    found = parts("SELECT A, B FROM IS1.R1, IS1.R2, IS2.R3 WHERE R1.C = R2.D AND R2.E = R3.F")
    q2, q3 = found.local_views
    assert readable_sql(q2) == "SELECT R1.A, R2.E\nFROM R1, R2\nWHERE R1.C = R2.D"
    assert readable_sql(q3) == "SELECT R3.B, R3.F\nFROM R3"
    (edge,) = found.assembly.edges
    assert (edge.left, edge.right, edge.on) == (0, 1, (("E", "F"),))
    assert found.assembly.schema.names == ["A", "B"]


def test_selections_go_to_the_source_and_expressions_stay() -> None:
    found = parts(
        "SELECT c.name, l.price * 2 AS twice FROM crm.customer c JOIN shop.orders o ON o.cust = c.id "
        "JOIN shop.line l ON l.ord = o.id "
        "WHERE o.day >= '2024-01-01' AND l.price BETWEEN 1 AND 2.50 AND c.name IN ('x', 'y') "
        "AND upper(o.note) = 'A' AND NOT (o.cust IS NULL OR o.cust = 3)"
    )
    customer, shop = found.local_views
    assert customer.predicates == (
        Call(Operator.IN, (ColumnRef("c", "name"), Literal("x", TEXT), Literal("y", TEXT))),
    )
    assert shop.predicates[0] == Call(
        Operator.GE, (ColumnRef("o", "day"), Literal("2024-01-01", pa.date32()))
    )
    assert len(shop.predicates) == 4
    assert [f.sql() for f in found.assembly.filters] == ["UPPER(n1.\"note\") = 'A'"]
    assert {c.name for c in shop.columns} == {"price", "cust", "note"}


def test_a_self_join_has_two_occurrences_of_one_relation() -> None:
    (view,) = parts(
        "SELECT a.name, b.name AS boss FROM crm.customer a JOIN crm.customer b ON a.boss = b.id"
    ).local_views
    assert [(o.alias, o.relation) for o in view.occurrences] == [("a", "customer"), ("b", "customer")]
    assert [c.name for c in view.columns] == ["a_name", "b_name"]


def test_relations_of_one_source_that_nothing_connects_there_are_separate_local_views() -> None:
    found = parts(
        "SELECT a.name, b.name AS other FROM crm.customer a JOIN shop.orders o ON o.cust = a.id "
        "JOIN crm.customer b ON b.id = o.id"
    )
    assert [v.name for v in found.local_views] == ["V.crm.1", "V.shop", "V.crm.2"]
    assert SweepPlan.of(found.assembly).queries_per_update == 2


def test_stars_expand_and_using_joins() -> None:
    catalogs = {
        s: Catalog(s, {"r": relation("r", k=INT, v=TEXT), "q": relation("q", k=INT, w=TEXT)}) for s in "xy"
    }
    found = decompose("V", "SELECT r.*, q.w FROM x.r JOIN y.q USING (k)", catalogs)
    assert found.assembly.schema.names == ["k", "v", "w"]
    assert found.assembly.edges[0].on == (("k", "k"),)


def test_a_cross_join_must_be_asked_for() -> None:
    sql = "SELECT c.name, o.id FROM crm.customer c, shop.orders o"
    with pytest.raises(ViewDefinitionError, match=r"no predicate connects V\.shop"):
        parts(sql)
    assert SweepPlan.of(parts(sql, allow_cross_join=True).assembly).tree[0].on == ()


def test_division_is_defined_once_for_all_engines() -> None:
    found = parts("SELECT o.id / 2 AS half FROM shop.orders o")
    assert found.assembly.schema.field("half").type == pa.float64()


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        (
            "SELECT count(*) AS n FROM crm.customer",
            "aggregate COUNT is not supported in a view (line 1, column 8)",
        ),
        (
            "SELECT c.id FROM crm.customer c\nLEFT JOIN shop.orders o ON o.cust = c.id",
            "LEFT JOIN is not supported in a view; only inner joins are (line 2, column 1)",
        ),
        (
            "SELECT id\nFROM crm.customer\nGROUP BY id",
            "GROUP BY is not supported in a view (line 3, column 1)",
        ),
        ("SELECT DISTINCT id FROM crm.customer", "DISTINCT is not supported in a view (line 1, column 8)"),
        (
            "SELECT id FROM crm.customer ORDER BY id",
            "ORDER BY is not supported in a view (line 1, column 29)",
        ),
        (
            "SELECT id FROM crm.customer TABLESAMPLE (10 PERCENT)",
            "TABLESAMPLE is not supported in FROM (line 1, column 16)",
        ),
        (
            "SELECT id FROM crm.customer AS c(boss, id)",
            "a list of column names is not supported in FROM (line 1, column 16)",
        ),
        ("SELECT id FROM ONLY crm.customer", "ONLY is not supported in FROM (line 1, column 21)"),
        (
            "SELECT id FROM crm.customer AT (VERSION => 1) c",
            "AT is not supported in FROM (line 1, column 16)",
        ),
        (
            "SELECT id FROM crm.customer FOR SYSTEM_TIME AS OF '2020-01-01'",
            "AS OF is not supported in FROM (line 1, column 16)",
        ),
        (
            "SELECT id FROM crm.customer WITH ORDINALITY",
            "WITH ORDINALITY is not supported in FROM (line 1, column 16)",
        ),
        (
            "SELECT AS STRUCT id FROM crm.customer",
            "AS STRUCT is not supported in a view (line 1, column 8)",
        ),
        (
            "SELECT id FROM crm.customer CLUSTER BY id",
            "CLUSTER BY is not supported in a view (line 1, column 29)",
        ),
        (
            "SELECT id FROM crm.customer WHERE id BETWEEN SYMMETRIC 5 AND 1",
            "BETWEEN SYMMETRIC is not supported in a view (line 1, column 35)",
        ),
        (
            "SELECT id BETWEEN SYMMETRIC 5 AND 1 AS b FROM crm.customer",
            "BETWEEN SYMMETRIC is not supported in a view (line 1, column 8)",
        ),
        ("SELECT id FROM crm.customer LIMIT 3", "LIMIT is not supported in a view (line 1, column 29)"),
        (
            "SELECT id FROM crm.customer UNION SELECT id FROM shop.orders",
            "UNION is not supported in a view (line 1, column 29)",
        ),
        ("SELECT id FROM (SELECT 1 AS id) x", "a subquery is not supported in FROM (line 1, column 24)"),
        (
            "SELECT id FROM crm.customer WHERE id IN (SELECT id FROM shop.orders)",
            "IN with a subquery is not supported in a view (line 1, column 35)",
        ),
        (
            "SELECT random() AS r FROM crm.customer",
            "function RAND is not supported in a view (line 1, column 8)",
        ),
        ("SELECT f(id) AS r FROM crm.customer", "function f is not supported in a view (line 1, column 8)"),
        (
            "SELECT nope FROM crm.customer",
            "unknown column 'nope' in any table of this view (line 1, column 8)",
        ),
        (
            "SELECT c.nope FROM crm.customer c",
            "unknown column 'nope' in table 'c' (line 1, column 8)",
        ),
        (
            "SELECT id FROM crm.customer, shop.orders WHERE cust = boss",
            "column 'id' is ambiguous: it is in customer, orders (line 1, column 8)",
        ),
        (
            "SELECT id FROM customer",
            "table 'customer' names no source; write source.customer (line 1, column 16)",
        ),
        (
            "SELECT id FROM erp.customer",
            "unknown source 'erp'; configured sources: IS1, IS2, crm, shop (line 1, column 16)",
        ),
        (
            "SELECT id FROM crm.nope",
            "source 'crm' has no relation 'nope'; it has: customer (line 1, column 16)",
        ),
        (
            "SELECT id + 1 FROM crm.customer",
            "a computed column needs a name: write ... AS name (line 1, column 8)",
        ),
        ("SELECT id FROM WHERE", "SQL syntax error: Expected table name (line 1, column 16)"),
        ("DELETE FROM crm.customer", "a view is a SELECT, not DELETE (line 1, column 13)"),
        ("SELECT 1 AS a; SELECT 2 AS b", "a view is one SELECT statement, not 2"),
        (
            "SELECT id, boss AS ID FROM crm.customer",
            "column 'ID' appears twice in the view; give one an alias",
        ),
        ("SELECT id AS _count FROM crm.customer", "column name '_count' is reserved; choose an alias"),
        ("SELECT id AS _KEY_x FROM crm.customer", "column name '_KEY_x' is reserved; choose an alias"),
        (
            "SELECT c.id FROM crm.customer c JOIN shop.orders o ON c.name = o.cust",
            "c.name is text and o.cust is integer: "
            "they cannot be joined with =; compare a CAST of one of them",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name_and_place(sql: str, problem: str) -> None:
    with pytest.raises(ViewDefinitionError) as refused:
        parts(sql)
    assert str(refused.value) == problem


def test_a_wrong_type_is_refused() -> None:
    with pytest.raises(ViewDefinitionError, match="type error in the view"):
        parts("SELECT name + 1 AS n FROM crm.customer")


def test_every_edge_of_the_join_tree_is_crossed_once_each_way() -> None:
    found = parts(
        "SELECT A FROM IS1.R1, IS2.R3, crm.customer c, shop.orders o "
        "WHERE R1.A = R3.B AND R3.F = c.id AND R3.B = o.id"
    )
    plan = SweepPlan.of(found.assembly)
    assert plan.root == 1, "the centre of the star"
    inward = [(h.origin, h.target) for hops in plan.inward for h in hops]
    outward = [(h.origin, h.target) for hops in plan.outward for h in hops]
    assert sorted(inward) == [(0, 1), (2, 1), (3, 1)]
    assert sorted(outward) == [(1, 0), (1, 2), (1, 3)]
    assert len(inward) + len(outward) == plan.queries_per_batch


def test_on_a_chain_the_published_order_is_left_then_right() -> None:
    """Reference: SWEEP paper, Figure 2."""
    catalogs = {s: Catalog(s, {"r": relation("r", x=INT, y=INT)}) for s in "abcd"}
    sql = "SELECT a.x FROM a.r a, b.r b, c.r c, d.r d WHERE a.y = b.x AND b.y = c.x AND c.y = d.x"
    plan = SweepPlan.of(decompose("V", sql, catalogs).assembly)
    assert [[h.target for h in plan.order(i)] for i in range(4)] == [
        [1, 2, 3],
        [0, 2, 3],
        [1, 0, 3],
        [2, 1, 0],
    ]


def keys_of(found: Decomposition) -> list[tuple[tuple[str, str], ...]]:
    assert found.keys is not None
    return list(found.keys.of_node)


def test_without_keys_asked_for_nothing_is_hidden() -> None:
    found = parts("SELECT c.name FROM crm.customer c")
    assert (found.keys, found.hidden) == (None, ())


def test_a_key_that_the_view_does_not_show_is_a_hidden_column() -> None:
    """Reference: Strobe paper, section 5.1."""
    found = parts(
        "SELECT c.name, l.price FROM crm.customer c JOIN shop.orders o ON o.cust = c.id "
        "JOIN shop.line l ON l.ord = o.id",
        keys=True,
    )
    assert found.hidden == ("_key_c_id", "_key_o_id", "_key_l_ord", "_key_l_n")
    assert found.assembly.schema.names == ["name", "price", *found.hidden]
    customer, shop = keys_of(found)
    assert customer == (("id", "_key_c_id"),)
    assert shop == (("id", "_key_o_id"), ("ord", "_key_l_ord"), ("n", "_key_l_n"))
    assert all(local.distinct for local in found.local_views)


def test_a_key_that_the_view_shows_is_used_where_it_stands() -> None:
    found = parts(
        "SELECT o.id AS number, o.id AS again, l.n, o.cust AS ord FROM shop.orders o "
        "JOIN shop.line l ON l.ord = o.id",
        keys=True,
    )
    assert found.hidden == ("_key_l_ord",), "the alias ord shows another column"
    assert keys_of(found) == [(("id", "number"), ("n", "n"), ("ord", "_key_l_ord"))]


def test_an_expression_over_a_key_does_not_show_it() -> None:
    found = parts("SELECT o.id + 0 AS id, CAST(o.id AS BIGINT) AS same FROM shop.orders o", keys=True)
    assert found.hidden == ("_key_o_id",)
    assert keys_of(found) == [(("id", "_key_o_id"),)]


def test_a_self_join_has_the_key_of_each_occurrence() -> None:
    sql = "SELECT a.id, b.name AS boss FROM crm.customer a JOIN crm.customer b ON a.boss = b.id"
    found = parts(sql, keys=True)
    assert found.hidden == ("_key_b_id",)
    assert keys_of(found) == [(("a_id", "id"), ("b_id", "_key_b_id"))]
    apart = parts(sql, keys=True, per_relation=True)
    assert keys_of(apart) == [(("id", "id"),), (("id", "_key_b_id"),)]
    assert apart.hidden == found.hidden


def test_hidden_columns_of_ugly_names_do_not_meet() -> None:
    columns: dict[str, pa.DataType] = {"b_c": INT, 'x" y': TEXT, "v": INT}
    other: dict[str, pa.DataType] = {"c": INT, "C_": INT, "_key_": INT, "v": INT}
    catalogs = {
        "s": Catalog("s", {"r": relation("r", ("b_c", 'x" y'), **columns)}),
        "t": Catalog("t", {"q": relation("q", ("c", "C_", "_key_"), **other)}),
    }
    sql = 'SELECT a.v AS "A_B" FROM s.r a JOIN t.q "A_b" ON a.v = "A_b".v'
    found = decompose("V", sql, catalogs, keys=True)
    assert found.hidden == ("_key_a_b_c", '_key_a_x" y', "_key_A_b_c_", "_key_A_b_C__", "_key_A_b__key_")
    assert len({name.lower() for name in found.assembly.schema.names}) == 6
    assert keys_of(found)[0] == (("b_c", "_key_a_b_c"), ('x" y', '_key_a_x" y'))


def test_a_relation_without_a_key_is_named() -> None:
    with pytest.raises(ViewDefinitionError, match=r"^relation IS2\.R3 has no key, "):
        parts("SELECT c.id FROM crm.customer c JOIN IS2.R3 x ON x.B = c.id", keys=True)


def test_each_relation_of_one_source_can_be_a_local_view_of_its_own() -> None:
    found = parts(
        "SELECT a.note, b.note AS other, l.price FROM shop.orders a JOIN shop.line l ON l.ord = a.id "
        "JOIN shop.orders b ON b.cust = a.cust WHERE a.id > 3 AND b.day < a.day",
        per_relation=True,
    )
    assert [v.name for v in found.local_views] == ["V.shop.1", "V.shop.2", "V.shop.3"]
    assert [readable_sql(v) for v in found.local_views] == [
        "SELECT a.note, a.id, a.cust, a.day\nFROM orders a\nWHERE (a.id) > (3)",
        "SELECT l.price, l.ord\nFROM line l",
        "SELECT b.note, b.cust, b.day\nFROM orders b",
    ]
    assert [(e.left, e.right, e.on) for e in found.assembly.edges] == [
        (0, 1, (("id", "ord"),)),
        (0, 2, (("cust", "cust"),)),
    ]
    assert not found.assembly.consolidation_free
    assert found.sources == ("shop",)


def test_a_single_relation_of_a_source_keeps_its_name() -> None:
    sql = "SELECT c.name, o.note FROM crm.customer c JOIN shop.orders o ON o.cust = c.id"
    assert [v.name for v in parts(sql, per_relation=True).local_views] == ["V.crm", "V.shop"]
    assert parts(sql, per_relation=True) == parts(sql)


def test_a_number_without_end_stays_at_home() -> None:
    catalog = Catalog("m", {"r": RelationSchema("r", (Column("f", pa.float64()),))})
    for bound, pushed in (("1e300", 1), ("1e400", 0), ("-1e400", 0)):
        found = decompose("v", f"SELECT f FROM m.r WHERE f < {bound}", {"m": catalog})
        assert len(found.local_views[0].predicates) == pushed
        assert len(found.assembly.filters) == 1 - pushed


def test_a_view_of_very_many_relations_is_refused() -> None:
    """The work grows faster than the text: 600 of them took minutes."""
    tables = ", ".join(f"crm.customer c{i}" for i in range(101))
    with pytest.raises(ViewDefinitionError, match=r"a view has at most 100 relations \(line 1, column 1809"):
        parts(f"SELECT c0.id FROM {tables}")


def test_the_time_for_a_text_is_not_for_its_parser_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("algebra.view.PARSING_SECONDS", 0.5)
    with pytest.raises(LimitExceededError, match="takes too long to understand"):
        parts(f"SELECT COALESCE({', '.join(['id'] * 5000)}) AS x FROM crm.customer")
