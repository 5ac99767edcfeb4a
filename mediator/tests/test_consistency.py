"""Which algorithm keeps a view, the level that follows, and every refusal with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import mediator.consistency
import mediator.maintenance
from algebra.consistency import Level, Scenario, by_scenario
from algebra.decompose import Decomposition, decompose
from algebra.errors import ConfigurationError, LockstepError
from algebra.schema import Catalog, Column, RelationSchema
from mediator.config import ViewSpecConfig
from mediator.consistency import LEVELS, choose, promise
from mediator.maintenance import ALGORITHMS, algorithm
from mediator.maintenance.contract import Maintenance, Process, ViewContext
from mediator.views import decomposed, spec_from_json, spec_to_json
from protos.lockstep.v1.types_pb2 import Capabilities

INT = pa.int64()


def relation(name: str, *columns: str, key: tuple[str, ...] = ()) -> RelationSchema:
    return RelationSchema(name, tuple(Column(c, INT) for c in columns), key)


CATALOGS = {
    "shop": Catalog(
        "shop",
        {
            "orders": relation("orders", "id", "cust", key=("id",)),
            "line": relation("line", "ord", "qty"),
        },
    ),
    "crm": Catalog("crm", {"customer": relation("customer", "id", "boss", key=("id",))}),
}

ONE = "SELECT o.cust FROM shop.orders o"
KEYED = "SELECT c.boss FROM crm.customer c JOIN shop.orders o ON o.cust = c.id"
KEYLESS = (
    "SELECT l.qty FROM crm.customer c JOIN shop.orders o ON o.cust = c.id JOIN shop.line l ON l.ord = o.id"
)
SPLIT = (
    "SELECT a.id FROM crm.customer a JOIN shop.orders o ON o.cust = a.id JOIN crm.customer b ON b.boss = o.id"
)


def can(**differing: Any) -> Capabilities:
    """Capabilities of a capture that can do everything, but for what is given."""
    everything: dict[str, Any] = {
        "boundaries": "exact",
        "total_order": True,
        "before_images": True,
        "global_transactions": True,
    }
    return Capabilities(**{**everything, **differing})


EVERYTHING = {"shop": can(), "crm": can()}


class Stub(Maintenance):
    guarantee = by_scenario(Level.STRONG, Level.STRONG, Level.WEAK)
    message_cost = "n-1"

    def maintain(self, view: ViewContext) -> Process:
        raise NotImplementedError


class Sweep(Stub):
    name = "sweep"
    guarantee = by_scenario(Level.COMPLETE, Level.COMPLETE, Level.WEAK)


class Nested(Stub):
    name = "nested-sweep"
    one_node_per_source = True


class Keys(Stub):
    name = "keys"
    needs_keys = True


class Single(Stub):
    name = "single"
    single_source = True


class SingleKeys(Stub):
    name = "single-keys"
    single_source = True
    needs_keys = True
    guarantee = dict.fromkeys(Scenario, Level.COMPLETE)


class Wrong(Stub):
    name = "wrong"
    only_by_force = True
    guarantee = dict.fromkeys(Scenario, Level.NONE)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the algorithms above are there."""
    stubs = (Sweep(), Nested(), Keys(), Single(), SingleKeys(), Wrong())
    registered: Mapping[str, Maintenance] = {stub.name: stub for stub in stubs}
    monkeypatch.setattr(mediator.maintenance, "ALGORITHMS", registered)
    monkeypatch.setattr(mediator.consistency, "ALGORITHMS", registered)


