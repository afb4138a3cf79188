"""vLLM's worker for CPUs, extended by chunked prefill of requests with a seed.

vLLM samples a token after each chunk of a prompt and discards it unless the prompt is complete. It
then rewinds the request's random generator. A CPU generator cannot be rewound: vLLM raises, which
ends the engine. So this worker does not use a request's generator for a token that is discarded.
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
    """Samples discarded tokens without the generators of their requests."""

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        with self._without_generators_of_discarded():
            return super()._sample(*args, **kwargs)

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        with self._without_generators_of_discarded():  # nothing to rewind
            return super()._bookkeeping_sync(*args, **kwargs)

    @contextmanager
    def _without_generators_of_discarded(self) -> Iterator[None]:
        batch: InputBatch = self.input_batch
        discarded = np.flatnonzero(self.discard_request_mask.np[: batch.num_reqs]).tolist()
        generators = batch.generators
        removed = {index: generators.pop(index) for index in discarded if index in generators}
        try:
            yield
        finally:
            generators.update(removed)


class SeededCpuWorker(CPUWorker):
    """vLLM's CPU worker with a SeededCpuRunner."""

    def init_device(self) -> None:
        """As vLLM's, which always creates a CPUModelRunner; its class is changed afterwards."""
        super().init_device()
        if type(self.model_runner) is CPUModelRunner:
            self.model_runner.__class__ = SeededCpuRunner
