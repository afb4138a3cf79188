from __future__ import annotations

import importlib

import pytest

PACKAGES = ["orchestrator", "orchestrator.events", "patterns"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_exists_and_is_listed_in_order(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert hasattr(module, name)
    assert list(module.__all__) == sorted(set(module.__all__))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_offered_for_completion(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'nothing'"):
        _ = importlib.import_module(package).nothing
