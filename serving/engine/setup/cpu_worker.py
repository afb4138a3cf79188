"""vLLM's worker for CPUs, in which a request with a seed may have its prompt read in parts.

What is sampled before a prompt is read whole is thrown away, and vLLM then takes a request's random
numbers back to where they were. Those of a CPU cannot be taken back: vLLM raises, and with it all
that the engine serves ends. So here none of them are drawn for what is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_input_batch import InputBatch


class SeededCpuRunner(CPUModelRunner):
    """Samples without a request's own random numbers what is thrown away."""

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        with self._own_numbers_kept():
            return super()._sample(*args, **kwargs)

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        with self._own_numbers_kept():  # there is nothing to take back
            return super()._bookkeeping_sync(*args, **kwargs)

    @contextmanager
    def _own_numbers_kept(self) -> Iterator[None]:
        batch: InputBatch = self.input_batch
        thrown_away = np.flatnonzero(self.discard_request_mask.np[: batch.num_reqs]).tolist()
        generators = batch.generators
        kept = {place: generators.pop(place) for place in thrown_away if place in generators}
        try:
            yield
        finally:
            generators.update(kept)


class SeededCpuWorker(CPUWorker):
    """The worker that a scheduler of ours needs on a CPU."""

    def init_device(self) -> None:
        """As vLLM's, which makes a runner of one fixed class."""
        super().init_device()
        if type(self.model_runner) is CPUModelRunner:
            self.model_runner.__class__ = SeededCpuRunner
