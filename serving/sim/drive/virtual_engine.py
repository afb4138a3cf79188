"""The production scheduler class without a model, stepped in virtual time.

The driver owns the clock. vLLM's own scheduler plans a step under our scheduler class. The model's
output is simulated: one token for each request with a complete context, more if drafts are
accepted, and the end token at the request's true length. Policies do not see that length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine import FinishReason
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from serving.engine.scheduler.scheduler import SloScheduler
from serving.engine.setup.config import EngineConfig
from serving.engine.setup.random_model import ensure_random_model
from serving.policies.table import PolicySpec
from serving.sim.drive.stepped import Ended, Progress
from serving.sim.programs.call_slos import PART_END
from serving.slo import Slo, to_tags
from serving.step_cost import Composition

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

WORD, _END = 7, 1
"""Token ids: of every output token, and of the end of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualConfig:
    """The capacity of a simulated machine, and its policy.

    Attributes:
        slots: requests that may hold a slot of the model runner at once.
        step_tokens: most tokens that one step may compute.
        kv_blocks: blocks of the KV cache, of `block_tokens` tokens each.
        max_model_tokens: longest context, prompt and answer; the default fits the longest calls of
            serving.sim.workloads.workloads.
        drafted_tokens: drafts per decode; 0: no speculative decoding.
        accepted_tokens: drafts per decode that are accepted.
    """

    policy: PolicySpec = field(default_factory=PolicySpec)
    slots: int = 256
    step_tokens: int = 2048
    kv_blocks: int = 29205
    block_tokens: int = 16
    max_model_tokens: int = 65536
    prefix_caching: bool = False
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class VirtualEngine:
    """The production scheduler on a simulated machine.

    Args:
        clock: returns seconds; the scheduler reads it instead of the machine's clock.
    """

    scheduler_class: type[Any] = SloScheduler

    def __init__(self, config: VirtualConfig, clock: Callable[[], float]) -> None:
        vllm_config = _engine_arguments(config).create_engine_config()
        vllm_config.cache_config.num_gpu_blocks = config.kv_blocks
        self.scheduler: Any = self.scheduler_class(
            vllm_config,
            _kv_cache(config),
            StructuredOutputManager(vllm_config),
            block_size=config.block_tokens,
        )
        self._block_hasher = _block_hasher(config, vllm_config)
        self.scheduler.lifecycle.ledger.clock = clock
        self._clock = clock
        self._config = config
        self._output_tokens: dict[str, int] = {}  # until the end of the present part
        self._second_parts: dict[str, int] = {}  # until the end of a part that has not begun
        self._step: SchedulerOutput | None = None
        self._computed: dict[str, int] = {}  # request id -> longest context ever computed
        self._recomputing: set[str] = set()
        self.preemptions = 0
        self.recomputed_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a step is needed."""
        return bool(self.scheduler.has_requests())

    @property
    def free_blocks(self) -> int:
        """Free KV blocks."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def submit(
        self,
        request_id: str,
        *,
        prompt: list[int],
        output_tokens: int,
        slo: Slo,
        max_tokens: int,
        whole_tokens: int | None = None,
    ) -> None:
        """Take a request.

        Args:
            output_tokens: its true length, at least 1; the scheduler does not see it.
            whole_tokens: the true length of the first of its answer's two parts, at least 1, below
                output_tokens; None: it has one.
            max_tokens: its limit, at least output_tokens; policies see it.
        """
        assert 1 <= output_tokens <= max_tokens, "an answer has 1 to max_tokens tokens"
        assert len(prompt) + output_tokens <= self._config.max_model_tokens, (
            "prompt and answer must fit the model's context"
        )
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=[_END],
            detokenize=False,
            extra_args=to_tags(slo) or None,
        )
        self._output_tokens[request_id] = output_tokens
        if whole_tokens:
            self._output_tokens[request_id] = whole_tokens
            self._second_parts[request_id] = output_tokens
        request = Request(
            request_id,
            prompt,
            params,
            None,
            arrival_time=self._clock(),
            block_hasher=self._block_hasher,
        )
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        """Abort a request, as if its caller had disconnected."""
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self._forget(request_id)

    def plan_step(self) -> Composition:
        """Let the scheduler plan the next step; `finish_step` must follow."""
        assert self._step is None, "a step must be finished before the next is planned"
        self._step = self.scheduler.schedule()
        for request_id, tokens in self._planned(self._step).items():
            request = self.scheduler.requests[request_id]
            drafts = len(self._step.scheduled_spec_decode_tokens.get(request_id, ()))
            context = request.num_computed_tokens - tokens
            self._count_recomputed(request_id, context, tokens - drafts)
        composition: Composition = self.scheduler.composition
        return composition

    def decode_contexts(self) -> list[int]:
        """Context tokens of each request that decodes in the planned step."""
        assert self._step is not None, "a step must be planned"
        requests = self.scheduler.requests
        drafts = self._step.scheduled_spec_decode_tokens
        contexts = []
        for request_id, tokens in self._step.num_scheduled_tokens.items():
            request = requests[request_id]
            context = request.num_computed_tokens - tokens
            own_tokens = tokens - len(drafts.get(request_id, ()))
            if own_tokens == 1 and context >= request.num_prompt_tokens:
                contexts.append(context)
        return contexts

    def finish_step(self) -> Progress:
        """Give the scheduler the simulated model output of the planned step."""
        step, self._step = self._step, None
        assert step is not None, "a step must be planned before it is finished"
        ids = list(self._planned(step))
        drafts = step.scheduled_spec_decode_tokens
        sampled = [self._sampled(each, len(drafts.get(each, ()))) for each in ids]
        outputs = self.scheduler.update_from_output(
            step,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
                sampled_token_ids=sampled,
            ),
        )
        tokens = tuple(each for each, new in zip(ids, sampled, strict=True) for _ in new)
        self._draft(dict.fromkeys(tokens))
        ended = []
        for batch in outputs.values():
            for output in batch.outputs:
                if output.finish_reason is not None:
                    self._forget(output.request_id)
                    ended.append(_ended(output))
        return Progress(tokens, tuple(ended))

    def _planned(self, step: SchedulerOutput) -> Mapping[str, int]:
        """Request id -> its tokens in a step, of the requests that have an output to simulate."""
        planned: Mapping[str, int] = step.num_scheduled_tokens
        return planned

    def _count_recomputed(self, request_id: str, context: int, tokens: int) -> None:
        """A request with a shorter context than it once had has lost KV cache."""
        computed = self._computed.get(request_id, 0)
        if context < computed:
            self.preemptions += request_id not in self._recomputing
            self._recomputing.add(request_id)
            self.recomputed_tokens += min(computed, context + tokens) - context
        else:
            self._recomputing.discard(request_id)
        self._computed[request_id] = max(computed, context + tokens)

    def _forget(self, request_id: str) -> None:
        self._output_tokens.pop(request_id, None)
        self._second_parts.pop(request_id, None)
        self._computed.pop(request_id, None)
        self._recomputing.discard(request_id)

    def _sampled(self, request_id: str, num_drafts: int) -> list[int]:
        """A request's next tokens, with accepted drafts; none until its context is complete."""
        request = self.scheduler.requests[request_id]
        if request.num_computed_tokens - num_drafts < request.num_tokens:
            return []
        remaining = self._output_tokens[request_id] - request.num_output_tokens
        count = min(1 + min(num_drafts, self._config.accepted_tokens), remaining)
        if count < remaining:
            return [WORD] * count
        if request_id not in self._second_parts:
            return [WORD] * (count - 1) + [_END]
        self._output_tokens[request_id] = self._second_parts.pop(request_id)
        return [WORD] * (count - 1) + [PART_END]

    def _draft(self, request_ids: Iterable[str]) -> None:
        """Draft the next tokens of these requests, unless they have ended."""
        if self._config.drafted_tokens:
            unfinished = [each for each in request_ids if each in self.scheduler.requests]
            drafts = [[WORD] * self._config.drafted_tokens for _ in unfinished]
            self.scheduler.update_draft_token_ids(DraftTokenIds(unfinished, drafts))


