"""Adapters by name, found through the `lockstep.adapters` entry points and imported when first used."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from adapters.spi import Adapter, SourceConfig
from algebra.errors import ConfigurationError, MissingExtraError

GROUP = "lockstep.adapters"


def available() -> dict[str, EntryPoint]:
    """Every registered adapter's entry point, by name; nothing is imported."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda p: p.name)}


def adapter_class(kind: str) -> type[Adapter]:
    """The adapter class registered under this name."""
    point = available().get(kind)
    if point is None:
        known = ", ".join(available()) or "none"
        raise ConfigurationError(f"unknown adapter {kind!r}; installed adapters: {known}")
    try:
        loaded = point.load()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == point.module.partition(".")[0]:
            raise  # a fault in the adapter's own package, not a library that is missing
        raise MissingExtraError(f"adapter {kind!r} ({error})", kind) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Adapter)):
        raise ConfigurationError(f"adapter {kind!r} at {point.value} is not a subclass of Adapter")
    return loaded


def create(config: SourceConfig) -> Adapter:
    """A new adapter for a configured source; it does not connect yet."""
    return adapter_class(config.adapter)(config)
