"""Benchmarks that build their own loads: all counted programs are decided when a run ends."""

from __future__ import annotations

import pytest

from benchmarks import replicas
from benchmarks.fairness import WARMUP_S, WINDOW_S
from benchmarks.floods import FLOODER, FLOODS, NO_FLOOD, load_with_flood
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.programs.programs import Program
from serving.sim.workloads.load_generator import GeneratedLoad, Source, outcome_known_s
from serving.slo import SloKind


def counted(load: GeneratedLoad) -> list[Program]:
    from_s, to_s = load.window_s
    return [each for each in load.programs if from_s <= each.arrival_s < to_s]


def is_decided(load: GeneratedLoad) -> bool:
    """And programs arrive until then, so that the machine does not empty before."""
    last_s = max(each.arrival_s for each in load.programs)
    decided = max(map(outcome_known_s, counted(load))) <= load.decided_s
    return decided and load.decided_s - 15.0 < last_s < load.decided_s


@pytest.mark.parametrize("flood", [NO_FLOOD, *FLOODS])
def test_with_and_without_a_flood_every_counted_program_is_decided(flood: str) -> None:
    config = ExperimentConfig(
        source=Source.generator("mixed"), window_s=WINDOW_S, warmup_s=WARMUP_S
    )
    load = load_with_flood(config, flood, 1.4, 0)
    assert is_decided(load)
    assert any(each.kind is SloKind.COMPOUND for each in counted(load))
    flood_programs = [each for each in load.programs if each.user == FLOODER]
    if flood != NO_FLOOD:
        assert max(each.arrival_s for each in flood_programs) > load.decided_s - 1.0
    others = [each for each in load.programs if each.user != FLOODER]
    assert others == list(load_with_flood(config, NO_FLOOD, 1.4, 0).programs)


@pytest.mark.parametrize("count", [1, 4])
def test_with_several_replicas_every_counted_program_is_decided(count: int) -> None:
    config = replicas.ReplicaConfig("mixed", 2.01, 10.0, 60.0, 256, 2.0)
    load = replicas.load_of(config, replicas.Cell("fcfs", 1.0, count, "none", 0))
    assert load.window_s == (10.0, 70.0)
    assert is_decided(load)
    assert any(each.kind is SloKind.COMPOUND for each in counted(load))
    rate_per_s = 2.01 * replicas.capacity(count, 2.0)
    assert len(load.programs) == pytest.approx(rate_per_s * load.decided_s, rel=0.2)
