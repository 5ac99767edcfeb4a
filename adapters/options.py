"""A source's options as the user wrote them, read one by one, with one wording of what is wrong."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError


@dataclass(frozen=True)
class GivenOptions:
    """Options as they were given, and where they stand; every reader takes the default of an absent one.

    >>> given = GivenOptions("source 'shop'", {"trim": "no"})
    >>> given.seconds("patience", 5)
    5.0
    >>> given.flag("trim", True)
    Traceback (most recent call last):
        ...
    algebra.errors.ConfigurationError: source 'shop': option trim is 'no', not true or false
    """

    where: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, config: SourceConfig) -> GivenOptions:
        """Those of a configured source."""
        return cls(f"source {config.name!r}", config.options)

    def error(self, name: str, value: object, wanted: str) -> ConfigurationError:
        return ConfigurationError(f"{self.where}: option {name} is {value!r}, not {wanted}")

    def refuse_unknown(self, known: Collection[str], introduction: str = "there are") -> None:
        """ConfigurationError for an option that is not known; it lists, after these words, those that are."""
        unknown = sorted(set(map(str, self.values)) - set(known))
        if unknown:
            known_names = ", ".join(sorted(known)) or "none"
            raise ConfigurationError(
                f"{self.where}: unknown option {unknown[0]!r}; {introduction}: {known_names}"
            )

    def text(self, name: str, default: str) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise self.error(name, value, "a text")
        return value

    def secret(self, name: str) -> str:
        """A text that no error repeats, empty if it is absent."""
        value = self.values.get(name, "")
        if not isinstance(value, str):
            raise ConfigurationError(f"{self.where}: option {name} is not a text")
        return value

    def choice(self, name: str, default: str, *others: str) -> str:
        """One of these texts."""
        *first, last = choices = (default, *others)
        value = self.values.get(name, default)
        if value not in choices:
            raise self.error(name, value, f"{', '.join(first)} or {last}")
        return str(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def number(self, name: str, default: float, *, least: float = 0, wanted: str | None = None) -> float:
        """A number of at least this; `wanted` says it in the words of the option's unit."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise self.error(name, value, wanted or f"a number of at least {least:g}")
        return float(value)

    def seconds(self, name: str, default: float) -> float:
        return self.number(name, default, wanted="a time in seconds")

    def whole(self, name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
        """A whole number of at least this, and at most that."""
        value = self.values.get(name, default)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < least or (most is not None and value > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise self.error(name, value, f"a whole number {bounds}")
        return int(value)

    def size(self, name: str, default: str) -> str:
        """A number of bytes, in the words of DuckDB."""
        value = self.text(name, default)
        if not re.fullmatch(r"\d+(\.\d+)?\s*[KMGT]i?B", value):
            raise self.error(name, value, "a size such as 512MiB or 2GiB")
        return value

    def names(self, name: str, *, or_one: bool = False) -> tuple[str, ...]:
        """A list of texts, empty if it is absent; `or_one` also takes a single text for a list of one."""
        value = self.values.get(name, ())
        if or_one and isinstance(value, str):
            return (value,)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.error(name, value, "a list of names")
        return tuple(value)
