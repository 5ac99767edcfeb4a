"""YAML text as plain values; whatever is wrong with it is one line with its place.

A small text can stand for a huge value: aliases of aliases multiply. So the size of the text, its depth, and
the size of what it stands for are bounded before any value is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from algebra.errors import ConfigurationError

LARGEST_TEXT = 1 << 20
"""Bytes of a configuration file at most."""
LARGEST_VALUE = 100_000
"""Nodes that a text may stand for, with every alias counted in full."""
DEEPEST = 50
"""How deep values may be nested."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """The safe loader, except that a repeated key is an error instead of a silent overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read(path: Path) -> str:
    """The file's text; ConfigurationError if it is larger than any configuration."""
    with path.open("rb") as file:
        data = file.read(LARGEST_TEXT + 1)
    if len(data) > LARGEST_TEXT:
        raise ConfigurationError(f"{path}: is larger than {LARGEST_TEXT} bytes")
    return data.decode("utf-8")


def parse(text: str, name: str) -> Any:
    """The values that the text holds; `name` is the file's name in errors."""
    if len(text) > LARGEST_TEXT:
        raise ConfigurationError(f"{name}: is larger than {LARGEST_TEXT} characters")
    try:
        loader = _UniqueKeyLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _size(node, name, {}, 0)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = " ".join(part for part in (error.context, error.problem) if part) or "not YAML"
        raise ConfigurationError(f"{where}: {problem}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name}: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ConfigurationError(f"{name}: is nested deeper than {DEEPEST} levels") from None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
        # The library's own constructors: a date that does not exist, a number it cannot read.
        raise ConfigurationError(f"{name}: holds a value that its YAML type does not allow") from None


def _size(node: yaml.Node, name: str, known: dict[int, int], depth: int) -> int:
    """How many nodes a node stands for; a node that is inside itself is not in `known` when it is met
    again."""
    if depth > DEEPEST:
        raise ConfigurationError(f"{name}: is nested deeper than {DEEPEST} levels, or refers to itself")
    if id(node) in known:
        return known[id(node)]
    size = 1
    if isinstance(node, yaml.SequenceNode):
        size += sum(_size(item, name, known, depth + 1) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        size += sum(_size(part, name, known, depth + 1) for pair in node.value for part in pair)
    if size > LARGEST_VALUE:
        raise ConfigurationError(f"{name}: its aliases stand for more than {LARGEST_VALUE} values")
    known[id(node)] = size
    return size
