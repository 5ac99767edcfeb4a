"""Lifecycle: the catalog, and capture that is installed once and removed without a trace."""

from __future__ import annotations

import functools
from dataclasses import replace

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import case, fail, require
from adapters.conformance.journal import JOURNAL, numbered, require_whole_transactions
from adapters.conformance.operations import Delete, Insert, Transaction, Update
from adapters.conformance.queries import table
from adapters.conformance.samples import SAMPLES
from adapters.spi import Boundaries
from algebra.errors import ConfigurationError

ITEM = table("item", {"id": pa.int64(), "name": pa.string()}, key=["id"])
PART = table("part", {"box": pa.int64(), "slot": pa.string(), "size": pa.int64()}, key=["box", "slot"])
NOTE = table("note", {"text": pa.string(), "size": pa.int64()})


@case
def the_catalog_shows_tables_as_declared(bench: Bench) -> None:
    """Relations, columns in order, Arrow types and keys are those of the source."""
    types = bench.supported({sample.name: sample.type for sample in SAMPLES})
    bench.create(ITEM, PART, NOTE, table("every type", types))
    require(
        bench.catalog.source == bench.adapter.config.name, f"the source is called {bench.catalog.source!r}"
    )
    require(
        set(bench.catalog.relations) == set(bench.model.tables),
        f"relations {sorted(bench.catalog.relations)}, not {sorted(bench.model.tables)}",
    )
    for name, declared in bench.model.tables.items():
        shown = bench.catalog.relation(name)
        require(shown.name == name, f"{name!r} is called {shown.name!r}")
        stored = {t: s.type for t, s in bench.quirks.stored.items()}
        wanted = [(column.name, stored.get(column.type, column.type)) for column in declared.columns]
        found = [(column.name, column.type) for column in shown.columns]
        require(found == wanted, f"columns of {name!r}: {found}, not {wanted}")
        require(set(shown.key) == set(declared.key), f"key of {name!r}: {shown.key}, not {declared.key}")


@case
def configured_relations_are_all_that_shows(bench: Bench) -> None:
    """With `relations` configured, the catalog shows those and no others."""
    bench.create(ITEM, PART, NOTE)
    bench.open(("note", "item"))
    shown = set(bench.catalog.relations)
    require(shown == {"note", "item"}, f"the catalog shows {sorted(shown)}, not item and note")


@case
def unknown_relations_are_refused(bench: Bench) -> None:
    """A relation that the source does not have is refused with ConfigurationError, and nothing is changed."""
    bench.create(ITEM)
    before = bench.harness.objects()
    for what, attempt in (
        ("prepare of an unknown relation", lambda: bench.adapter.prepare(["item", "no such relation"])),
        ("a catalog with an unknown relation", lambda: bench.open(("no such relation",)).catalog()),
    ):
        try:
            bench.patiently(attempt)
        except ConfigurationError:
            continue
        fail(f"{what} was not refused")
    require(bench.harness.objects() == before, f"a refused prepare left {bench.harness.objects() - before}")


@case
def capture_leaves_the_catalog_alone(bench: Bench) -> None:
    """What capture installs in the source is not shown as a relation of it."""
    bench.create(ITEM, NOTE)
    before = set(bench.catalog.relations)
    bench.prepare()
    after = set(bench.open().catalog().relations)
    require(after == before, f"after prepare the catalog shows {sorted(after ^ before)} more or less")


@case
def prepare_is_idempotent(bench: Bench) -> None:
    """Preparing again changes nothing: not the source, not the history, not what is captured."""
    start = bench.start(ITEM, NOTE)
    objects = bench.harness.objects()
    bench.write(Transaction((Insert("item", ((1, "a"),)), Insert("note", (("x", 1),)))))
    bench.prepare()
    require(
        bench.harness.objects() == objects, f"the second prepare changed {bench.harness.objects() ^ objects}"
    )
    bench.write(Transaction((Update("item", (1, "a"), (1, "b")), Insert("note", (("x", 1),)))))
    bench.open()
    bench.prepare()
    bench.write(Transaction((Delete("item", (1, "b")),)))
    bench.require_agreement(start, "after prepare three times")


@case
def prepare_adds_to_what_is_prepared(bench: Bench) -> None:
    """Relations that were prepared before stay so when others are prepared."""
    bench.create(ITEM, NOTE, JOURNAL)
    bench.prepare("item", "journal")
    start = bench.position()
    bench.write(numbered(1, Insert("item", ((1, "a"),))))
    bench.prepare("note")
    bench.write(numbered(2, Insert("note", (("x", 1),)), Update("item", (1, "a"), (1, "b"))))
    truth = {number: change for change in bench.truth for (number,) in change["journal"]}
    require_whole_transactions(truth, bench.entries(start))


