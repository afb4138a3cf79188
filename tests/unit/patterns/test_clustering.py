"""Every pattern belongs to one medoid, and well-separated groups become clusters."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import (
    Clustering,
    NothingToCluster,
    StageKernel,
    cluster,
    cluster_by_silhouette,
    distances,
    tabulate,
)
from tests.unit.patterns.pattern_strategies import chain, law

points = st.lists(st.integers(0, 5) | st.floats(0.0, 100.0), min_size=1, max_size=12)
both_ways = pytest.mark.parametrize("choose", [cluster, cluster_by_silhouette])

THREE_GROUPS = [
    start + 0.1 * index for start, num in ((0, 9), (50, 12), (99, 7)) for index in range(num)
]


def distances_on_line(positions: list[float]) -> Any:
    """Distances of points on a line, shape (n, n)."""
    line = np.array(positions, dtype=np.float64)
    return np.abs(line[:, None] - line[None, :])


def assert_valid(clustering: Clustering, num: int) -> None:
    assert sum(clustering.members) == num
    assert len(clustering.medoids) == len(clustering.members)
    assert list(clustering.medoids) == sorted(set(clustering.medoids))
    assert all(0 <= medoid < num for medoid in clustering.medoids)
    assert min(clustering.members) >= 1


@law
@given(points, st.data())
def test_every_pattern_belongs_to_one_of_the_requested_number_of_medoids(
    positions: list[float], data: st.DataObject
) -> None:
    num_clusters = data.draw(st.integers(1, len(positions)))
    clustering = cluster(distances_on_line(positions), num_clusters)
    assert_valid(clustering, len(positions))
    assert len(clustering.medoids) == num_clusters


@law
@given(points, st.integers(1, 20))
def test_by_silhouette_there_are_at_most_as_many_medoids_as_allowed(
    positions: list[float], max_clusters: int
) -> None:
    clustering = cluster_by_silhouette(distances_on_line(positions), max_clusters)
    assert_valid(clustering, len(positions))
    assert len(clustering.medoids) <= max_clusters


@law
@given(points)
def test_with_as_many_clusters_as_patterns_every_pattern_is_a_medoid(
    positions: list[float],
) -> None:
    num = len(positions)
    clustering = cluster(distances_on_line(positions), num)
    assert clustering == Clustering(tuple(range(num)), (1,) * num)


@law
@given(points, st.integers(0, 2**31 - 1), st.data())
def test_the_same_seed_gives_the_same_medoids(
    positions: list[float], seed: int, data: st.DataObject
) -> None:
    num = data.draw(st.integers(1, len(positions)))
    distance_matrix = distances_on_line(positions)
    for choose in (cluster, cluster_by_silhouette):
        assert choose(distance_matrix, num, seed=seed) == choose(distance_matrix, num, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_separated_groups_are_found_with_every_seed(seed: int) -> None:
    distance_matrix = distances_on_line(THREE_GROUPS)
    for clustering in (
        cluster(distance_matrix, 3, seed=seed),
        cluster_by_silhouette(distance_matrix, 10, seed=seed),
    ):
        assert clustering.members == (9, 12, 7)
        assert clustering.medoids[0] == 4  # the middle of the first group


def test_the_silhouette_prefers_separated_groups_to_one_cluster_for_each_pattern() -> None:
    """In a cluster of its own every pattern has distance 0 to its medoid."""
    clustering = cluster_by_silhouette(distances_on_line(THREE_GROUPS), len(THREE_GROUPS))
    assert clustering.members == (9, 12, 7)


def test_by_silhouette_equal_patterns_are_one_cluster() -> None:
    assert cluster_by_silhouette(np.zeros((5, 5)), 5).members == (5,)


def test_the_medoid_of_a_single_cluster_is_the_middle_pattern() -> None:
    assert cluster(distances_on_line([9.0, 0.0, 5.0, 4.0, 6.0]), 1) == Clustering((2,), (5,))


@both_ways
@pytest.mark.parametrize("num", [1, 2, 3, 4, 9])
def test_equal_patterns_can_be_clustered(choose: Any, num: int) -> None:
    for num_clusters in range(1, num + 1):
        clustering = choose(np.zeros((num, num)), num_clusters)
        assert_valid(clustering, num)


@pytest.mark.parametrize("num_clusters", [-1, 0, 4])
def test_more_clusters_than_patterns_or_none_are_refused(num_clusters: int) -> None:
    with pytest.raises(NothingToCluster, match=rf"{num_clusters} clusters of 3"):
        cluster(distances_on_line([1.0, 2.0, 3.0]), num_clusters)


@pytest.mark.parametrize(("num", "max_clusters"), [(0, 1), (3, 0), (3, -1)])
def test_by_silhouette_no_patterns_and_no_clusters_are_refused(num: int, max_clusters: int) -> None:
    with pytest.raises(NothingToCluster):
        cluster_by_silhouette(np.zeros((num, num)), max_clusters)


def test_clustering_no_patterns_is_refused() -> None:
    with pytest.raises(NothingToCluster):
        cluster(np.zeros((0, 0)), 0)


def test_runs_with_different_calls_are_in_different_clusters() -> None:
    plans = [chain(("plan", tokens, 1.0), ("act", tokens, 1.0)) for tokens in (90, 100, 110)]
    drafts = [chain(("draft", tokens, 1.0), ("act", tokens, 1.0)) for tokens in (90, 100, 110, 120)]
    clustering = cluster(distances(tabulate([*plans, *drafts]), StageKernel()), 2)
    assert clustering.members == (3, 4)


def test_a_thousand_patterns_are_clustered_the_same_on_any_number_of_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From 1,000 points on, kmedoids would use all cores by default, and add in another order."""
    positions = np.random.default_rng(0).normal(size=1000).tolist()
    clusterings = []
    for cores in (1, 4):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        clusterings.append(cluster(distances_on_line(positions), 20))
    assert clusterings[0] == clusterings[1]
