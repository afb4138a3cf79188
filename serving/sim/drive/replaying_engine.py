"""The embedded engine with answers of given lengths and counters, to replay workloads on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.engine.setup.config import EngineConfig
from serving.generation import GenerationRequest
from serving.policies.table import PolicySpec
from serving.sim.drive.live_driver import EngineCapacity, ForcedRequest
from serving.sim.metrics.metrics import EngineCounters
from serving.step_cost import StepSample

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    from serving.engine.clients.answers import PendingCall

END_BIAS = 100.0
"""Added to the logit of the end token: the largest bias that vLLM accepts, far above any logit of
the random model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig(EngineConfig):
    """An engine to replay workloads on.

    Attributes:
        kv_tokens: size of the KV cache; rounded down to whole blocks.
        block_tokens: tokens of a block; vLLM's CPU attention requires multiples of 32.
        prefix_caching: whether calls may share the KV cache of a common prefix.
    """

    kv_tokens: int
    block_tokens: int = 32
    prefix_caching: bool = False

    def vllm_arguments(self, model_path: str, platform: str) -> dict[str, Any]:
        """The production arguments with this KV cache and a scheduler class with counters."""
        arguments = EngineConfig.vllm_arguments(self, model_path, platform)
        if platform == "cpu":
            arguments["scheduler_cls"] = "serving.sim.drive.counting_scheduler.CountingScheduler"
        else:
            arguments["scheduler_cls"] = (
                "serving.sim.drive.counting_scheduler.CountingAsyncScheduler"
            )
        return arguments | {
            "block_size": self.block_tokens,
            "num_gpu_blocks_override": self.kv_tokens // self.block_tokens,
            "enable_prefix_caching": self.prefix_caching,
        }


class ReplayingEngine(EmbeddedEngine):
    """Takes prompts as token ids, and ends each answer at its given length.

    Only sampling forces the length: the end token is forbidden before the last position (vLLM's
    min_tokens) and practically certain at it (raised logit). So the engine itself ends a call in
    the step of its last token, as in production. Policies see neither parameter.
    """

    def __init__(self, config: ReplayConfig) -> None:
        super().__init__(config)

    async def capacity(self) -> EngineCapacity:
        """Its capacity."""
        return await self.call(_capacity)

    async def reset(self, policy: PolicySpec) -> None:
        """Use this policy from now on, as if it had just started; the engine must be idle."""

        def work(llm: LLMEngine) -> None:
            assert not llm.has_unfinished_requests(), "a replay needs an idle engine"
            _counting(llm).reset(policy)

        await self.call(work)

    async def counters(self) -> EngineCounters:
        """Its counters since `reset`."""
        return await self.call(lambda llm: _counting(llm).counters())

    async def samples(self) -> Sequence[StepSample]:
        """The latest measured steps since `reset`."""
        return await self.call(lambda llm: _counting(llm).samples())

    def _tokens(self, llm: LLMEngine, request: GenerationRequest) -> list[int]:
        if isinstance(request, ForcedRequest):
            return list(request.prompt_token_ids)
        return super()._tokens(llm, request)

    def _parameters(
        self, llm: LLMEngine, pending: PendingCall, available_tokens: int
    ) -> SamplingParams:
        params, request = super()._parameters(llm, pending, available_tokens), pending.request
        if isinstance(request, ForcedRequest):
            params.min_tokens = request.output_tokens - 1
            params.logit_bias = {llm.get_tokenizer().eos_token_id: END_BIAS}
        return params


def _capacity(llm: LLMEngine) -> EngineCapacity:
    cache, scheduling = llm.vllm_config.cache_config, llm.vllm_config.scheduler_config
    return EngineCapacity(
        slots=scheduling.max_num_seqs,
        step_tokens=scheduling.max_num_batched_tokens,
        kv_blocks=cache.num_gpu_blocks,
        block_tokens=cache.block_size,
        max_model_tokens=llm.model_config.max_model_len,
        vocabulary=llm.model_config.get_vocab_size(),
    )


def _counting(llm: LLMEngine) -> Any:
    """The counting scheduler; Any, as its class cannot be imported before vLLM is."""
    return scheduler_of(llm)
