"""How alike two runs are: a Gaussian kernel over their stages' nodes and edges.

The squared distance of two prefixes is the mean over their stages of the squared differences of
each attribute, in units of that attribute's bandwidth; the kernel is exp(-distance / 2). So a
bandwidth is at once a width and a weight: an attribute that foretells nothing gets an infinite
one. `fitting.py` fits them.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1;
Zhang et al. (2025), Tempo, section 4.1 (weighted node and edge similarity of super-nodes, the
shorter graph against the corresponding prefix of the longer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from patterns.errors import CorruptKernel, InvalidBandwidth, ShapeMismatch
from patterns.features import ATTRIBUTES, NO_STAGE, Floats, PatternTable

KERNEL_VERSION = 1


def gaussian_kernel(left: Floats, right: Floats, *, bandwidth: float) -> Floats:
    """Similarity of every pair of feature vectors: 1 when equal, towards 0 when far apart.

    Args:
        left: shape (n, d), unitless.
        right: shape (m, d), the same scale as left.
        bandwidth: distance at which similarity is exp(-1/2); > 0.
    Returns:
        shape (n, m), values in [0, 1].
    Raises:
        ShapeMismatch: left and right differ in d.
        InvalidBandwidth: not above 0.
    Source: Wu (2025), section 4.1.
    """
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise ShapeMismatch(left.shape, right.shape)
    if not bandwidth > 0:
        raise InvalidBandwidth("bandwidth", bandwidth)
    # Divided first: a small bandwidth squared would be 0. What overflows is infinitely far apart.
    with np.errstate(over="ignore"):
        apart = (left[:, None, :] - right[None, :, :]) / bandwidth
        similarity: Floats = np.exp(-0.5 * np.square(apart).sum(axis=2))
    return similarity


@dataclass(frozen=True)
class StageKernel:
    """The bandwidths of one application's patterns.

    Args:
        bandwidths: for each of ATTRIBUTES the difference of logs at which two stages that are
            equal in all else have similarity exp(-1/2); above 0, infinity to ignore it.
    Raises:
        InvalidBandwidth: not above 0, or not one an attribute.
    """

    bandwidths: tuple[float, ...] = (1.0,) * len(ATTRIBUTES)

    def __post_init__(self) -> None:
        if len(self.bandwidths) != len(ATTRIBUTES):
            raise InvalidBandwidth("bandwidths", self.bandwidths)
        for name, bandwidth in zip(ATTRIBUTES, self.bandwidths, strict=True):
            if not bandwidth > 0:  # NaN is not, either
                raise InvalidBandwidth(name, bandwidth)

    @cached_property
    def precision(self) -> Floats:
        """Shape (3,): one over each bandwidth, squared; finite, however small the bandwidth."""
        floor = 1e-6
        # Divided first: a great bandwidth squared would overflow.
        return np.array([(1.0 / max(width, floor)) ** 2 for width in self.bandwidths])

    def squared_distances(self, stages: Floats, stage: Floats) -> Floats:
        """Of n stages from one, all as features: shapes (n, 3) and (3,) to (n,)."""
        apart: Floats = np.square(stages - stage) @ self.precision
        return apart

    def similarity(self, squared: Floats, num_stages: int) -> Floats:
        """Of prefixes whose squared distances add up to `squared` over so many stages."""
        alike: Floats = np.exp(-0.5 * squared / max(num_stages, 1))
        return alike

    def to_document(self) -> dict[str, Any]:
        """JSON-safe; None stands for infinity."""
        widths = {
            name: None if math.isinf(width) else width
            for name, width in zip(ATTRIBUTES, self.bandwidths, strict=True)
        }
        return {"version": KERNEL_VERSION, "bandwidths": widths}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> StageKernel:
        """Inverse of `to_document`; raises CorruptKernel for anything else."""
        try:
            if document["version"] != KERNEL_VERSION:
                raise CorruptKernel(f"version {document['version']!r}, not {KERNEL_VERSION}")
            widths = [document["bandwidths"][name] for name in ATTRIBUTES]
            return cls(tuple(math.inf if width is None else float(width) for width in widths))
        except (KeyError, TypeError, ValueError, OverflowError, InvalidBandwidth) as cause:
            raise CorruptKernel(f"{type(cause).__name__}: {cause}") from cause


DEFAULT_KERNEL = StageKernel()


def similarities(table: PatternTable, kernel: StageKernel) -> Floats:
    """How alike whole patterns are: shape (n, n), symmetric, 1 on the diagonal.

    Two patterns are compared over the stages that both have, and not at all alike if those do not
    make the same calls. What the longer has beyond lowers the similarity in proportion.
    """
    num, width = table.signature.shape
    squared = np.zeros((num, num))
    differ = np.zeros((num, num), dtype=bool)
    for stage in range(width):
        signature = table.signature[:, stage]
        has = signature != NO_STAGE
        both = has[:, None] & has[None, :]
        differ |= both & (signature[:, None] != signature[None, :])
        scaled = table.features[:, stage] * np.sqrt(kernel.precision)
        apart = np.zeros((num, num))
        for column in scaled.T:
            apart += np.square(column[:, None] - column[None, :])
        squared += np.where(both, apart, 0.0)
    shared = np.minimum(table.num_stages[:, None], table.num_stages[None, :])
    longer = np.maximum(table.num_stages[:, None], table.num_stages[None, :])
    alike: Floats = np.exp(-0.5 * squared / np.maximum(shared, 1)) * (
        shared / np.maximum(longer, 1)
    )
    alike[differ] = 0.0
    np.fill_diagonal(alike, 1.0)
    return alike


def distances(table: PatternTable, kernel: StageKernel) -> Floats:
    """Kernel distances of whole patterns: shape (n, n), 0 on the diagonal, at most sqrt(2).

    The distance of two points in the space that the kernel spans: sqrt(k(a,a) + k(b,b) - 2k(a,b)).
    """
    apart: Floats = np.sqrt(np.maximum(2.0 - 2.0 * similarities(table, kernel), 0.0))
    return apart
