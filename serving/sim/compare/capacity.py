"""A workload's capacity: programs per second that fcfs drains from a full queue.

Loads are multiples of it. It is measured on a backlog of programs that all wait from the start and
have no SLO: none is dropped, so no policy's choice of what to drop matters. A program counts by the
share of its tokens that is computed, not when it ends: the long programs of a backlog all end last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import virtual_engine
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.drive.stopping import DrainCondition, StoppingEngine
from serving.sim.workloads.tasks import BACKLOG_PROGRAMS

CAPACITY_SEEDS = (0, 1, 2)
DRAINED_SHARE = 0.7
"""Share of the backlog's tokens over which the rate is measured; afterwards the batch empties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityExperiment:
    """The drain rate of one seed's backlog."""

    config: ExperimentConfig
    seed: int
    num_programs: int = BACKLOG_PROGRAMS
    kind: str = field(default="capacity", init=False)

    @property
    def weight(self) -> float:
        """The number of programs."""
        return float(self.num_programs)

    def key(self) -> dict[str, Any]:
        """Everything that the capacity depends on, except the code; JSON-safe."""
        return self.config.machine_key() | {"seed": self.seed, "num_programs": self.num_programs}

    def run(self) -> dict[str, Any]:
        """The rate as a document; raises like Experiment.run."""
        clock = VirtualTime()
        programs = self.config.backlog(num_programs=self.num_programs, seed=self.seed)
        engine = virtual_engine(self.config, PolicySpec("fcfs"), programs, clock)
        drained = DrainCondition(programs, share=DRAINED_SHARE, clock=clock)
        replay(
            programs,
            StoppingEngine(engine, drained),
            clock,
            self.config.machine.step_cost,
            predictor=self.config.no_predictions,
            until_s=float("inf"),
        )
        assert drained.reached_s is not None, "nothing is dropped, so all tokens are computed"
        return {"programs_s": DRAINED_SHARE * self.num_programs / drained.reached_s}


def measurements_of(config: ExperimentConfig) -> list[CapacityExperiment]:
    """The experiments that measure a config's capacity; `capacity_of` takes their documents."""
    num_programs = config.source.backlog_programs
    return [
        CapacityExperiment(config=config, seed=seed, num_programs=num_programs)
        for seed in CAPACITY_SEEDS
    ]


def capacity_of(documents: Sequence[Mapping[str, Any]]) -> float:
    """Programs per second, averaged over the seeds' documents."""
    return sum(float(each["programs_s"]) for each in documents) / len(documents)
