"""The number of a model's weights: counted in its files, else told by its name, else not known."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from serving.engine.setup.model_size import num_parameters


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 500_000_000),
        ("SmolLM2-135M", 135_000_000),
        ("mistralai/Mixtral-8x7B-v0.1", 56_000_000_000),
        ("Qwen3-30B-A3B", 30_000_000_000),
        ("meta-llama/Llama-3.1-8B", 8_000_000_000),
        ("smollm2", 134_515_008),
        ("random", 918_144),
        ("gpt-4o", None),
        ("my-model-v2", None),
        ("", None),
    ],
)
def test_a_name_tells_the_size(name: str, expected: int | None) -> None:
    assert num_parameters(name) == expected


def safetensors(*shapes: list[int]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    header |= {str(i): {"dtype": "F32", "shape": shape} for i, shape in enumerate(shapes)}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def test_the_weights_of_all_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(safetensors([10, 20], [7]))
    (tmp_path / "b.safetensors").write_bytes(safetensors([]))  # a scalar
    assert num_parameters("llama-8B", str(tmp_path)) == 208


@pytest.mark.parametrize(
    "content",
    [b"", b"abc", struct.pack("<Q", 2**60), safetensors([1])[:20], safetensors()[:8] + b"[1]"],
)
def test_damaged_files_are_left_to_the_engine(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    assert num_parameters("llama-8B", str(tmp_path)) == 8_000_000_000


def test_a_folder_without_weights_and_one_that_is_absent_tell_nothing(tmp_path: Path) -> None:
    assert num_parameters("x", str(tmp_path)) is None
    assert num_parameters("x", str(tmp_path / "nowhere")) is None
