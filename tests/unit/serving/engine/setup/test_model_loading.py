"""What loading a model says, and when the demo model must be made anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.engine.setup.config import EngineConfig
from serving.engine.setup.demo_model import MARKER, has_random_weights, is_whole
from serving.engine.setup.model_loading import TELLING_CHARS, check_model_folder, telling_line
from serving.errors import ModelNotLoaded


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("No space left on device.", "No space left on device"),
        ("", "ValueError"),
        ("2 validation errors for X\nmodel\n  must exist [type=m]\nname", "model: must exist"),
        ("1 validation error for X\n  Value error, no such thing [type=v]", "no such thing"),
        ("Made from one of:.\n(1) a file\n(2) another", "Made from one of: (1) a file"),
    ],
)
def test_the_telling_line_of_an_error_is_found(said: str, told: str) -> None:
    assert telling_line(ValueError(said)) == told


def test_no_error_is_told_at_length() -> None:
    assert len(telling_line(ValueError("word " * 10_000))) <= TELLING_CHARS


def test_a_folder_without_a_model_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelNotLoaded, match=r"config\.json"):
        check_model_folder(EngineConfig(model=str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    assert check_model_folder(EngineConfig(model=str(tmp_path))) == str(tmp_path)
    assert check_model_folder(EngineConfig(model="maker/model")) == "maker/model"


def test_a_demo_model_that_lost_bytes_is_not_whole_though_still_a_demo_model(
    tmp_path: Path,
) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    (tmp_path / MARKER).write_text(json.dumps({"bytes": {weights.name: 7}}))
    assert is_whole(tmp_path)
    weights.write_bytes(b"")
    assert not is_whole(tmp_path)
    assert has_random_weights(tmp_path)
    weights.unlink()
    assert not is_whole(tmp_path)
    (tmp_path / MARKER).write_text("{")
    assert not is_whole(tmp_path)
