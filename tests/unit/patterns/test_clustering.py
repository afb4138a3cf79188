"""Every pattern belongs to one medoid, and the obvious groups are found."""

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
    start + 0.1 * place for start, num in ((0, 9), (50, 12), (99, 7)) for place in range(num)
]


def apart(places: list[float]) -> Any:
    """Distances of points on a line."""
    line = np.array(places, dtype=np.float64)
    return np.abs(line[:, None] - line[None, :])


def assert_sound(found: Clustering, num: int) -> None:
    assert sum(found.members) == num
    assert len(found.medoids) == len(found.members)
    assert list(found.medoids) == sorted(set(found.medoids))
    assert all(0 <= medoid < num for medoid in found.medoids)
    assert min(found.members) >= 1


@law
@given(points, st.data())
def test_every_pattern_belongs_to_one_of_as_many_medoids_as_asked_for(
    places: list[float], data: st.DataObject
) -> None:
    num_clusters = data.draw(st.integers(1, len(places)))
    found = cluster(apart(places), num_clusters)
    assert_sound(found, len(places))
    assert len(found.medoids) == num_clusters


@law
@given(points, st.integers(1, 20))
def test_by_silhouette_there_are_at_most_as_many_medoids_as_allowed(
    places: list[float], most: int
) -> None:
    found = cluster_by_silhouette(apart(places), most)
    assert_sound(found, len(places))
    assert len(found.medoids) <= most


@law
@given(points)
def test_as_many_clusters_as_patterns_keep_all(places: list[float]) -> None:
    num = len(places)
    assert cluster(apart(places), num) == Clustering(tuple(range(num)), (1,) * num)


@law
@given(points, st.integers(0, 2**31 - 1), st.data())
def test_the_same_seed_gives_the_same_medoids(
    places: list[float], seed: int, data: st.DataObject
) -> None:
    most = data.draw(st.integers(1, len(places)))
    for choose in (cluster, cluster_by_silhouette):
        assert choose(apart(places), most, seed=seed) == choose(apart(places), most, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_obvious_groups_are_found_whatever_the_seed(seed: int) -> None:
    for found in (
        cluster(apart(THREE_GROUPS), 3, seed=seed),
        cluster_by_silhouette(apart(THREE_GROUPS), 10, seed=seed),
    ):
        assert found.members == (9, 12, 7)
        assert found.medoids[0] == 4  # the middle of the first group


def test_however_many_are_allowed_the_silhouette_keeps_to_the_obvious_groups() -> None:
    """Each alone in its cluster would be nearest to its medoid of all, and stand for nothing."""
    assert cluster_by_silhouette(apart(THREE_GROUPS), len(THREE_GROUPS)).members == (9, 12, 7)


def test_by_silhouette_equal_patterns_are_one_cluster() -> None:
    assert cluster_by_silhouette(np.zeros((5, 5)), 5).members == (5,)


def test_one_cluster_is_led_by_the_middle_one() -> None:
    assert cluster(apart([9.0, 0.0, 5.0, 4.0, 6.0]), 1) == Clustering((2,), (5,))


@both_ways
@pytest.mark.parametrize("num", [1, 2, 3, 4, 9])
def test_equal_patterns_can_be_clustered(choose: Any, num: int) -> None:
    for num_clusters in range(1, num + 1):
        found = choose(np.zeros((num, num)), num_clusters)
        assert_sound(found, num)


@pytest.mark.parametrize("num_clusters", [-1, 0, 4])
def test_more_clusters_than_patterns_or_none_are_refused(num_clusters: int) -> None:
    with pytest.raises(NothingToCluster, match=rf"{num_clusters} clusters of 3"):
        cluster(apart([1.0, 2.0, 3.0]), num_clusters)


@pytest.mark.parametrize(("num", "most"), [(0, 1), (3, 0), (3, -1)])
def test_by_silhouette_no_patterns_and_no_clusters_are_refused(num: int, most: int) -> None:
    with pytest.raises(NothingToCluster):
        cluster_by_silhouette(np.zeros((num, num)), most)


def test_no_patterns_make_no_cluster() -> None:
    with pytest.raises(NothingToCluster):
        cluster(np.zeros((0, 0)), 0)


def test_runs_that_call_otherwise_fall_into_clusters_of_their_own() -> None:
    plans = [chain(("plan", tokens, 1.0), ("act", tokens, 1.0)) for tokens in (90, 100, 110)]
    drafts = [chain(("draft", tokens, 1.0), ("act", tokens, 1.0)) for tokens in (90, 100, 110, 120)]
    found = cluster(distances(tabulate([*plans, *drafts]), StageKernel()), 2)
    assert found.members == (3, 4)


def test_a_thousand_patterns_are_clustered_the_same_on_any_number_of_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From a thousand on the package would take all cores, and add up in another order."""
    places = np.random.default_rng(0).normal(size=1000).tolist()
    found = []
    for cores in (1, 4):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        found.append(cluster(apart(places), 20))
    assert found[0] == found[1]
