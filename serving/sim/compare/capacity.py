"""A workload's capacity: how many of its programs fcfs drains a second from a full queue.

Loads are multiples of it. Measured on a backlog of programs that all wait from the start and are
promised nothing, so that nothing is dropped and no policy's choice of what to give up enters. A
program counts by the share of its tokens that was computed, and not when it ends: a backlog's
long programs all end last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import virtual_engine
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.drive.stopping import Drained, StoppingEngine

CAPACITY_SEEDS = (0, 1, 2)
NUM_PROGRAMS = 400
DRAINED = 0.7
"""Of the backlog's tokens; the rest is done by a machine that is no longer full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityExperiment:
    """The drain rate of one seed's backlog."""

    setting: ExperimentConfig
    seed: int
    num_programs: int = NUM_PROGRAMS
    sort: str = field(default="capacity", init=False)

    @property
    def weight(self) -> float:
        """How many programs there are."""
        return float(self.num_programs)

    def key(self) -> dict[str, Any]:
        """All that the capacity depends on but for the code; JSON-safe."""
        return self.setting.machine_key() | {"seed": self.seed, "num_programs": self.num_programs}

    def run(self) -> dict[str, Any]:
        """The rate as a document; raises as Case.run does."""
        clock = VirtualTime()
        programs = self.setting.backlog(num_programs=self.num_programs, seed=self.seed)
        engine = virtual_engine(self.setting, PolicySpec("fcfs"), programs, clock)
        drained = Drained(programs, share=DRAINED, clock=clock)
        replay(
            programs,
            StoppingEngine(engine, drained),
            clock,
            self.setting.machine.step_cost,
            predictions=self.setting.predicts_nothing,
            until_s=float("inf"),
        )
        assert drained.reached_s is not None, "nothing is dropped, so that all tokens come"
        return {"programs_s": DRAINED * self.num_programs / drained.reached_s}


def capacity_of(documents: Sequence[Mapping[str, Any]]) -> float:
    """Programs a second, averaged over the seeds' documents."""
    return sum(float(each["programs_s"]) for each in documents) / len(documents)
