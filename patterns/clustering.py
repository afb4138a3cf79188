"""Many patterns -> few that stand for them: K-medoids over kernel distances.

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
    """Which patterns stand for which.

    Attributes:
        medoids: rows of those that stand for others, ascending.
        members: how many patterns each of them stands for, itself included.
    """

    medoids: tuple[int, ...]
    members: tuple[int, ...]


def cluster(distances: Floats, num_clusters: int, *, seed: int = 0) -> Clustering:
    """Choose so many patterns that the distances of all to their nearest are least (FasterPAM).

    Args:
        distances: shape (n, n), symmetric, 0 on the diagonal.
        num_clusters: 1 to n.
        seed: same seed, same result.
    Raises:
        NothingToCluster: num_clusters is not within 1 to n.
    """
    num = len(distances)
    if not 1 <= num_clusters <= num:
        raise NothingToCluster(num_clusters, num)
    if num_clusters == num:
        return Clustering(tuple(range(num)), (1,) * num)
    import kmedoids

    # One thread: more of them add up in another order, and so could choose otherwise.
    found = kmedoids.fasterpam(distances, num_clusters, random_state=seed, n_cpu=1)
    return _clustering(distances, np.asarray(found.medoids, dtype=np.int64))


def cluster_by_silhouette(distances: Floats, most: int, *, seed: int = 0) -> Clustering:
    """The same with the number of clusters, up to `most`, whose medoid silhouette is best.

    Of equally good numbers the smallest.

    Raises:
        NothingToCluster: there are no patterns, or `most` is below 1.
    """
    num = len(distances)
    if num < 1 or most < 1:
        raise NothingToCluster(most, num)
    tried = [cluster(distances, number, seed=seed) for number in range(1, min(most, num) + 1)]
    return max(tried, key=lambda found: _silhouette(distances, found))


def _silhouette(distances: Floats, found: Clustering) -> float:
    """Mean over all patterns of 1 - a / b, a to the nearest medoid and b to the next, in [0, 1].

    What is alone in its cluster counts 0, and so does what is as near to two medoids: otherwise
    it would always be best to make every pattern a cluster of its own.

    Source: Lenssen and Schubert (2022), section 3 (medoid silhouette); Rousseeuw (1987),
    Silhouettes, section 2 (a cluster of one).
    """
    if len(found.medoids) < 2:
        return 0.0
    to_medoids = distances[:, list(found.medoids)]
    own, other = np.sort(to_medoids, axis=1)[:, :2].T
    width = np.where(other > own, 1.0 - own / np.where(other > 0, other, 1.0), 0.0)
    alone = [row for row, size in zip(found.medoids, found.members, strict=True) if size == 1]
    width[alone] = 0.0
    return float(width.mean())


def _clustering(distances: Floats, medoids: np.ndarray) -> Clustering:
    """Each pattern belongs to its nearest medoid; to the first among equals."""
    medoids = np.sort(medoids)
    nearest = np.argmin(distances[:, medoids], axis=1)
    nearest[medoids] = np.arange(len(medoids))  # equal patterns could be medoids of one another
    counts = np.bincount(nearest, minlength=len(medoids))
    return Clustering(tuple(medoids.tolist()), tuple(counts.tolist()))
