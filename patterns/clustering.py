"""Clusters patterns by K-medoids over kernel distances; the medoids represent all patterns.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(offline clustering); Schubert and Rousseeuw (2021), Fast and eager k-medoids clustering
(FasterPAM).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from patterns.errors import NothingToCluster
from patterns.features import Floats


@dataclass(frozen=True, slots=True)
class Clustering:
    """The medoids of some patterns, and the sizes of their clusters.

    Attributes:
        medoids: rows of the medoids, ascending.
        members: size of each medoid's cluster, the medoid included.
    """

    medoids: tuple[int, ...]
    members: tuple[int, ...]


def cluster(distances: Floats, num_clusters: int, *, seed: int = 0) -> Clustering:
    """Choose medoids that minimise the sum of all patterns' distances to the nearest (FasterPAM).

    Args:
        distances: shape (n, n), symmetric, 0 on the diagonal.
        num_clusters: number of medoids, 1 to n.
        seed: the same seed gives the same result.
    Raises:
        NothingToCluster: num_clusters is not within 1 to n.
    """
    num = len(distances)
    if not 1 <= num_clusters <= num:
        raise NothingToCluster(num_clusters, num)
    if num_clusters == num:
        return Clustering(tuple(range(num)), (1,) * num)
    import kmedoids

    # One thread: several threads add in another order, and could select other medoids.
    result = kmedoids.fasterpam(distances, num_clusters, random_state=seed, n_cpu=1)
    return _clustering(distances, np.asarray(result.medoids, dtype=np.int64))


def cluster_by_silhouette(distances: Floats, max_clusters: int, *, seed: int = 0) -> Clustering:
    """As `cluster`, with the number of clusters, up to a maximum, of the best medoid silhouette.

    Of equally good numbers the smallest is taken.

    Raises:
        NothingToCluster: there are no patterns, or `max_clusters` is below 1.
    """
    num = len(distances)
    if num < 1 or max_clusters < 1:
        raise NothingToCluster(max_clusters, num)
    candidates = [
        cluster(distances, number, seed=seed) for number in range(1, min(max_clusters, num) + 1)
    ]
    return max(candidates, key=lambda candidate: _silhouette(distances, candidate))


def _silhouette(distances: Floats, clustering: Clustering) -> float:
    """The medoid silhouette, in [0, 1]: the mean of 1 - a / b over all patterns.

    a is the distance to the nearest medoid, b to the second nearest. A cluster of one counts 0, as
    does a pattern with a = b: otherwise one cluster for each pattern would always be the best.

    Source: Lenssen and Schubert (2022), section 3 (medoid silhouette); Rousseeuw (1987),
    Silhouettes, section 2 (a cluster of one).
    """
    if len(clustering.medoids) < 2:
        return 0.0
    to_medoids = distances[:, list(clustering.medoids)]
    own, other = np.sort(to_medoids, axis=1)[:, :2].T
    width = np.where(other > own, 1.0 - own / np.where(other > 0, other, 1.0), 0.0)
    singles = [
        row for row, size in zip(clustering.medoids, clustering.members, strict=True) if size == 1
    ]
    width[singles] = 0.0
    return float(width.mean())


def _clustering(distances: Floats, medoids: np.ndarray) -> Clustering:
    """Assign each pattern to its nearest medoid; to the first of equally near ones."""
    medoids = np.sort(medoids)
    nearest = np.argmin(distances[:, medoids], axis=1)
    nearest[medoids] = np.arange(len(medoids))  # a medoid is in its own cluster, even with ties
    counts = np.bincount(nearest, minlength=len(medoids))
    return Clustering(tuple(medoids.tolist()), tuple(counts.tolist()))
