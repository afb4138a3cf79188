"""The pattern library: reuse counts, eviction, compaction, and tables equal to the patterns."""

import dataclasses
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import KeptPattern, NothingToCluster, PatternLibrary, PatternTable, Stage, tabulate
from patterns.library import DECAY_PER_HOUR, HOT_S, decayed
from tests.unit.patterns.pattern_strategies import chain, law, many_runs, runs

Run = tuple[Stage, ...]
HOUR_S = 3600.0
STAGES = chain(("plan", 10, 1.0), ("act", 20, 2.0))

ages = st.floats(0.0, 100 * HOUR_S)
kept_patterns = st.lists(
    st.builds(
        KeptPattern,
        key=st.integers(0, 1000),
        stages=st.just(STAGES),
        recorded_at_s=ages | st.sampled_from([0.0, HOUR_S, 2 * HOUR_S]),
        used_at_s=ages,
        uses=st.floats(0.0, 100.0) | st.just(0.0),
    ),
    max_size=12,
    unique_by=lambda pattern: pattern.key,
)


def library_of(past: Sequence[Run]) -> PatternLibrary:
    return PatternLibrary(tuple(KeptPattern(key, run, 0.0) for key, run in enumerate(past)))


def assert_equal(left: PatternTable, right: PatternTable) -> None:
    for field in dataclasses.fields(PatternTable):
        one, other = getattr(left, field.name), getattr(right, field.name)
        if isinstance(one, np.ndarray):
            assert one.shape == other.shape
            assert (one == other).all()
        else:
            assert one == other


def test_a_use_counts_its_amount_and_decays_by_a_tenth_per_hour() -> None:
    library = library_of([STAGES, STAGES])
    once = library.used({0: 0.5}, 0.0)
    twice = once.used({0: 1.0}, HOUR_S)
    thrice = twice.used({0: 1.0}, 3 * HOUR_S)
    assert [once.patterns[0].uses, twice.patterns[0].uses] == pytest.approx([1.5, 2.35])
    assert thrice.patterns[0].uses == pytest.approx(2.35 * 0.81 + 1.0)
    assert thrice.patterns[0].used_at_s == 3 * HOUR_S
    assert thrice.patterns[1] == library.patterns[1]


@law
@given(st.floats(0.0, 1e6), ages, ages)
def test_decaying_twice_equals_decaying_once_over_both_times(
    uses: float, first_s: float, then_s: float
) -> None:
    once = decayed(uses, first_s + then_s)
    assert decayed(decayed(uses, first_s), then_s) == pytest.approx(once)
    assert 0.0 <= once <= uses
    assert decayed(uses, HOUR_S) == uses * DECAY_PER_HOUR


@law
@given(kept_patterns, ages, st.dictionaries(st.integers(0, 1000), st.floats(0.0, 1.0)))
def test_only_the_counts_of_used_patterns_increase(
    patterns: list[KeptPattern], at_s: float, amounts: dict[int, float]
) -> None:
    library = PatternLibrary(tuple(patterns))
    for before, after in zip(library.patterns, library.used(amounts, at_s).patterns, strict=True):
        if before.key not in amounts:
            assert after == before
            continue
        assert amounts[before.key] <= after.uses <= before.uses + amounts[before.key]
        assert after.used_at_s == max(before.used_at_s, at_s)
        assert dataclasses.replace(after, uses=before.uses, used_at_s=before.used_at_s) == before


def test_a_clock_that_went_back_neither_decays_counts_nor_moves_the_last_use_back() -> None:
    library = PatternLibrary((KeptPattern(0, STAGES, HOUR_S, uses=3.0),))
    (pattern,) = library.used({0: 1.0}, 0.0).patterns
    assert (pattern.uses, pattern.used_at_s) == (4.0, HOUR_S)


@law
@given(kept_patterns, ages, st.integers(0, 12))
def test_eviction_keeps_patterns_used_in_the_last_hour_and_then_the_highest_reuse_rates(
    patterns: list[KeptPattern], now_s: float, capacity: int
) -> None:
    library = PatternLibrary(tuple(patterns))
    left = library.evicted(now_s, capacity=capacity)
    assert len(left) == min(capacity, len(patterns))
    kept = {pattern.key for pattern in left.patterns}
    assert left.patterns == tuple(pattern for pattern in patterns if pattern.key in kept)
    dropped = [pattern for pattern in patterns if pattern.key not in kept]

    def is_hot(pattern: KeptPattern) -> bool:
        return now_s - pattern.used_at_s <= HOT_S

    if any(map(is_hot, dropped)):
        assert all(map(is_hot, left.patterns))

    for evicted in dropped:
        for pattern in left.patterns:
            assert is_hot(pattern) or pattern.reuse_rate(now_s) >= evicted.reuse_rate(now_s)


@law
@given(kept_patterns, ages, st.integers(0, 12), st.randoms(use_true_random=False))
def test_eviction_does_not_depend_on_the_order_of_the_patterns(
    patterns: list[KeptPattern], now_s: float, capacity: int, rng: random.Random
) -> None:
    shuffled = rng.sample(patterns, len(patterns))
    one = PatternLibrary(tuple(patterns)).evicted(now_s, capacity=capacity)
    other = PatternLibrary(tuple(shuffled)).evicted(now_s, capacity=capacity)
    assert {pattern.key for pattern in one.patterns} == {pattern.key for pattern in other.patterns}
    assert one.evicted(now_s, capacity=capacity) == one


def test_a_pattern_used_in_the_last_hour_is_kept_rather_than_an_often_used_one() -> None:
    old = KeptPattern(0, STAGES, 0.0, uses=1000.0)
    new = KeptPattern(1, STAGES, 0.0, uses=0.0, used_at_s=HOT_S + 1.0)
    left = PatternLibrary((old, new)).evicted(HOT_S + 1.0, capacity=1)
    assert left.patterns == (new,)


