"""GGUF files: read as they were written, refused if they are damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from serving.engine.setup.gguf import Gguf

ALIGNMENT = 32


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def written(path: Path, tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> Path:
    """A file with some metadata and these tensors: shape, number of the quantisation, data."""
    fields = [
        text("general.alignment") + struct.pack("<II", 4, ALIGNMENT),
        text("name") + struct.pack("<I", 8) + text("Grüße"),
        text("scores") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<2f", 0.5, -1.5),
    ]
    infos, data = b"", b""
    for name, (shape, kind, content) in tensors.items():
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos += text(name) + dimensions + struct.pack("<IQ", kind, len(data))
        data += content + b"\0" * (-len(content) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(fields) + infos
    path.write_bytes(head + b"\0" * (-len(head) % ALIGNMENT) + data)
    return path


def test_metadata_and_plain_tensors_are_read(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    gguf = Gguf(
        written(
            tmp_path / "m.gguf",
            {
                "a": ((2, 3), 0, values.tobytes()),
                "b": ((6,), 1, values.ravel().astype(np.float16).tobytes()),
            },
        )
    )
    assert gguf.metadata == {"general.alignment": 32, "name": "Grüße", "scores": [0.5, -1.5]}
    assert gguf.tensors == ["a", "b"]
    assert np.array_equal(gguf.tensor("a"), values)
    assert np.array_equal(gguf.tensor("b"), values.ravel())


def test_blocks_of_4_and_8_bits_are_restored(tmp_path: Path) -> None:
    half = np.array([0.5, 2.0], dtype=np.float16)
    numbers = np.arange(32, dtype=np.uint8) % 16
    packed = numbers[:16] | (numbers[16:] << 4)
    signed = np.arange(-16, 16, dtype=np.int8)
    gguf = Gguf(
        written(
            tmp_path / "m.gguf",
            {
                "q4_1": ((1, 32), 3, half.tobytes() + packed.tobytes()),
                "q8_0": ((32,), 8, half[:1].tobytes() + signed.tobytes()),
            },
        )
    )
    assert np.array_equal(gguf.tensor("q4_1"), (numbers * np.float32(0.5) + 2)[None, :])
    assert np.array_equal(gguf.tensor("q8_0"), signed * np.float32(0.5))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGML" + b"\0" * 40, b"GGUF\x02" + b"\0" * 40])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"GGUF|damaged|empty"):
        Gguf(path)


def test_a_file_that_is_cut_short_or_quantised_otherwise_is_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.gguf", {"a": ((8,), 0, b"\0" * 32), "b": ((256,), 12, b"\0" * 144)}
    )
    path.write_bytes(path.read_bytes()[:-170])
    gguf = Gguf(path)
    with pytest.raises(ValueError, match="unsupported quantisation 12"):
        gguf.tensor("b")
    with pytest.raises(ValueError, match="ends within tensor a"):
        gguf.tensor("a")
