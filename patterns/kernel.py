"""The similarity of two runs: a Gaussian kernel over their stages' nodes and edges.

The squared distance of two prefixes is the mean over their stages of the sum over the attributes of
(difference / bandwidth)^2; the kernel is exp(-squared distance / 2). A bandwidth is also a weight:
an attribute that predicts nothing gets an infinite one. `fitting.py` fits the bandwidths.

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
"""Version of a kernel's document."""


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
        InvalidBandwidth: bandwidth is not above 0.
    Source: Wu (2025), section 4.1.
    """
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise ShapeMismatch(left.shape, right.shape)
    if not bandwidth > 0:
        raise InvalidBandwidth("bandwidth", bandwidth)
    # Divide before squaring: the square of a small bandwidth would be 0. An overflow gives an
    # infinite distance and so a similarity of 0.
    with np.errstate(over="ignore"):
        scaled = (left[:, None, :] - right[None, :, :]) / bandwidth
        similarity: Floats = np.exp(-0.5 * np.square(scaled).sum(axis=2))
    return similarity


@dataclass(frozen=True)
class StageKernel:
    """The bandwidths of one application's patterns.

    Args:
        bandwidths: for each of ATTRIBUTES the difference of log(1 + x) at which two stages that
            differ in nothing else have similarity exp(-1/2); > 0, infinity ignores the attribute.
    Raises:
        InvalidBandwidth: a bandwidth is not above 0, or their number is wrong.
    """

    bandwidths: tuple[float, ...] = (1.0,) * len(ATTRIBUTES)

    def __post_init__(self) -> None:
        if len(self.bandwidths) != len(ATTRIBUTES):
            raise InvalidBandwidth("bandwidths", self.bandwidths)
        for name, bandwidth in zip(ATTRIBUTES, self.bandwidths, strict=True):
            if not bandwidth > 0:  # refuses NaN, too
                raise InvalidBandwidth(name, bandwidth)

    @cached_property
    def precision(self) -> Floats:
        """Shape (3,): 1 / bandwidth^2 of each attribute; at most 1e12, so that it is finite."""
        floor = 1e-6
        # Divide before squaring: the square of a large bandwidth would overflow.
        return np.array([(1.0 / max(width, floor)) ** 2 for width in self.bandwidths])

    def squared_distances(self, stages: Floats, stage: Floats) -> Floats:
        """Squared distances of n stages from one; features of shapes (n, 3) and (3,) -> (n,)."""
        squared: Floats = np.square(stages - stage) @ self.precision
        return squared

    def similarity(self, squared: Floats, num_stages: int) -> Floats:
        """Similarity of prefixes of so many stages, from the sum of their squared distances."""
        similarity: Floats = np.exp(-0.5 * squared / max(num_stages, 1))
        return similarity

    def to_document(self) -> dict[str, Any]:
        """The kernel as a JSON object; null stands for an infinite bandwidth."""
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
    """Similarities of whole patterns: shape (n, n), symmetric, 1 on the diagonal.

    Two patterns are compared over the stages that both have. If these differ in their calls, the
    similarity is 0; otherwise it is the kernel times (stages of the shorter / of the longer one).
    It is 0 as well if only one of the runs was cut off: a run that ended after some stages cannot
    represent one that would have gone on.
    """
    num, width = table.signature.shape
    squared = np.zeros((num, num))
    differ = table.is_cut_off[:, None] != table.is_cut_off[None, :]
    for stage in range(width):
        signature = table.signature[:, stage]
        has = signature != NO_STAGE
        both = has[:, None] & has[None, :]
        differ |= both & (signature[:, None] != signature[None, :])
        scaled = table.features[:, stage] * np.sqrt(kernel.precision)
        of_stage = np.zeros((num, num))
        for column in scaled.T:
            of_stage += np.square(column[:, None] - column[None, :])
        squared += np.where(both, of_stage, 0.0)
    shorter = np.minimum(table.num_stages[:, None], table.num_stages[None, :])
    longer = np.maximum(table.num_stages[:, None], table.num_stages[None, :])
    similarity: Floats = np.exp(-0.5 * squared / np.maximum(shorter, 1)) * (
        shorter / np.maximum(longer, 1)
    )
    similarity[differ] = 0.0
    np.fill_diagonal(similarity, 1.0)
    return similarity


def distances(table: PatternTable, kernel: StageKernel) -> Floats:
    """Kernel distances of whole patterns: shape (n, n), 0 on the diagonal, at most sqrt(2).

    The distance in the kernel's feature space: sqrt(k(a,a) + k(b,b) - 2k(a,b)).
    """
    result: Floats = np.sqrt(np.maximum(2.0 - 2.0 * similarities(table, kernel), 0.0))
    return result
