"""The examples in the algebra's docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import algebra

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(algebra.__path__, prefix="algebra.")
    if ".tests" not in module.name and not module.ispkg
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)

    assert result.failed == 0