def plain(sql: str) -> Decomposition:
    return decompose("v", sql, CATALOGS)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("sql", "declared", "chosen"),
    [
        (KEYED, {}, "sweep"),
        (KEYED, {"consistency": "complete"}, "sweep"),
        (KEYED, {"consistency": "strong"}, "nested-sweep"),
        (KEYED, {"consistency": "weak"}, "nested-sweep"),
        (KEYED, {"consistency": "convergent"}, "nested-sweep"),
        (SPLIT, {"consistency": "strong"}, "sweep"),
        (KEYED, {"maintenance": "keys", "consistency": "strong"}, "keys"),
        (SPLIT, {"maintenance": "nested-sweep"}, "nested-sweep"),
    ],
)
def test_the_algorithm_is_named_or_follows_from_the_asked_level(
    sql: str, declared: dict[str, Any], chosen: str
) -> None:
    assert choose(ViewSpecConfig("v", sql, **declared), plain(sql)).name == chosen


def test_without_a_cheaper_algorithm_sweep_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mediator.consistency, "ALGORITHMS", {"sweep": ALGORITHMS["sweep"]})
    assert choose(ViewSpecConfig("v", KEYED, consistency="weak"), plain(KEYED)).name == "sweep"


SWEEP = "sweep gives complete consistency for source-local transactions, weak for global transactions"
NESTED = "nested-sweep gives strong consistency for source-local transactions, weak for global transactions"
SHOP = "source shop tells every transaction from the next"
CRM = "source crm tells every transaction from the next"


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("name", "shop", "level", "reasons"),
    [
        ("sweep", can(), Level.COMPLETE, [SWEEP, CRM, SHOP]),
        (
            "sweep",
            can(boundaries="exact where known"),
            Level.COMPLETE,
            [SWEEP, CRM, f"{SHOP}, but for stretches marked as batched"],
        ),
        (
            "sweep",
            can(boundaries="batched"),
            Level.STRONG,
            [SWEEP, CRM, "source shop may report several transactions as one version: strong at most"],
        ),
        (
            "sweep",
            can(total_order=False),
            Level.CONVERGENT,
            [
                SWEEP,
                CRM,
                "source shop does not report its transactions in commit order: convergent at most",
                SHOP,
            ],
        ),
        ("nested-sweep", can(), Level.STRONG, [NESTED, CRM, SHOP]),
        (
            "nested-sweep",
            None,
            Level.NONE,
            [NESTED, CRM, "source shop has not said yet what it can tell of its transactions"],
        ),
        (
            "sweep",
            can(before_images=False),
            Level.NONE,
            [SWEEP, CRM, "source shop does not report the old rows of updates and deletes", SHOP],
        ),
    ],
)
def test_the_level_is_the_least_of_what_algorithm_and_sources_allow(
    name: str, shop: Capabilities | None, level: Level, reasons: list[str]
) -> None:
    capabilities = {"crm": can()} if shop is None else {"crm": can(), "shop": shop}
    has = promise(ViewSpecConfig("v", KEYED), algorithm(name), ("crm", "shop"), capabilities)
    assert (has.level, list(has.reasons), has.named) == (level, reasons, False)


def test_what_an_algorithm_needs_is_told_in_words() -> None:
    spec = ViewSpecConfig("v", ONE, maintenance="x")
    assert promise(spec, SingleKeys(), (), {}).needs == (
        "a key of every relation",
        "all relations in one source",
    )
    assert promise(spec, Nested(), (), {}).needs == ("one local view per source",)
    assert promise(spec, Wrong(), (), {}).needs == ("force, for it is wrong when updates are concurrent",)
    assert promise(spec, Sweep(), (), {}).needs == ()
    assert promise(spec, Sweep(), (), {}).named


