"""The batch of a step that vLLM has scheduled, in the terms of our cost model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from serving.step_cost import Composition

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request


def composition_of(output: SchedulerOutput, requests: Mapping[str, Request]) -> Composition:
    """The batch of a scheduled step; drafted tokens of a decode count as new tokens."""
    num_decodes = decode_context = 0
    chunks = []
    drafts = output.scheduled_spec_decode_tokens
    for request_id, tokens in output.num_scheduled_tokens.items():
        request = requests[request_id]
        context = request.num_computed_tokens - tokens  # vLLM counts scheduled ones as computed
        not_drafted = tokens - len(drafts[request_id]) if request_id in drafts else tokens
        if not_drafted == 1 and context >= request.num_prompt_tokens:
            num_decodes += 1
            decode_context += context
        else:
            chunks.append((tokens, context))
    return Composition(
        output.total_num_scheduled_tokens, num_decodes, decode_context, tuple(chunks)
    )


def num_accepted_drafts(output: SchedulerOutput, computed: ModelRunnerOutput) -> int:
    """Number of a step's drafted tokens that were accepted."""
    rows = (computed.req_id_to_index.get(each) for each in output.scheduled_spec_decode_tokens)
    sampled = computed.sampled_token_ids
    num_kept = (len(sampled[row]) for row in rows if row is not None and sampled)
    return sum(max(each - 1, 0) for each in num_kept)
