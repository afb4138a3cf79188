"""The number of a model's weights, from its files or its name. Does not import vLLM."""

from __future__ import annotations

import json
import math
import re
import struct
from pathlib import Path

from serving.engine.setup.config import RANDOM_MODEL
from serving.engine.setup.smollm2 import SMOLLM2

# Such as "0.5B", "135M" and "8x7B", as a part of a name between separators.
_SIZE = re.compile(
    r"(?:^|[-_/. ])(?:(?P<experts>\d+)x)?(?P<number>\d+(?:\.\d+)?)(?P<unit>[bm])(?=$|[-_/. ])",
    re.IGNORECASE,
)
_UNITS = {"b": 1_000_000_000, "m": 1_000_000}
_PACKAGED = {SMOLLM2: 134_515_008, RANDOM_MODEL: 918_144}
_MAX_HEADER_BYTES = 100_000_000  # as the safetensors library limits it


def num_parameters(name: str, path: str | None = None) -> int | None:
    """The number of a model's weights; None if it cannot be told.

    Args:
        name: a Hugging Face id or a name that is served.
        path: the model's folder; its safetensors files are counted, if it has any.
    """
    counted = None if path is None else _in_folder(Path(path))
    return counted or _PACKAGED.get(name) or _in_name(name)


def _in_name(name: str) -> int | None:
    sizes = [
        int(match["experts"] or 1) * float(match["number"]) * _UNITS[match["unit"].lower()]
        for match in _SIZE.finditer(name)
    ]
    return round(max(sizes)) if sizes else None


def _in_folder(folder: Path) -> int | None:
    try:
        return sum(map(_in_file, sorted(folder.glob("*.safetensors")))) or None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error):
        return None  # vLLM names what is wrong with the files


def _in_file(file: Path) -> int:
    """Of a safetensors file: 8 bytes with the length of a JSON header, which has each shape."""
    with file.open("rb") as weights:
        (num_bytes,) = struct.unpack("<Q", weights.read(8))
        if num_bytes > _MAX_HEADER_BYTES:
            raise ValueError(file)
        header = json.loads(weights.read(num_bytes))
    return sum(math.prod(t["shape"]) for key, t in header.items() if key != "__metadata__")