@case
def dry_runs_change_nothing(bench: Bench) -> None:
    """A dry run says what would be done and does not do it."""
    bench.create(ITEM, NOTE)
    before = bench.harness.objects()
    planned = bench.patiently(lambda: bench.adapter.prepare(["item", "note"], dry_run=True))
    require(bool(planned) and all(isinstance(step, str) for step in planned), f"prepare would do {planned}")
    require(bench.harness.objects() == before, f"a dry run left {bench.harness.objects() - before}")
    done = bench.prepare()
    require(len(done) == len(planned), f"{len(planned)} steps were announced, {len(done)} were taken")
    start = bench.position()
    prepared = bench.harness.objects()
    planned = bench.patiently(lambda: bench.adapter.remove(dry_run=True))
    require(bool(planned) and all(isinstance(step, str) for step in planned), f"remove would do {planned}")
    require(bench.harness.objects() == prepared, "a dry run of remove removed something")
    bench.write(Transaction((Insert("item", ((1, "a"),)),)))
    bench.require_agreement(start, "after a dry run of remove")


@case
def dry_runs_show_every_statement(bench: Bench) -> None:
    """The steps that a dry run shows are, word by word, those that are then taken."""
    bench.create(ITEM, NOTE, PART)
    for relations in (("item",), ("item", "note", "part")):
        planned = bench.patiently(functools.partial(bench.adapter.prepare, relations, dry_run=True))
        done = bench.prepare(*relations)
        require(planned == done, f"prepare of {relations} announced {planned} and did {done}")
    planned = bench.patiently(lambda: bench.adapter.remove(dry_run=True))
    done = bench.remove()
    require(planned == done, f"remove announced {planned} and did {done}")


@case
def captures_are_declared(bench: Bench) -> None:
    """The adapter's class says of each capture what it can do and what it asks of the source; a configured
    source has just that, or weaker boundaries."""
    bench.create(ITEM)
    bench.prepare()
    profiles = type(bench.adapter).captures
    found = bench.patiently(lambda: bench.adapter.capabilities)
    require(
        found.capture in profiles, f"capture {found.capture!r} is not declared; there are {list(profiles)}"
    )
    for name, profile in profiles.items():
        require(profile.capabilities.capture == name, f"{name!r} is declared as {profile.capabilities}")
        texts = (profile.rights, profile.load, profile.deletes)
        said = all(text.strip() and "\n" not in text for text in texts)
        require(said, f"{name!r} does not say in one line each what it needs and what it costs: {profile}")
    declared = profiles[found.capture].capabilities
    strength = list(Boundaries)
    require(
        replace(found, boundaries=declared.boundaries) == declared
        and strength.index(found.boundaries) >= strength.index(declared.boundaries),
        f"this source has {found}; declared is {declared}",
    )


@case
def remove_leaves_no_trace(bench: Bench) -> None:
    """After remove, the source holds what it held before prepare, data aside; writers go on."""
    bench.create(ITEM, PART, NOTE)
    before = bench.harness.objects()
    bench.prepare()
    bench.write(Transaction((Insert("item", ((1, "a"), (2, "b"))), Insert("note", (("x", 1),)))))
    bench.position()
    bench.remove()
    after = bench.harness.objects()
    require(after == before, f"remove left {sorted(after - before)} and took {sorted(before - after)}")
    bench.write(Transaction((Delete("item", (1, "a")), Insert("part", ((1, "l", 1),)))))
    bench.open()
    with bench.reading() as reading:
        bench.require_tables("after remove", reading)


@case
def remove_is_idempotent(bench: Bench) -> None:
    """Removing what is not there is no error; capture can be installed again afterwards."""
    bench.create(ITEM)
    before = bench.harness.objects()
    bench.remove()
    require(bench.harness.objects() == before, "remove from an unprepared source changed it")
    bench.prepare()
    for _ in range(2):
        bench.remove()
        require(bench.harness.objects() == before, f"remove left {bench.harness.objects() - before}")
    bench.prepare()
    start = bench.position()
    bench.write(Transaction((Insert("item", ((1, "a"),)),)))
    bench.require_agreement(start, "after remove and prepare")


CASES = (
    the_catalog_shows_tables_as_declared,
    configured_relations_are_all_that_shows,
    unknown_relations_are_refused,
    capture_leaves_the_catalog_alone,
    prepare_is_idempotent,
    prepare_adds_to_what_is_prepared,
    dry_runs_change_nothing,
    dry_runs_show_every_statement,
    captures_are_declared,
    remove_leaves_no_trace,
    remove_is_idempotent,
)
