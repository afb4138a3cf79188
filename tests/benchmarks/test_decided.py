"""Benchmarks that make their own offers: what counts is decided when they stop looking."""

from __future__ import annotations

import pytest

from benchmarks import replicas
from benchmarks.fairness import WARMUP_S, WINDOW_S
from benchmarks.floods import FLOODER, FLOODS, NO_FLOOD, offered_to
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.programs.programs import Program
from serving.sim.workloads.load_generator import GeneratedLoad, Source, outcome_known_s
from serving.slo import SloKind


def counted(offered: GeneratedLoad) -> list[Program]:
    from_s, to_s = offered.window_s
    return [each for each in offered.programs if from_s <= each.arrival_s < to_s]


def is_decided(offered: GeneratedLoad) -> bool:
    """And arrivals go on until then, so that the last have no emptying machine to themselves."""
    last_s = max(each.arrival_s for each in offered.programs)
    decided = max(map(outcome_known_s, counted(offered))) <= offered.decided_s
    return decided and offered.decided_s - 15.0 < last_s < offered.decided_s


@pytest.mark.parametrize("flood", [NO_FLOOD, *FLOODS])
def test_with_a_flood_or_without_every_fate_is_decided(flood: str) -> None:
    setting = ExperimentConfig(
        source=Source.generator("mixed"), window_s=WINDOW_S, warmup_s=WARMUP_S
    )
    offered = offered_to(setting, flood, 1.4, 0)
    assert is_decided(offered)
    assert any(each.kind is SloKind.COMPOUND for each in counted(offered))
    flooding = [each for each in offered.programs if each.user == FLOODER]
    if flood != NO_FLOOD:
        assert max(each.arrival_s for each in flooding) > offered.decided_s - 1.0
    plain = [each for each in offered.programs if each.user != FLOODER]
    assert plain == list(offered_to(setting, NO_FLOOD, 1.4, 0).programs)


@pytest.mark.parametrize("count", [1, 4])
def test_replicas_are_watched_until_every_fate_is_decided(count: int) -> None:
    setting = replicas.Setting("mixed", 2.01, 10.0, 60.0, 256, 2.0)
    offered = replicas.offered_to(setting, replicas.Cell("fcfs", 1.0, count, "none", 0))
    assert offered.window_s == (10.0, 70.0)
    assert is_decided(offered)
    assert any(each.kind is SloKind.COMPOUND for each in counted(offered))
    rate_per_s = 2.01 * replicas.capacity(count, 2.0)
    assert len(offered.programs) == pytest.approx(rate_per_s * offered.decided_s, rel=0.2)
