"""The file format of length models: no pickle, validated when loaded, replaced atomically.

Layout: header (magic, version, counts), the deflated arrays, and the BLAKE3 hash of both. Numbers
are little-endian. A checksum detects damage but not malice. So every shape and index is checked as
well: no file can make a prediction read outside its arrays or run for ever.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from serving.analyzer.features import FEATURES_VERSION, NUM_FEATURES
from serving.analyzer.forest import LEAF, ForestArrays
from serving.errors import CorruptModel, ModelNotSaved, ModelUnreadable, UnknownModelVersion

MODEL_VERSION = 1
"""Version of the format; increased if the same bytes get another meaning."""

_MAGIC = b"length\x93\x0a"
_HEADER = struct.Struct("<8sHH6Id")
_DIGEST_BYTES = 32
_MAX_FILE_BYTES = 64 << 20
_MAX_COUNTS = (1024, 1 << 20, 1 << 22, 1 << 16, 1 << 16, 1 << 30)
_NO_FEATURE = 0xFF  # the encoding of a leaf's feature

assert NUM_FEATURES < _NO_FEATURE


@dataclass(frozen=True, slots=True)
class Document:
    """The contents of a file; see FittedLengths for their meaning."""

    arrays: ForestArrays
    steps: NDArray[np.int64]  # shape (scores,)
    levels: NDArray[np.float64]  # shape (scores,)
    num_calls: int
    trained_until_s: float


def save(path: Path, document: Document) -> None:
    """Write a temporary file, sync it to the disk, and replace the old file with it.

    Raises:
        ModelNotSaved: the folder cannot be written, or the disk is full.
    """
    written = _pack(document)
    partial: str | None = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            partial = file.name
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).replace(path)
        partial = None
        _sync_folder(path.parent)
    except OSError as cause:
        raise ModelNotSaved(str(path), cause.strerror or str(cause)) from cause
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                Path(partial).unlink()


def load(path: Path) -> Document:
    """Read and validate a file.

    Raises:
        ModelUnreadable: the file or the permission to read it is missing.
        CorruptModel: the file is damaged, or was not written by `save`.
        UnknownModelVersion: it was written by another version of the program.
    """
    try:
        with path.open("rb") as file:
            written = file.read(_MAX_FILE_BYTES + 1)
    except OSError as cause:
        raise ModelUnreadable(str(path), cause.strerror or str(cause)) from cause
    if len(written) < len(_MAGIC) + 2 or not written.startswith(_MAGIC):
        raise CorruptModel(str(path), "it does not begin with the header of a length model")
    version = int.from_bytes(written[len(_MAGIC) : len(_MAGIC) + 2], "little")
    if version != MODEL_VERSION:
        raise UnknownModelVersion(str(path), version, MODEL_VERSION)
    try:
        return _unpack(written)
    except _FaultError as fault:
        raise CorruptModel(str(path), str(fault)) from None


class _FaultError(Exception):
    """Why the bytes are not a valid model."""


def _pack(document: Document) -> bytes:
    arrays = document.arrays
    inner = arrays.features != LEAF
    counts = (
        len(arrays.tree_sizes),
        len(arrays.features),
        len(arrays.samples),
        len(arrays.lengths),
        len(document.levels),
        document.num_calls,
    )
    header = _HEADER.pack(
        _MAGIC, MODEL_VERSION, FEATURES_VERSION, *counts, document.trained_until_s
    )
    features = np.where(inner, arrays.features, _NO_FEATURE)
    body = b"".join(
        part.tobytes()
        for part in (
            arrays.tree_sizes.astype("<u4"),
            features.astype("<u1"),
            arrays.thresholds.astype("<f4"),
            arrays.left.astype("<u4"),
            arrays.right.astype("<u4"),
            arrays.leaf_sizes.astype("<u4"),
            arrays.samples.astype("<u2"),
            arrays.lengths.astype("<u4"),
            document.steps.astype("<u4"),
            document.levels.astype("<f8"),
        )
    )
    content = header + zlib.compress(body, level=6)
    return content + blake3(content).digest()


def _unpack(written: bytes) -> Document:
    if not _HEADER.size + _DIGEST_BYTES <= len(written) <= _MAX_FILE_BYTES:
        raise _FaultError("it is too short or too long")
    content, digest = written[:-_DIGEST_BYTES], written[-_DIGEST_BYTES:]
    if blake3(content).digest() != digest:
        raise _FaultError("its checksum does not match")
    _, _, features_version, *counts, trained_until_s = _HEADER.unpack_from(content)
    if features_version != FEATURES_VERSION:
        raise _FaultError(f"it was fitted on features of version {features_version}")
    if any(count > limit for count, limit in zip(counts, _MAX_COUNTS, strict=True)):
        raise _FaultError("a count in its header exceeds the limit")
    num_trees, num_nodes, num_samples, num_lengths, num_scores, num_calls = counts
    layout = (
        *(("<u4", num_trees), ("<u1", num_nodes), ("<f4", num_nodes)),
        *(("<u4", num_nodes), ("<u4", num_nodes), ("<u4", num_nodes)),
        *(("<u2", num_samples), ("<u4", num_lengths)),
        *(("<u4", num_scores), ("<f8", num_scores)),
    )
    size = sum(np.dtype(kind).itemsize * count for kind, count in layout)
    body = _inflated(content[_HEADER.size :], size)
    parts: list[NDArray[np.generic]] = []
    offset = 0
    for kind, count in layout:
        parts.append(np.frombuffer(body, kind, count, offset))
        offset += parts[-1].nbytes
    features = parts[1].astype(np.int64)
    arrays = ForestArrays(
        tree_sizes=parts[0].astype(np.int64),
        features=np.where(features == _NO_FEATURE, LEAF, features),
        thresholds=parts[2].astype(np.float32),
        left=parts[3].astype(np.int64),
        right=parts[4].astype(np.int64),
        leaf_sizes=parts[5].astype(np.int64),
        samples=parts[6].astype(np.int64),
        lengths=parts[7].astype(np.int64),
        num_features=NUM_FEATURES,
    )
    fault = arrays.fault()
    if fault is not None:
        raise _FaultError(fault)
    steps, levels = parts[8].astype(np.int64), parts[9].astype(np.float64)
    if not np.isfinite(levels).all() or not math.isfinite(trained_until_s):
        raise _FaultError("a calibration score or its time is not finite")
    return Document(arrays, steps, levels, num_calls, trained_until_s)


def _inflated(deflated: bytes, size: int) -> bytes:
    """Inflate exactly `size` bytes, without ever using more memory; raises _FaultError."""
    inflate = zlib.decompressobj()
    try:
        body = inflate.decompress(deflated, size + 1)
    except zlib.error:
        raise _FaultError("it cannot be inflated") from None
    if len(body) != size or not inflate.eof or inflate.unused_data:
        raise _FaultError("its arrays do not have the sizes in its header")
    return body


def _sync_folder(folder: Path) -> None:
    """Sync the folder to the disk, because a rename is a change of the folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
