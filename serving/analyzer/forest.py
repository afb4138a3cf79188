"""LengthForest: a quantile regression forest as plain arrays, fast for single predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.analyzer.distribution import LengthDistribution

NUM_TREES = 64
MIN_LEAF = 10
FEATURE_SHARE = 1.0
"""Tuned on the training parts of the data sets in benchmarks/length_data.py, split by time again.

128 trees give no tighter bounds, 32 trees less than 1% looser ones. Leaves of 5 or 20 calls give
bounds that are 2 to 5% looser in sum. With half of the features per split, bounds are 4 to 8%
looser, with words or without: few features are informative, and the bootstrap alone makes trees
different enough.
"""

MAX_DEPTH = 32
"""Limit on the depth of a tree: it bounds the time of a prediction, also for damaged files."""

LEAF = -1
"""The feature of a node that has no children."""


@dataclass(frozen=True, slots=True)
class ForestArrays:
    """The arrays that define a forest and are stored in its file.

    Attributes:
        tree_sizes: shape (trees,), nodes of each tree; its first node is its root.
        features: shape (nodes,), the index of the feature that a node tests; LEAF for a leaf.
        thresholds: shape (nodes,), a vector goes left if its value is at most this; 0 for a leaf.
        left, right: shape (nodes,), offset from a node to its children; 0 for a leaf.
        leaf_sizes: shape (nodes,), training samples in a leaf, with repetitions of the bootstrap;
            0 for other nodes.
        samples: shape (sum of leaf_sizes,), the index of each sample's length in `lengths`, in the
            order of the leaves.
        lengths: shape (distinct,), output tokens, strictly ascending.
        num_features: length of the vectors.
    """

    tree_sizes: NDArray[np.int64]
    features: NDArray[np.int64]
    thresholds: NDArray[np.float32]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    leaf_sizes: NDArray[np.int64]
    samples: NDArray[np.int64]
    lengths: NDArray[np.int64]
    num_features: int

    def fault(self) -> str | None:
        """Why a prediction could read outside the arrays or take too long; None if it cannot."""
        if not len(self.tree_sizes) or (self.tree_sizes < 1).any():
            return "a tree has no node"
        if self.tree_sizes.sum() != len(self.features):
            return "the sizes of the trees do not add up to the number of nodes"
        return self._node_fault() or self._sample_fault()

    def _node_fault(self) -> str | None:
        leaf = self.features == LEAF
        inner = np.flatnonzero(~leaf)
        if ((self.features < LEAF) | (self.features >= self.num_features)).any():
            return "a node tests a feature that does not exist"
        if not np.isfinite(self.thresholds).all():
            return "a threshold is not finite"
        if self.left[leaf].any() or self.right[leaf].any():
            return "a leaf has children"
        if (self.left[inner] < 1).any() or (self.right[inner] < 1).any():
            return "a node precedes its parent"
        children = np.concatenate((inner + self.left[inner], inner + self.right[inner]))
        if (children >= len(self.features)).any():
            return "a node's child is in no tree"
        parents = np.bincount(children, minlength=len(self.features))
        parents[self.roots] += 1
        if (parents != 1).any():
            return "a node has no parent or two parents"
        return "a tree is too deep" if self.depth() > MAX_DEPTH else None

    def _sample_fault(self) -> str | None:
        leaf = self.features == LEAF
        if (self.leaf_sizes[leaf] < 1).any() or self.leaf_sizes[~leaf].any():
            return "a leaf has no samples, or another node has some"
        if self.leaf_sizes.sum() != len(self.samples):
            return "the sizes of the leaves do not add up to the number of samples"
        if not len(self.lengths) or (np.diff(self.lengths) < 1).any() or self.lengths[0] < 0:
            return "the lengths do not ascend"
        if ((self.samples < 0) | (self.samples >= len(self.lengths))).any():
            return "a sample has no length"
        return None

    @property
    def roots(self) -> NDArray[np.int64]:
        """Shape (trees,), the first node of each tree."""
        starts: NDArray[np.int64] = np.cumsum(self.tree_sizes) - self.tree_sizes
        return starts

    def depth(self) -> int:
        """Edges from a root to the deepest leaf."""
        level, depth = self.roots, 0
        while len(level := level[self.features[level] != LEAF]):
            level = np.concatenate((level + self.left[level], level + self.right[level]))
            depth += 1
        return depth


class LengthForest:
    """Predicts the distribution of one call's output length.

    A prediction collects the training lengths of the leaf that the call reaches in each tree; a
    length counts once for each tree, as in quantile-forest by default. All trees are walked
    together.

    Source: Meinshausen (2006), quantile regression forests; Wu (2025), section 4.1.
    """

    def __init__(self, arrays: ForestArrays) -> None:
        assert arrays.fault() is None, arrays.fault()
        self.arrays = arrays
        self._roots = arrays.roots
        self._depth = arrays.depth()
        nodes = np.arange(len(arrays.features))
        # A leaf is its own child, so the walk stays there until it has reached all leaves.
        self._features = np.maximum(arrays.features, 0)
        self._children = np.column_stack((nodes + arrays.left, nodes + arrays.right)).ravel()
        self._starts = np.cumsum(arrays.leaf_sizes) - arrays.leaf_sizes
        self._scaled = np.log1p(arrays.lengths.astype(np.float64))

    def predict(self, vector: NDArray[np.float32]) -> LengthDistribution:
        """The distribution of the output length of a call with this feature vector.

        Args:
            vector: shape (num_features,), finite.
        """
        assert vector.shape == (self.arrays.num_features,), "the vector has a wrong length"
        nodes = self._roots
        features, thresholds, children = self._features, self.arrays.thresholds, self._children
        for _ in range(self._depth):
            right = vector.take(features.take(nodes)) > thresholds.take(nodes)
            nodes = children.take(2 * nodes + right)
        sizes = self.arrays.leaf_sizes.take(nodes)
        ends = sizes.cumsum()
        indices = np.repeat(self._starts.take(nodes) - ends + sizes, sizes) + np.arange(ends[-1])
        counts = np.bincount(self.arrays.samples.take(indices))
        present = counts.nonzero()[0]
        return LengthDistribution(self._scaled.take(present), counts.take(present))

    def quantiles(
        self, vector: NDArray[np.float32], levels: Sequence[float]
    ) -> NDArray[np.float64]:
        """Output tokens at these levels; shape (len(levels),)."""
        return self.predict(vector).quantiles(levels)


def fit_forest(
    vectors: NDArray[np.float32], output_tokens: NDArray[np.int64], *, seed: int
) -> LengthForest:
    """Fit a forest; the same data and seed give the same arrays. Takes one to two seconds.

    Args:
        vectors: shape (calls, features), finite.
        output_tokens: shape (calls,), 0 or more.
    """
    return LengthForest(arrays_of(fit_regressor(vectors, output_tokens, seed=seed), output_tokens))


def fit_regressor(
    vectors: NDArray[np.float32], output_tokens: NDArray[np.int64], *, seed: int
) -> Any:
    """quantile-forest's regressor, fitted to log(1 + tokens) because lengths differ by factors."""
    # The import (scikit-learn, SciPy) takes seconds and is needed only to fit a model.
    from quantile_forest import RandomForestQuantileRegressor

    regressor = RandomForestQuantileRegressor(
        n_estimators=NUM_TREES,
        min_samples_leaf=MIN_LEAF,
        max_features=FEATURE_SHARE,
        max_depth=MAX_DEPTH,
        max_samples_leaf=None,
        random_state=seed,
    )
    return regressor.fit(vectors, np.log1p(output_tokens.astype(np.float64)))


