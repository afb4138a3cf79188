"""Loading a model: summaries of errors, model folders, complete demo models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.engine.setup.config import EngineConfig
from serving.engine.setup.model_cache import MARKER, is_complete
from serving.engine.setup.model_loading import MAX_SUMMARY_CHARS, check_model_folder, error_summary
from serving.engine.setup.random_model import has_random_weights
from serving.errors import ModelNotLoaded


@pytest.mark.parametrize(
    ("message", "summary"),
    [
        ("No space left on device.", "No space left on device"),
        ("", "ValueError"),
        ("2 validation errors for X\nmodel\n  must exist [type=m]\nname", "model: must exist"),
        ("1 validation error for X\n  Value error, no such thing [type=v]", "no such thing"),
        ("Made from one of:.\n(1) a file\n(2) another", "Made from one of: (1) a file"),
    ],
)
def test_the_summary_of_an_error_says_what_is_wrong(message: str, summary: str) -> None:
    assert error_summary(ValueError(message)) == summary


def test_the_length_of_a_summary_is_limited() -> None:
    assert len(error_summary(ValueError("word " * 10_000))) <= MAX_SUMMARY_CHARS


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotLoaded, match=r"config\.json"):
        check_model_folder(EngineConfig(model=str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    assert check_model_folder(EngineConfig(model=str(tmp_path))) == str(tmp_path)
    assert check_model_folder(EngineConfig(model="maker/model")) == "maker/model"


def test_a_random_model_with_missing_bytes_is_incomplete_but_still_random(
    tmp_path: Path,
) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    (tmp_path / MARKER).write_text(json.dumps({"random_weights": True, "bytes": {weights.name: 7}}))
    assert is_complete(tmp_path)
    weights.write_bytes(b"")
    assert not is_complete(tmp_path)
    assert has_random_weights(tmp_path)
    weights.unlink()
    assert not is_complete(tmp_path)
    (tmp_path / MARKER).write_text("{")
    assert not is_complete(tmp_path)
