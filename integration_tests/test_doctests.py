"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import algebra
import protos.security

MODULES = sorted(
    module.name
    for package in (algebra, protos.security)
    for module in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}.")
    if ".tests" not in module.name and not module.ispkg
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)

    assert result.failed == 0