def arrays_of(regressor: Any, output_tokens: NDArray[np.int64]) -> ForestArrays:
    """The plain arrays of a fitted regressor.

    Args:
        regressor: the result of `fit_regressor`.
        output_tokens: the lengths that it was fitted on.
    """
    trees = [estimator.tree_ for estimator in regressor.estimators_]
    sizes = np.array([tree.node_count for tree in trees], dtype=np.int64)
    nodes = np.concatenate([np.arange(size) for size in sizes])
    is_leaf = np.concatenate([tree.children_left for tree in trees]) < 0
    left = np.concatenate([tree.children_left for tree in trees]) - nodes
    right = np.concatenate([tree.children_right for tree in trees]) - nodes
    lengths = np.unique(output_tokens)
    # By tree, node and slot: 1 + the sample's rank by length, 0 for an empty slot.
    slots = np.asarray(regressor.forest_.y_train_leaves)[:, :, 0, :]
    held = np.concatenate([slots[tree, :size] for tree, size in enumerate(sizes)])
    ranked = np.searchsorted(lengths, np.sort(output_tokens))
    return ForestArrays(
        tree_sizes=sizes,
        features=np.where(is_leaf, LEAF, np.concatenate([tree.feature for tree in trees])),
        thresholds=_rounded_down(
            np.where(is_leaf, 0.0, np.concatenate([tree.threshold for tree in trees]))
        ),
        left=np.where(is_leaf, 0, left),
        right=np.where(is_leaf, 0, right),
        leaf_sizes=(held > 0).sum(axis=1),
        samples=ranked[held[held > 0] - 1],
        lengths=lengths,
        num_features=int(regressor.n_features_in_),
    )


def _rounded_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """The nearest float32 that is not above, so every float32 value stays on its side."""
    nearest = thresholds.astype(np.float32)
    below = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest > thresholds, below, nearest).astype(np.float32)
