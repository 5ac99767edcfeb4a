"""The configuration file as typed sections; every field states its meaning, unit and default."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from cli.options import Consistency

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_SIZE = re.compile(r"^\d+(\.\d+)? ?([kmgt]i?)?b$", re.IGNORECASE)
_HOST_PORT = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})$")


class Engine(StrEnum):
    """Where the mediator joins."""

    SPARK = "spark"
    DUCKDB = "duckdb"
    AUTO = "auto"


class OnLostHistory(StrEnum):
    """What the mediator does when a source no longer has the history that a view needs."""

    PAUSE = "pause"
    """The view keeps its last version until someone refreshes it."""
    RESYNC = "resync"
    """The view is refreshed at once: what differs becomes one version, marked as a load."""


def host_port(value: str) -> str:
    """The address itself, if it reads `host:port`; the value is not repeated in the error."""
    match = _HOST_PORT.match(value)
    if match is None or int(match[2]) > 65535:
        raise ValueError("expected an address as host:port, for example 127.0.0.1:7001")
    return value


def _name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError("a name starts with a letter and has letters, digits and underscores only")
    return value


def _size(value: str) -> str:
    if not _SIZE.match(value):
        raise ValueError("expected a size with its unit, for example 512MiB")
    return value


def _spark_text(value: Any) -> Any:
    """Spark settings are text; YAML's numbers and booleans are written as Spark spells them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _check_usable(value: Any) -> None:
    """Raise ValueError for texts and numbers that YAML can write and nothing behind it can take."""
    if isinstance(value, str) and "\0" in value:
        raise ValueError("holds the character NUL")
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("holds characters that no text has")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("is a number of more than 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("is not a finite number")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_usable(key)
            _check_usable(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_usable(item)


Address = Annotated[str, AfterValidator(host_port)]
Name = Annotated[str, AfterValidator(_name)]
Size = Annotated[str, AfterValidator(_size)]
SparkText = Annotated[str, BeforeValidator(_spark_text)]


class Section(BaseModel):
    """A part of the file: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _can_be_used(cls, value: Any) -> Any:
        _check_usable(value)
        return value


class ServerTlsSection(Section):
    """A server's certificate; relative paths start at the file's folder."""

    certificate: str
    """PEM file of the certificate, with its chain."""
    key: str
    """PEM file of its key, unencrypted."""
    client_ca: str | None = None
    """PEM file of the authority whose certificates clients must show; absent asks for none."""


class LimitsSection(Section):
    """What one caller may have at once of a server, and how often one address may fail to log in."""

    calls: Annotated[int, Field(ge=1)] = 64
    """Calls under way at once, streams included, by the name of a token or certificate, else by address."""
    streams: Annotated[int, Field(ge=1)] = 32
    """Streams that last (attached mediators, watches) at once, counted likewise."""
    failed_logins_per_minute: Annotated[float, Field(gt=0)] = 60.0
    """Calls without a valid token or known certificate, by address; who fails more often is not listened
    to for a while."""


class ServerSection(Section):
    """What both kinds of server have in common: how they are protected, and what they tell about
    themselves."""

    tls: ServerTlsSection | None = None
    """The certificate to serve with; absent means plain text, which is for the loopback interface."""
    tokens: str | None = None
    """File of token hashes (`lockstep token create`); absent means that nobody needs a token."""
    certificates: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Scopes of callers without a token, by the common name of their certificate; needs `tls.client_ca`."""
    insecure: bool = False
    """Plain text, and callers that nobody knows, are allowed on addresses that other machines reach."""
    audit: str | None = None
    """File of audit records, one JSON object per line; absent sends them to the log."""
    limits: LimitsSection = LimitsSection()
    """What one caller may have at once."""
    metrics: Address | None = None
    """Where Prometheus finds metrics by HTTP; absent means nowhere."""

    @model_validator(mode="after")
    def _certificates_are_asked_for(self) -> ServerSection:
        if self.certificates and (self.tls is None or self.tls.client_ca is None):
            raise ValueError("`certificates` needs `tls.client_ca`: without it nobody shows one")
        return self


class ConnectSection(Section):
    """How the mediator reaches a source's wrapper; relative paths start at the file's folder."""

    ca: str | None = None
    """PEM file of the authority of the wrapper's certificate; means TLS."""
    certificate: str | None = None
    """PEM file of the certificate that the mediator shows."""
    key: str | None = None
    """PEM file of its key, unencrypted."""
    server_name: str = ""
    """The name in the wrapper's certificate, if it is not the address's."""
    token: str = Field(default="", repr=False)
    """The mediator's token, as a reference like `${SHOP_TOKEN}`; the file must not hold it."""
    insecure: bool = False
    """Plain text to another machine is allowed, the token included."""

    @model_validator(mode="after")
    def _is_complete(self) -> ConnectSection:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("`certificate` and `key` belong together; give both")
        return self


class MediatorPolicySection(Section):
    """What one mediator may see of a source, and how much."""

    relations: dict[str, tuple[str, ...] | None] | None = None
    """The relations it may see, each with the columns it may see or nothing for all; absent means every
    relation."""
    max_rows: Annotated[int, Field(ge=1)] | None = None
    """Rows of one extent or one answer at most; absent means any number."""
    queries_per_second: Annotated[float, Field(gt=0)] | None = None
    """How often it may ask; who asks more often waits. Absent means as often as it likes."""


class MediatorSection(ServerSection):
    """How the mediator runs. Every field has a default, so the section may be absent."""

    listen: Address = "127.0.0.1:7000"
    """Where clients reach it; port 0 takes any free one."""
    warehouse: str = "./warehouse"
    """Folder or URI of the Delta tables; a relative path starts at the file's folder."""
    engine: Engine = Engine.SPARK
    """Where joins run."""
    max_batch: Annotated[int, Field(ge=1)] = 10_000
    """Transactions that one sweep takes at most."""
    spark_master: str = "local[*]"
    """Spark's master URL; for the engines that use Spark."""
    spark_conf: dict[str, SparkText] = Field(default_factory=dict)
    """Further Spark settings by their Spark names."""
    embedded_memory: Size = "768MiB"
    """Memory of the embedded engine's buffers, with unit; larger joins go to disk."""
    umq_rows: Annotated[int, Field(ge=1)] = 2_000_000
    """Rows of updates that may wait in memory, over all views, before wrappers are asked to pause; a
    transaction counts as one row more. A view that cannot go on is parked when it holds a quarter of it."""
    assembled_rows: Annotated[int, Field(ge=1_000_000)] = 10_000_000
    """Rows by which one source may overdraw its share of `umq_rows`, because a transaction is never split,
    and that its answers may have which have not ended; counted alike. A source that sends more is refused."""
    extent_rows: Annotated[int, Field(ge=1_000_000)] = 1_000_000_000
    """Rows that one source may send when a view is made, verified or refreshed; counted alike, and each
    message as 16,384 at least. A source that sends more is refused."""
    keepalive_seconds: Annotated[float, Field(ge=0, le=2_000_000)] = 5.0
    """Seconds that a connection to a wrapper may be silent before it is probed; it is given up after as many
    again. 0 never probes. gRPC counts no more milliseconds than 32 bits hold."""
    late_seconds: Annotated[float, Field(gt=0)] = 10.0
    """Seconds that views of one round wait for one whose source does not answer; then they go on without
    it."""
    query_seconds: Annotated[float, Field(ge=0)] = 300.0
    """Seconds that a client's query may take until its last row has been read. 0: any time."""
    query_memory: Size = "1GiB"
    """Memory that each query of a client may take, with unit; what is larger goes to disk."""
    query_disk: Size = "4GiB"
    """Disk that each query of a client may take for what does not fit into its memory, with unit."""
    query_processes: Annotated[int, Field(ge=2)] = 16
    """Queries of clients that run at once, each in a process of its own; half of them for one caller."""
    on_lost_history: OnLostHistory = OnLostHistory.PAUSE
    """What happens to a view whose source has lost the history that it needs."""


class SourceSection(ServerSection):
    """One source: how its wrapper reads it, where that wrapper listens, or only where it is found."""

    adapter: str | None = None
    """The adapter's name; absent if the wrapper is configured elsewhere."""
    url: str | None = Field(default=None, repr=False)
    """What the adapter connects to; relative SQLite and DuckDB paths start at the file's folder."""
    relations: tuple[str, ...] | None = None
    """What the wrapper shows; absent means all relations."""
    listen: Address | None = None
    """Where its wrapper listens; absent means any free port of the loopback interface."""
    address: Address | None = None
    """Where the mediator finds the wrapper; absent means at `listen`."""
    capture: str | None = None
    """The capture style; absent means the adapter's choice."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """The adapter's own settings."""
    max_run_rows: Annotated[int, Field(ge=1)] = 200_000
    """Rows of changes that the wrapper takes at once; a single transaction may have more."""
    embedded_memory: Size = "512MiB"
    """Memory of the wrapper's engine's buffers, with unit; larger joins go to disk."""
    mediators: dict[str, MediatorPolicySection] | None = None
    """What each mediator may see, by the name of its token or certificate, `*` for all others; absent
    shows all to all."""
    connect: ConnectSection = ConnectSection()
    """How the mediator reaches the wrapper."""

    @model_validator(mode="after")
    def _is_complete(self) -> SourceSection:
        if self.adapter is None and self.address is None:
            raise ValueError("give `adapter` and `url` to serve the source, or `address` to find its wrapper")
        if self.adapter is not None and self.url is None:
            raise ValueError("`url` is missing: what shall the adapter connect to?")
        if self.adapter is None and self.url is not None:
            raise ValueError("`adapter` is missing: which adapter reads the url?")
        return self


class ViewSection(Section):
    """One view that the mediator creates if it is not there yet."""

    sql: str
    """SELECT over `source.relation` tables."""
    maintenance: str = ""
    """The maintenance algorithm; absent means the one for `consistency`."""
    consistency: Consistency | None = None
    """What the view must be; absent means what the algorithm and the sources give."""
    force: bool = False
    """Algorithms that are wrong under concurrency are wanted."""
    allow_cross_join: bool = False
    """Cross joins are wanted."""
    max_batch: Annotated[int, Field(ge=0)] = 0
    """Transactions that one sweep takes at most; 0 means the mediator's value."""


class Document(Section):
    """The whole file; any part may be absent."""

    mediator: MediatorSection = MediatorSection()
    """The mediator."""
    sources: dict[Name, SourceSection] = Field(default_factory=dict)
    """The sources, by the name that views use for them."""
    views: dict[Name, ViewSection] = Field(default_factory=dict)
    """The views, by name."""
