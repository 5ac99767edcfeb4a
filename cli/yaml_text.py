"""YAML text as plain values; whatever is wrong with it is one line with its place."""

from __future__ import annotations

from typing import Any

import yaml

from algebra.errors import ConfigurationError


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


def parse(text: str, name: str) -> Any:
    """The values that the text holds; `name` is the file's name in errors."""
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = " ".join(part for part in (error.context, error.problem) if part) or "not YAML"
        raise ConfigurationError(f"{where}: {problem}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name}: {' '.join(str(error).split())}") from error