def _ended(output: Any) -> Ended:
    reason = output.stop_reason
    return Ended(
        output.request_id,
        {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}.get(
            output.finish_reason, "abort"
        ),
        reason if isinstance(reason, str) else None,
    )


def _engine_arguments(config: VirtualConfig) -> EngineArgs:
    production = EngineConfig(
        policy=config.policy,
        slots=config.slots,
        step_tokens=config.step_tokens,
        max_model_tokens=config.max_model_tokens,
    )
    arguments = production.vllm_arguments(str(ensure_random_model()), platform="cpu")
    arguments |= {
        # The random model's own context is short; the model is not run here.
        "hf_overrides": {"max_position_embeddings": config.max_model_tokens},
        "enable_prefix_caching": config.prefix_caching,
        "block_size": config.block_tokens,
    }
    if config.drafted_tokens:
        arguments["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": config.drafted_tokens,
            "prompt_lookup_max": 2,
        }
    return EngineArgs(**arguments)


def _block_hasher(config: VirtualConfig, vllm_config: Any) -> Any:
    """The hash function of prefix-cache blocks, as in vLLM's engine core; None without caching."""
    if not config.prefix_caching:
        return None
    hash_of = get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)
    init_none_hash(hash_of)
    return get_request_block_hasher(config.block_tokens, hash_of)


def _kv_cache(config: VirtualConfig) -> KVCacheConfig:
    """A KV cache of this many blocks; the size in bytes does not matter, as nothing is stored."""
    layer = FullAttentionSpec(
        block_size=config.block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheConfig(
        num_blocks=config.kv_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)],
    )