def test_of_equally_used_patterns_the_lowest_key_is_evicted() -> None:
    same = [KeptPattern(key, STAGES, 0.0) for key in (5, 3, 9)]
    left = PatternLibrary(tuple(same)).evicted(0.0, capacity=2)
    assert [pattern.key for pattern in left.patterns] == [5, 9]


@law
@given(many_runs, many_runs, many_runs)
def test_an_extended_library_equals_one_built_at_once(
    first: list[Run], then: list[Run], last: list[Run]
) -> None:
    def kept(past: list[Run], start: int) -> list[KeptPattern]:
        return [KeptPattern(start + index, run, 0.0) for index, run in enumerate(past)]

    extended = library_of(first)
    assert len(extended.table) == len(first)
    extended = extended.added(kept(then, 100)).added([]).added(kept(last, 200))
    full_table = tabulate([*first, *then, *last])
    assert_equal(extended.table, full_table)
    assert_equal(library_of([]).added(kept(first, 0)).table, tabulate(first))
    built = PatternLibrary(extended.patterns)
    assert built == extended
    assert_equal(built.table, extended.table)


@law
@given(many_runs, st.integers(0, 8))
def test_after_every_operation_the_table_equals_the_patterns(
    past: list[Run], capacity: int
) -> None:
    library = library_of(past).added([KeptPattern(100, STAGES, 0.0)])
    for changed in (
        library.used({0: 1.0, 100: 0.5}, HOUR_S),
        library.evicted(HOUR_S, capacity=capacity),
        library.fitted(),
        library.compacted(3),
        library.compacted(3, by_silhouette=True),
    ):
        assert_equal(changed.table, tabulate([pattern.stages for pattern in changed.patterns]))
        weights = [pattern.weight for pattern in changed.patterns]
        assert changed.matcher.weights.tolist() == weights
    assert library.fitted().matcher.kernel == library.fitted().kernel


@law
@given(many_runs, st.integers(1, 10), st.booleans(), st.integers(0, 100))
def test_the_weights_of_the_medoids_sum_to_the_number_of_patterns(
    past: list[Run], max_patterns: int, by_silhouette: bool, seed: int
) -> None:
    library = library_of(past)
    compact = library.compacted(max_patterns, by_silhouette=by_silhouette, seed=seed)
    assert len(compact) <= max_patterns
    assert sum(pattern.weight for pattern in compact.patterns) == len(past)
    keys = {pattern.key for pattern in library.patterns}
    assert {pattern.key for pattern in compact.patterns} <= keys
    assert compact == library.compacted(max_patterns, by_silhouette=by_silhouette, seed=seed)
    if len(past) <= max_patterns and not by_silhouette:
        assert compact == library


def test_a_medoid_keeps_its_own_uses() -> None:
    used = library_of([STAGES] * 3).used({0: 2.0, 1: 2.0, 2: 2.0}, 0.0)
    (medoid,) = used.compacted(1).patterns
    assert (medoid.weight, medoid.uses, medoid.used_at_s) == (3.0, 3.0, 0.0)


@pytest.mark.parametrize("every_s", [60.0, HOUR_S, 6 * HOUR_S, 7 * 24 * HOUR_S])
def test_a_full_library_keeps_the_newest_runs_if_all_are_used_equally(every_s: float) -> None:
    """At every interval between runs, although each run uses every pattern."""
    library, now_s = PatternLibrary(), 0.0
    for key in range(1, 201):
        now_s += every_s
        amounts = {pattern.key: 1.0 for pattern in library.patterns}
        library = library.used(amounts, now_s).added([KeptPattern(key, STAGES, now_s)])
        if key % 10 == 0:
            library = library.evicted(now_s, capacity=50)
    assert [pattern.key for pattern in library.patterns] == list(range(151, 201))


def test_a_pattern_that_is_used_again_and_again_is_kept_rather_than_unused_ones() -> None:
    library, now_s = PatternLibrary((KeptPattern(0, STAGES, 0.0),)), 0.0
    for key in range(1, 201):
        now_s += 2 * HOUR_S
        library = library.used({0: 1.0}, now_s).added([KeptPattern(key, STAGES, now_s)])
        library = library.evicted(now_s + 2 * HOUR_S, capacity=20)
    assert 0 in {pattern.key for pattern in library.patterns}


def test_compacting_a_compacted_library_counts_each_medoid_once() -> None:
    compact = library_of([STAGES] * 4).compacted(2)
    assert [pattern.weight for pattern in compact.compacted(2).patterns] == [1.0, 1.0]


def test_compacting_to_0_patterns_is_refused_unless_the_library_is_empty() -> None:
    with pytest.raises(NothingToCluster):
        library_of([STAGES]).compacted(0)
    assert len(PatternLibrary().compacted(0)) == 0
    assert len(PatternLibrary().evicted(0.0)) == len(PatternLibrary().fitted()) == 0


def test_two_patterns_with_the_same_key_fail_an_assertion() -> None:
    with pytest.raises(AssertionError, match="one pattern"):
        PatternLibrary((KeptPattern(1, STAGES, 0.0),) * 2)


@law
@given(many_runs, runs)
def test_a_library_is_immutable(past: list[Run], added: Run) -> None:
    library = library_of(past)
    before = library.patterns
    rows = library.table.features.copy()
    library.used(range(3), 1.0)
    library.evicted(1.0, capacity=1)
    library.added([KeptPattern(100, added, 0.0)])
    library.fitted()
    library.compacted(1)
    assert library.patterns == before
    assert (library.table.features == rows).all()
