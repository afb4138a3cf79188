"""Reads GGUF files: llama.cpp's format of a model's metadata and quantised weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3, little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_MAGIC, _VERSION = b"GGUF", 3
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64 = 4, 6, 7, 8, 9, 10
_NUMBERS = {
    kind: struct.Struct(f"<{code}")
    for kind, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        _UINT32: "I",
        5: "i",
        _FLOAT32: "f",
        _BOOL: "?",
        _UINT64: "Q",
        11: "q",
        12: "d",
    }.items()
}


class Gguf:
    """A GGUF file, mapped into memory.

    Attributes:
        metadata: the model's hyperparameters and tokenizer, by name.
        tensors: names of its tensors, in the file's order.
    Raises:
        OSError: the file cannot be read.
        ValueError: it is no GGUF file of version 3, or it is cut short.
    """

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, np.uint8, mode="r")
        self._at = 0
        try:
            magic, version = bytes(self._take(4)), self._number(_UINT32)
            if (magic, version) != (_MAGIC, _VERSION):
                raise ValueError(f"{path} is no GGUF file of version {_VERSION}")
            num_tensors, num_fields = self._number(_UINT64), self._number(_UINT64)
            self.metadata: dict[str, Any] = {}
            for _ in range(num_fields):
                name = self._text()
                self.metadata[name] = self._value(self._number(_UINT32))
            self._tensors = dict(self._tensor_info() for _ in range(num_tensors))
        except (struct.error, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error})") from error
        alignment = self.metadata.get("general.alignment", 32)
        self._data_at = math.ceil(self._at / alignment) * alignment

    @property
    def tensors(self) -> list[str]:
        """Names of the tensors."""
        return list(self._tensors)

    def tensor(self, name: str) -> Array:
        """The values of a tensor, restored from their quantised form; in row-major order.

        Raises:
            KeyError: there is no such tensor.
            ValueError: its quantisation is not supported, or the file is cut short.
        """
        info = self._tensors[name]
        if info.kind not in _BLOCKS:
            raise ValueError(f"tensor {name} has the unsupported quantisation {info.kind}")
        block = _BLOCKS[info.kind]
        num_blocks = math.prod(info.shape) // block.num_values
        start = self._data_at + info.offset
        data = self._bytes[start : start + num_blocks * block.num_bytes]
        if len(data) < num_blocks * block.num_bytes:
            raise ValueError(f"the file ends within tensor {name}")
        return block.restore(data.reshape(num_blocks, block.num_bytes)).reshape(info.shape)

    def _take(self, count: int) -> NDArray[np.uint8]:
        taken: NDArray[np.uint8] = self._bytes[self._at : self._at + count]
        self._at += count
        return taken

    def _number(self, kind: int) -> Any:
        form = _NUMBERS[kind]
        (number,) = form.unpack(self._take(form.size).tobytes())
        return number

    def _text(self) -> str:
        return bytes(self._take(self._number(_UINT64))).decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._number(kind)
        kind_of_items, count = self._number(_UINT32), self._number(_UINT64)
        return [self._value(kind_of_items) for _ in range(count)]

    def _tensor_info(self) -> tuple[str, _Tensor]:
        name = self._text()
        # The file lists the dimensions from the innermost one outwards.
        shape = [self._number(_UINT64) for _ in range(self._number(_UINT32))][::-1]
        return name, _Tensor(tuple(shape), self._number(_UINT32), self._number(_UINT64))


class _Tensor(NamedTuple):
    """Where a tensor is: its offset is counted from the end of the metadata."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class _Block(NamedTuple):
    """How a quantisation stores a run of values.

    Attributes:
        restore: bytes of shape (blocks, num_bytes) -> values of shape (blocks, num_values).
    """

    num_values: int
    num_bytes: int
    restore: Callable[[NDArray[np.uint8]], Array]


def _float32(data: NDArray[np.uint8]) -> Array:
    return data.copy().view(np.float32)  # the file itself is not writable


def _float16(data: NDArray[np.uint8]) -> Array:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _q4_1(data: NDArray[np.uint8]) -> Array:
    """A scale, a minimum and 32 numbers of 4 bits: low halves of the bytes first."""
    scale, minimum, packed = _float16(data[:, :2]), _float16(data[:, 2:4]), data[:, 4:]
    return np.hstack([packed & 0x0F, packed >> 4]) * scale + minimum


def _q8_0(data: NDArray[np.uint8]) -> Array:
    """A scale and 32 signed bytes."""
    return np.ascontiguousarray(data[:, 2:]).view(np.int8) * _float16(data[:, :2])


_BLOCKS = {
    0: _Block(1, 4, _float32),
    1: _Block(1, 2, _float16),
    3: _Block(32, 20, _q4_1),
    8: _Block(32, 34, _q8_0),
}
"""Quantisation, by its number in the file."""