REFUSALS: dict[str, tuple[str, dict[str, Any], dict[str, Capabilities], str]] = {
    "unknown algorithm": (
        KEYED,
        {"maintenance": "magic"},
        EVERYTHING,
        "unknown maintenance algorithm 'magic'; there are: "
        "sweep, nested-sweep, keys, single, single-keys, wrong",
    ),
    "unknown level": (
        KEYED,
        {"consistency": "perfect"},
        EVERYTHING,
        "unknown consistency 'perfect'; there are: complete, strong, weak, convergent",
    ),
    "no level": (
        KEYED,
        {"consistency": "none"},
        EVERYTHING,
        "unknown consistency 'none'; there are: complete, strong, weak, convergent",
    ),
    "a relation without a key": (
        KEYLESS,
        {"maintenance": "keys"},
        EVERYTHING,
        "view 'v' cannot be kept by keys: it needs a key of every relation, and shop.line has none; "
        "algorithms that can: sweep, nested-sweep",
    ),
    "several sources": (
        KEYED,
        {"maintenance": "single"},
        EVERYTHING,
        "view 'v' cannot be kept by single: it needs all relations in one source, and they are in crm and "
        "shop; algorithms that can: sweep, nested-sweep, keys",
    ),
    "several local views of one source": (
        SPLIT,
        {"maintenance": "nested-sweep"},
        EVERYTHING,
        "view 'v' cannot be kept by nested-sweep: it needs one local view per source, and crm has 2, for no "
        "equality joins its relations there; algorithms that can: sweep, keys",
    ),
    "not forced": (
        ONE,
        {"maintenance": "wrong"},
        EVERYTHING,
        "view 'v' cannot be kept by wrong: it is wrong when updates are concurrent, and has to be forced "
        "(--force, or force: true); algorithms that can: sweep, nested-sweep, keys, single, single-keys",
    ),
    "not forced, and a level": (
        ONE,
        {"maintenance": "wrong", "consistency": "complete"},
        EVERYTHING,
        "view 'v' cannot be kept by wrong: it is wrong when updates are concurrent, and has to be forced "
        "(--force, or force: true); algorithms that can: sweep, single-keys",
    ),
    "forced, and a level": (
        ONE,
        {"maintenance": "wrong", "consistency": "convergent", "force": True},
        EVERYTHING,
        "view 'v' cannot be convergent: wrong gives no consistency for source-local transactions; "
        "algorithms that can: sweep, nested-sweep, keys, single, single-keys",
    ),
    "the algorithm gives less": (
        KEYED,
        {"maintenance": "keys", "consistency": "complete"},
        EVERYTHING,
        "view 'v' cannot be complete: keys gives strong consistency for source-local transactions, weak for "
        "global transactions; algorithms that can: sweep",
    ),
    "a source gives less": (
        KEYED,
        {"consistency": "complete"},
        {"shop": can(boundaries="batched"), "crm": can()},
        "view 'v' cannot be complete: source shop may report several transactions as one version: strong at "
        "most; no algorithm gives more than strong here",
    ),
    "both sources give less": (
        KEYED,
        {"consistency": "strong"},
        {"shop": can(total_order=False), "crm": can(total_order=False, boundaries="batched")},
        "view 'v' cannot be strong: "
        "source crm does not report its transactions in commit order: convergent at most and "
        "source shop does not report its transactions in commit order: convergent at most; "
        "no algorithm gives more than convergent here",
    ),
    "no old rows": (
        KEYED,
        {},
        {"shop": can(before_images=False), "crm": can()},
        "view 'v' cannot be kept: source shop does not report the old rows of updates and deletes, "
        "and every algorithm needs them",
    ),
}


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(("sql", "declared", "capabilities", "problem"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_kept_as_declared_is_refused(
    sql: str, declared: dict[str, Any], capabilities: dict[str, Capabilities], problem: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        decomposed(ViewSpecConfig("v", sql, **declared), CATALOGS, capabilities)
    assert str(refused.value) == problem


def test_an_algorithm_for_global_transactions_needs_sources_that_report_them() -> None:
    unable = {"shop": can(), "crm": can(global_transactions=False)}
    with pytest.raises(ConfigurationError) as refused:
        decomposed(ViewSpecConfig("v", KEYED, maintenance="g-strobe"), CATALOGS, unable)
    assert (
        "it needs the marks of global transactions, and crm does not report them; algorithms that can: "
        in (str(refused.value))
    )
    decomposed(ViewSpecConfig("v", KEYED, maintenance="t-strobe"), CATALOGS, unable)
    decomposed(ViewSpecConfig("v", KEYED, maintenance="g-strobe"), CATALOGS, EVERYTHING)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("sql", "declared", "capabilities"),
    [
        (KEYED, {"maintenance": "keys", "consistency": "strong"}, EVERYTHING),
        (ONE, {"maintenance": "wrong", "force": True}, EVERYTHING),
        (KEYED, {"consistency": "strong"}, {"shop": can(boundaries="batched"), "crm": can()}),
        (KEYED, {"consistency": "complete"}, {"shop": can(boundaries="exact where known"), "crm": can()}),
        (KEYED, {"consistency": "convergent"}, {"shop": can(total_order=False), "crm": can()}),
        (KEYED, {"consistency": "complete"}, {}),
        (ONE, {"consistency": "complete"}, {"shop": can(), "crm": can(before_images=False)}),
    ],
)
def test_what_can_be_kept_as_declared_is_admitted(
    sql: str, declared: dict[str, Any], capabilities: dict[str, Capabilities]
) -> None:
    decomposed(ViewSpecConfig("v", sql, **declared), CATALOGS, capabilities)


@pytest.mark.usefixtures("known")
def test_a_view_is_decomposed_as_its_algorithm_needs_it() -> None:
    joined = "SELECT o.cust FROM shop.orders o JOIN shop.orders p ON p.cust = o.id"
    parts = {
        name: decomposed(ViewSpecConfig("v", joined, maintenance=name), CATALOGS, EVERYTHING)
        for name in ("sweep", "keys", "single", "single-keys")
    }
    assert {name: len(found.local_views) for name, found in parts.items()} == {
        "sweep": 1,
        "keys": 1,
        "single": 2,
        "single-keys": 2,
    }
    assert {name: found.hidden for name, found in parts.items()} == {
        "sweep": (),
        "keys": ("_key_o_id", "_key_p_id"),
        "single": (),
        "single-keys": ("_key_o_id", "_key_p_id"),
    }
    assert parts["single"].keys is None
    assert parts["single-keys"].keys is not None


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_keeps_a_view_of_one_keyed_relation(name: str) -> None:
    spec = ViewSpecConfig("v", ONE, maintenance=name, force=True)
    found = decomposed(spec, CATALOGS, EVERYTHING)
    assert choose(spec, found) is ALGORITHMS[name]
    has = promise(spec, ALGORITHMS[name], found.sources, EVERYTHING)
    assert has.level == ALGORITHMS[name].guarantee[Scenario.SOURCE_LOCAL]
    assert set(ALGORITHMS[name].guarantee) == set(Scenario)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("sql", [KEYED, KEYLESS, SPLIT])
def test_a_refusal_names_algorithms_that_do_keep_the_view(name: str, sql: str) -> None:
    try:
        decomposed(ViewSpecConfig("v", sql, maintenance=name), CATALOGS, EVERYTHING)
    except LockstepError as refused:
        others = str(refused).rpartition("algorithms that can: ")[2].split(", ")
        for other in others:
            decomposed(ViewSpecConfig("v", sql, maintenance=other), CATALOGS, EVERYTHING)
        assert "sweep" in others


def test_levels_are_asked_for_by_their_names() -> None:
    assert [str(level) for level in LEVELS] == ["complete", "strong", "weak", "convergent"]


def test_a_declaration_survives_the_warehouse_and_older_ones_are_read() -> None:
    spec = ViewSpecConfig("v", ONE, "keys", consistency="strong", force=True)
    assert spec_from_json(spec_to_json(spec)) == spec
    older = {"name": "v", "sql": ONE, "maintenance": "sweep", "allow_cross_join": False, "max_batch": 0}
    assert spec_from_json(older) == ViewSpecConfig("v", ONE, "sweep")
