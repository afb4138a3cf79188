"""The embedded engine with answers of given lengths, counted: to replay workloads on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.engine.setup.config import EngineConfig
from serving.generation import GenerationRequest
from serving.policies.table import PolicySpec
from serving.sim.drive.live_driver import EngineRoom, ForcedRequest
from serving.sim.metrics.metrics import EngineCounters
from serving.step_cost import StepSample

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

END_BIAS = 100.0
"""Added to the logit of the token that ends an answer: the limit of what vLLM takes, and far above
any logit of the demo model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig(EngineConfig):
    """An engine to replay workloads on.

    Attributes:
        kv_tokens: room of the KV cache, in whole blocks.
        block_tokens: tokens of a block; vLLM's CPU attention takes multiples of 32.
        prefix_caching: off, unless calls are meant to share what they have in common.
    """

    kv_tokens: int
    block_tokens: int = 32
    prefix_caching: bool = False

    def vllm_arguments(self, model_path: str, platform: str) -> dict[str, Any]:
        """Those of production, but for the KV cache and a scheduler class that also counts."""
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

    The length is forced by sampling alone: the end token is forbidden until the last one is due
    (vLLM's min_tokens), and from then on it is all but certain (its logit is raised). So the
    engine ends a call by itself, as it does in production, in the step of its last token; policies
    see neither parameter.
    """

    def __init__(self, config: ReplayConfig) -> None:
        super().__init__(config)

    async def room(self) -> EngineRoom:
        """What it has room for."""
        return await self.call(_room)

    async def begin(self, policy: PolicySpec) -> None:
        """Plan by this policy from now on, as if it had just started; the engine must be idle."""

        def work(llm: LLMEngine) -> None:
            assert not llm.has_unfinished_requests(), "who replays begins with an idle engine"
            _counting(llm).begin_anew(policy)

        await self.call(work)

    async def counters(self) -> EngineCounters:
        """What it counted since `begin`."""
        return await self.call(lambda llm: _counting(llm).counted())

    async def samples(self) -> Sequence[StepSample]:
        """The latest steps since `begin`, as measured."""
        return await self.call(lambda llm: _counting(llm).samples())

    def _tokens(self, llm: LLMEngine, request: GenerationRequest) -> list[int]:
        if isinstance(request, ForcedRequest):
            return list(request.prompt_token_ids)
        return super()._tokens(llm, request)

    def _parameters(
        self, llm: LLMEngine, request: GenerationRequest, room_tokens: int
    ) -> SamplingParams:
        params = super()._parameters(llm, request, room_tokens)
        if isinstance(request, ForcedRequest):
            params.min_tokens = request.output_tokens - 1
            params.logit_bias = {llm.get_tokenizer().eos_token_id: END_BIAS}
        return params


def _room(llm: LLMEngine) -> EngineRoom:
    cache, scheduling = llm.vllm_config.cache_config, llm.vllm_config.scheduler_config
    return EngineRoom(
        slots=scheduling.max_num_seqs,
        step_tokens=scheduling.max_num_batched_tokens,
        kv_blocks=cache.num_gpu_blocks,
        block_tokens=cache.block_size,
        max_model_tokens=llm.model_config.max_model_len,
        vocabulary=llm.model_config.get_vocab_size(),
    )


def _counting(llm: LLMEngine) -> Any:
    """Its class derives from vLLM's, so that it cannot be named before vLLM is imported."""
    return scheduler_of(llm)
