from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize("package", ["orchestrator", "orchestrator.events", "patterns"])
def test_every_public_name_exists_and_is_listed_in_order(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert hasattr(module, name)
    assert list(module.__all__) == sorted(set(module.__all__))
