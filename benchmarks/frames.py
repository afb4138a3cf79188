"""The cost of a scheduling frame: milliseconds to build the view, to decide, to apply the plan.

    python -m benchmarks.frames [--policy calm] [--requests 256 1024 4096] [--frames 40] [--json]

The production scheduler with a constant number of requests, in virtual time: a request that ends
is replaced. Milliseconds are CPU time of the scheduling thread on this machine. The share is CPU
time / simulated time of an A100's steps (Llama-3-8B). A plan holds for several steps; "held ms" is
their simulated duration, for which an arrival may have to wait for the next plan.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from time import thread_time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.command import parser_of, positive, print_result, say
from serving.policies.table import POLICIES, PolicySpec
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Program, StageCall
from serving.sim.workloads.workloads import generate
from serving.step_cost import MACHINES
from serving.view import Plan, StepView

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualEngine

MACHINE = MACHINES["a100-llama3-8b"]
SLOTS = 256
WARM_UP_FRAMES = 5
IDLE_STEP_S = 0.001
ARRIVAL_GAP_S = 1e-6
PARTS = ("view", "policy", "honour")
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}


class Frame(NamedTuple):
    """CPU seconds of one plan: to build the view, to decide (the policy), to apply the plan."""

    view_s: float
    policy_s: float
    honour_s: float


class Spread(NamedTuple):
    """Milliseconds."""

    median: float
    p95: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Median and 95th percentile of measured seconds, in milliseconds."""
        median, p95 = np.percentile(1e3 * np.asarray(seconds), (50, 95)).tolist()
        return cls(median, p95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one policy's frames with a number of running and waiting requests.

    Attributes:
        view_ms, policy_ms, honour_ms, frame_ms: of one frame; the first three sum up to the last.
        steps_per_frame: mean number of engine steps for which a plan held.
        held_ms: mean simulated duration of these steps.
        share: CPU time of all frames / simulated time of all steps.
    """

    policy: str
    requests: int
    frames: int
    view_ms: Spread
    policy_ms: Spread
    honour_ms: Spread
    frame_ms: Spread
    steps_per_frame: float
    held_ms: float
    share: float


def timed_engine(spec: PolicySpec) -> tuple[VirtualEngine, list[Frame], list[float]]:
    """An engine that records its frames, the recorded frames, and its clock in a list of one."""
    from serving.engine.scheduler.scheduler import SloScheduler
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    frames: list[Frame] = []
    now_s = [0.0]

    class TimedScheduler(SloScheduler):
        def view(self) -> StepView:
            began_s = thread_time()
            view = super().view()
            self._viewed_s = thread_time()
            self._view_s = self._viewed_s - began_s
            return view

        def _follow(self, plan: Plan) -> None:
            decided_s = thread_time()
            super()._follow(plan)
            frames.append(
                Frame(self._view_s, decided_s - self._viewed_s, thread_time() - decided_s)
            )

    class TimedEngine(VirtualEngine):
        scheduler_class = TimedScheduler

    config = VirtualConfig(policy=spec, slots=SLOTS, kv_blocks=MACHINE.kv_blocks)
    return TimedEngine(config, lambda: now_s[0]), frames, now_s


class RequestPool:
    """Keeps an engine supplied with calls: first stages of the mixed workload's programs."""

    def __init__(self, engine: VirtualEngine) -> None:
        self._engine = engine
        self._predictions = Predictions(lengths=LengthErrors(), futures=FutureErrors())
        self._calls = self._endless()
        self.num_open = 0

    def fill(self, num_requests: int, now_s: list[float]) -> None:
        """Submit calls until the engine has num_requests; each arrives ARRIVAL_GAP_S later."""
        while self.num_open < num_requests:
            number, program, call = next(self._calls)
            now_s[0] += ARRIVAL_GAP_S
            arriving = replace(program, arrival_s=now_s[0])
            self._engine.submit(
                f"{number:07}",
                prompt=[1000] * call.call.prompt_tokens,
                output_tokens=call.call.output_tokens,
                slo=self._predictions.slo_of(arriving, call, now_s[0]),
                max_tokens=self._predictions.max_tokens,
            )
            self.num_open += 1

    @staticmethod
    def _endless() -> Iterator[tuple[int, Program, StageCall]]:
        number = count()
        for seed in count():
            for program in generate("mixed", rate_per_s=10.0, window_s=60.0, seed=seed):
                for call in program.stage_calls(0):
                    yield next(number), program, call


def measure(policy: str, num_requests: int, num_frames: int) -> Cost:
    """Measure the frames of one policy; needs vLLM."""
    engine, frames, now_s = timed_engine(PolicySpec(policy))
    pool = RequestPool(engine)
    steps, step_s, first_counted = 0, 0.0, 0
    while len(frames) < WARM_UP_FRAMES + num_frames:
        pool.fill(num_requests, now_s)
        composition = engine.plan_step()
        seconds = IDLE_STEP_S
        if composition.new_tokens:
            seconds = MACHINE.step_cost.seconds(composition)
        now_s[0] += seconds
        pool.num_open -= len(engine.finish_step().ended)
        if len(frames) > WARM_UP_FRAMES:
            first_counted = first_counted or len(frames) - 1
            steps += 1
            step_s += seconds
    counted = frames[first_counted:]
    columns = list(zip(*counted, strict=True))
    totals = [sum(frame) for frame in counted]
    view_ms, policy_ms, honour_ms = map(Spread.of, columns)
    return Cost(
        policy=policy,
        requests=num_requests,
        frames=len(counted),
        view_ms=view_ms,
        policy_ms=policy_ms,
        honour_ms=honour_ms,
        frame_ms=Spread.of(totals),
        steps_per_frame=steps / len(counted),
        held_ms=1e3 * step_s / len(counted),
        share=sum(totals) / step_s,
    )


def table(costs: Sequence[Cost]) -> str:
    """The costs as a text table."""
    titles = (*PARTS, "frame")
    head = f"{'policy':16} {'requests':>8}" + "".join(f"{f'{name} ms':>16}" for name in titles)
    lines = [f"{head} {'steps/frame':>12} {'held ms':>8} {'share of simulated A100 steps':>30}"]
    for cost in costs:
        parts: list[Spread] = [getattr(cost, f"{name}_ms") for name in titles]
        cells = "".join(f"{part.median:8.2f}{part.p95:8.2f}" for part in parts)
        lines.append(
            f"{cost.policy:16} {cost.requests:8}{cells} {cost.steps_per_frame:12.1f}"
            f" {cost.held_ms:8.0f} {cost.share:30.2%}"
        )
    return "\n".join([*lines, "each pair: median, 95th percentile; CPU time of one thread"])


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--requests", nargs="+", type=positive, default=[256, 1024, 4096])
    parser.add_argument("--frames", type=positive, default=40)
    arguments = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")  # warnings of vLLM
    costs = []
    for policy in arguments.policy:
        for num_requests in arguments.requests:
            say(f"{policy} with {num_requests} requests")
            costs.append(measure(policy, num_requests, arguments.frames))
    document = {"time": "cpu", "steps": "simulated", "rows": [asdict(cost) for cost in costs]}
    print_result(document, table(costs), as_json=arguments.json)


if __name__ == "__main__":
    main()
