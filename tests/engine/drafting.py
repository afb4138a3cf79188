"""Prints, as JSON, greedy answers of the real engine with a policy and a number of drafts.

    python -m tests.engine.drafting calm 3

Needs a process of its own: on a CPU vLLM can start only one engine with drafts per process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from serving.engine.setup.config import EngineConfig
from serving.engine.setup.random_model import ensure_random_model
from serving.policies.table import PolicySpec
from serving.slo import Slo, SloKind, to_tags

SLO = Slo(kind=SloKind.DEADLINE, deadline_s=60.0)
NUM_PROMPTS, ANSWER_TOKENS = 10, 60


def answers(policy: str, num_drafts: int) -> dict[str, Any]:
    """The answers, and the tokens per decode. The prompts repeat, so that there are drafts."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    config = EngineConfig(policy=PolicySpec(policy), slots=6, max_model_tokens=512)
    arguments = config.vllm_arguments(str(ensure_random_model()), platform="cpu")
    if num_drafts:
        arguments["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": num_drafts,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 2,
        }
    llm = LLMEngine.from_engine_args(EngineArgs(**arguments))
    scheduler: Any = llm.engine_core.engine_core.scheduler
    for number in range(NUM_PROMPTS):
        prompt = [(7 * number + position) % 50 + 10 for position in range(60)]
        params = SamplingParams(
            temperature=0.0,
            max_tokens=ANSWER_TOKENS,
            ignore_eos=True,
            detokenize=False,
            extra_args=to_tags(SLO),
        )
        llm.add_request(f"{number:02}", {"prompt_token_ids": prompt}, params)
    tokens = {}
    while llm.has_unfinished_requests():
        for output in llm.step():
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
    speculation = scheduler.speculation
    per_decode = None if speculation is None else speculation.computed_per_decode
    llm.engine_core.shutdown()
    return {"answers": tokens, "computed_per_decode": per_decode}


if __name__ == "__main__":
    os.environ.update(EngineConfig().environment("cpu"), VLLM_ENABLE_V1_MULTIPROCESSING="0")
    policy, num_drafts = sys.argv[1], int(sys.argv[2])
    sys.stdout.write("\n" + json.dumps(answers(policy, num_drafts)) + "\n")
