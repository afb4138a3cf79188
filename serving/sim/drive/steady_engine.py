"""The simulated machine of comparisons: the same steps as VirtualEngine's, simulated faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from serving.sim.drive.steady_decodes import SteadyScheduler
from serving.sim.drive.stepped import Progress
from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine
from serving.step_cost import Composition

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class SteadyEngine(VirtualEngine):
    """A VirtualEngine that spares itself and vLLM the decodes that need no decision."""

    scheduler_class = SteadyScheduler

    def __init__(self, config: VirtualConfig, clock: Callable[[], float]) -> None:
        super().__init__(config, clock)
        self.scheduler.answer_tokens = self._output_tokens

    def plan_step(self) -> Composition:
        """Let the scheduler plan the next step; `finish_step` must follow."""
        composition = super().plan_step()
        steady = self.scheduler.steady
        self._computed |= {request.request_id: request.num_computed_tokens for request in steady}
        if self._recomputing:
            self._recomputing.difference_update(request.request_id for request in steady)
        return composition

    def finish_step(self) -> Progress:
        """Give the scheduler the simulated model output of the planned step."""
        steady = [request.request_id for request in self.scheduler.steady]
        tokens, ended = super().finish_step()
        return Progress((*steady, *tokens), ended)

    def _planned(self, step: SchedulerOutput) -> Mapping[str, int]:
        planned: Mapping[str, int] = self.scheduler.planned
        return planned


class VirtualReplica(SteadyEngine):
    """The production scheduler on a simulated machine, one of several.

    Args:
        clock: returns seconds; each replica has its own, as their steps differ in time.
    """

    def __init__(self, config: VirtualConfig, clock: Callable[[], float]) -> None:
        super().__init__(config, clock)
        self.slots = config.slots
        self.kv_blocks = self.free_blocks
        self.caches_prefixes = config.prefix_caching

    def has_begun(self, request_id: str) -> bool:
        """Whether a request that has not ended has been part of a planned step."""
        request = self.scheduler.requests.get(request_id)
        return request is not None and request.num_computed_tokens > 0
