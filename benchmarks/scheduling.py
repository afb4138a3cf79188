"""Scheduling's share of a step on the real engine, beside vLLM's own scheduler.

    python -m benchmarks.scheduling [--model smollm2] [--requests 8 64 256] [--steps 60] [--json]

A constant number of requests with deadlines: one that ends is replaced in the same step, so that
there are prefills, decodes, arrivals and ends. Scheduling is what the scheduler does in a step,
before and after the model runs. Milliseconds are CPU time of the engine's thread, which also runs
the model; each scheduler has a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import wraps
from itertools import count
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.command import exit_code, parser_of, positive, print_result, say
from serving.engine.setup.config import EngineConfig, vllm_platform
from serving.engine.setup.model_loading import model_path
from serving.engine.setup.smollm2 import SMOLLM2
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.table import PolicySpec
from serving.slo import Slo, SloKind, to_tags

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

OWN, STOCK = "calm", "vllm"
WARM_UP_STEPS = 10
KV_CACHE_BYTES = 2 << 30
PROMPT_TOKENS, OUTPUT_TOKENS, DEADLINE_S = (20, 200), (20, 120), (60.0, 600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a scheduler takes of a step with a number of requests.

    Attributes:
        scheduler: "calm", or "vllm": vLLM's own.
        step_ms, scheduling_ms: CPU time of a step, and of scheduling in it; means.
        share: scheduling_ms / step_ms.
    """

    scheduler: str
    requests: int
    step_ms: float
    scheduling_ms: float
    share: float


def slos(seed: int) -> Iterator[tuple[int, int, Slo]]:
    """Prompt tokens, output tokens and SLO of each request."""
    draw = random.Random(seed)
    while True:
        output_tokens = draw.randint(*OUTPUT_TOKENS)
        length = LengthSketch(tuple(output_tokens * (0.5 + level) for level in LENGTH_LEVELS))
        slo = Slo(kind=SloKind.DEADLINE, deadline_s=draw.uniform(*DEADLINE_S), length=length)
        yield draw.randint(*PROMPT_TOKENS), output_tokens, slo


def engine_of(scheduler: str, config: EngineConfig) -> LLMEngine:
    """An engine in this process, with our scheduler or with vLLM's own."""
    platform = vllm_platform()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **config.environment(platform)}
    arguments = config.vllm_arguments(model_path(config), platform)
    if scheduler == STOCK:
        del arguments["scheduler_cls"], arguments["additional_config"]

    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    return LLMEngine.from_engine_args(EngineArgs(**arguments))


class Timed:
    """Functions of an object, and the CPU seconds of this thread that they have taken."""

    def __init__(self, owner: object, *names: str) -> None:
        self.seconds = 0.0
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began_s = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - began_s

        return timed


def shares(scheduler: str, model: str, requests: Sequence[int], num_steps: int) -> list[Share]:
    """Measure one scheduler with each number of requests."""
    config = EngineConfig(
        model=model, slots=256, kv_cache_bytes=KV_CACHE_BYTES, policy=PolicySpec(OWN)
    )
    llm = engine_of(scheduler, config)

    from vllm.sampling_params import SamplingParams

    timed = Timed(llm.engine_core.engine_core.scheduler, "schedule", "update_from_output")
    numbers, work = count(), slos(seed=0)

    def submit() -> None:
        prompt_tokens, output_tokens, slo = next(work)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=output_tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args=to_tags(slo),
        )
        number = next(numbers)
        prompt = [1 + (number * 7919 + place) % 1000 for place in range(prompt_tokens)]
        llm.add_request(f"{number}", {"prompt_token_ids": prompt}, params)

    measured = []
    for wanted in sorted(requests):
        steps_s, scheduling_s = [], []
        for step in range(WARM_UP_STEPS + num_steps):
            while llm.get_num_unfinished_requests() < wanted:
                submit()
            began_s, scheduled_s = time.thread_time(), timed.seconds
            llm.step()
            if step >= WARM_UP_STEPS:
                steps_s.append(time.thread_time() - began_s)
                scheduling_s.append(timed.seconds - scheduled_s)
        step_ms, scheduling_ms = 1e3 * fmean(steps_s), 1e3 * fmean(scheduling_s)
        measured.append(
            Share(
                scheduler=scheduler,
                requests=wanted,
                step_ms=step_ms,
                scheduling_ms=scheduling_ms,
                share=scheduling_ms / step_ms,
            )
        )
    return measured


def table(rows: Sequence[Share]) -> str:
    """One line for each scheduler and number of requests."""
    lines = [f"{'scheduler':10} {'requests':>8} {'step ms':>9} {'scheduling ms':>14} {'share':>7}"]
    lines += [
        f"{row.scheduler:10} {row.requests:8} {row.step_ms:9.2f} {row.scheduling_ms:14.3f}"
        f" {row.share:7.2%}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure both schedulers, each in a process of its own, and print their shares."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", default=SMOLLM2, help="as in `orchestrate run` (smollm2)")
    parser.add_argument("--requests", type=positive, nargs="+", default=[8, 64, 256])
    parser.add_argument("--steps", type=positive, default=60, help="measured steps (60)")
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    rows: list[Share] = []
    for scheduler in (STOCK, OWN):
        say(f"{scheduler}: {len(arguments.requests)} numbers of requests")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            task = pool.submit(
                shares, scheduler, arguments.model, arguments.requests, arguments.steps
            )
            rows += task.result()
    print_result([asdict(row) for row in rows], table(rows), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(exit_code(main))
