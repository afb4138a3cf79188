"""Helpers for tests of comparisons: an engine without a model, a runner without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from serving.policies.table import PolicySpec
from serving.sim.compare.capacity import CapacityExperiment
from serving.sim.compare.compare import Comparison, Goodputs, Plan, Run, compare
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import BoundExperiment, Experiment, Task
from serving.sim.compare.live_experiments import LiveExperiment, MachineTask
from serving.sim.compare.result_cache import ResultCache
from serving.sim.compare.runner import CompletedTask, Runner, key_of
from serving.sim.drive.stepped import Ended, Progress
from serving.sim.metrics.outcome import CURVES, LEVELS, Outcome
from serving.sim.workloads.load_generator import Source
from serving.slo import Slo
from serving.step_cost import Composition

CODER = ExperimentConfig(source=Source.generator("coder"), window_s=20.0, warmup_s=5.0)
CAPACITY = 3.0


class FifoEngine:
    """First come, first served: each step yields one token for each of up to `slots` requests."""

    def __init__(self, slots: int = 8) -> None:
        self.preemptions = 0
        self.recomputed_tokens = 0
        self._slots = slots
        self.submitted: list[str] = []
        self._remaining: dict[str, int] = {}
        self._running: list[str] = []

    @property
    def has_work(self) -> bool:
        return bool(self._remaining)

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
        self.submitted.append(request_id)
        self._remaining[request_id] = output_tokens

    def abort(self, request_id: str) -> None:
        self._remaining.pop(request_id, None)

    def plan_step(self) -> Composition:
        self._running = list(self._remaining)[: self._slots]
        return Composition(len(self._running), len(self._running), 0, ())

    def finish_step(self) -> Progress:
        ended = []
        for request_id in self._running:
            self._remaining[request_id] -= 1
            if not self._remaining[request_id]:
                del self._remaining[request_id]
                ended.append(Ended(request_id, "stop", None))
        return Progress(tuple(self._running), tuple(ended))


def make_report(token_goodput: float, request_goodput: float) -> dict[str, Any]:
    """A report's document with the fields that comparisons read."""
    times = {"p50": 0.5, "p95": 2.0, "p99": 3.0, "count": 10}
    return {
        "token_goodput": token_goodput,
        "request_goodput": request_goodput,
        "window_s": [5.0, 25.0],
        "attainment": {"latency": 0.5, "deadline": None, "compound": 0.25},
        "ttft_s": times,
        "ttft_latency_s": times,
        "tbt_s": times,
        "tbt_latency_s": times,
        "e2el_s": times,
        "throughput_tokens_s": 2.0 * token_goodput,
        "preemptions": 3,
        "recomputed_tokens": 400,
        "schedule_ms_per_step": 0.25,
        "counts": {"arrived": 40},
    }


def fake_result(task: Task) -> dict[str, Any]:
    """A result of the real form; a higher load and a longer policy name earn more."""
    match task:
        case CapacityExperiment():
            return {"programs_s": CAPACITY + task.seed - 1}
        case BoundExperiment():
            return {"token_goodput": 5000.0 * task.load, "request_goodput": 50.0 * task.load}
        case LiveExperiment():
            return fake_result(task.experiment)
        case MachineTask():
            from dataclasses import asdict

            from serving.step_cost import MACHINES

            return asdict(MACHINES["a100-llama3-8b"])
        case Experiment():
            earned = 100.0 * len(task.policy.name) * task.load + task.seed
            curve = [level / 10 for level in LEVELS]
            return {
                "report": make_report(earned, earned / 100),
                "curves": {name: [] if "e2el" in name else curve for name in CURVES},
                "trace_repeats": 2 if task.config.source.trace else 0,
            }
    raise AssertionError(task)


LIMITS = {"fcfs": 0.6, "edf": 0.9, "calm": 1.5}
"""The load up to which each policy keeps all its promises, in the results of `keeping`."""


def keeping(task: Task) -> dict[str, Any]:
    """A made-up result; above its limit a policy keeps a tenth less for each tenth of load."""
    result = fake_result(task)
    if isinstance(task, Experiment):
        over = max(task.load - LIMITS[task.policy.name], 0.0)
        met = round(1000 * max(1.0 - over, 0.0))
        result["report"]["counts"] = {"arrived": 1200, "promised": 1000, "met": met}
    return result


class InProcessRunner(Runner):
    """A runner that computes in this process, and records which tasks it computed."""

    def __init__(
        self,
        *,
        jobs: int = 1,
        cache: ResultCache | None = None,
        work: Callable[[Any], dict[str, Any]] = fake_result,
        ends_at_once: bool = True,
    ) -> None:
        super().__init__(jobs=jobs, cache=cache, work=work, ends_at_once=ends_at_once)
        self.computed: list[Task] = []

    def run(self, tasks: Sequence[Task]) -> Iterator[CompletedTask]:
        for index, task in reversed(list(enumerate(tasks))):  # callers must accept any order
            cached = None if self.cache is None else self.cache.get(key_of(task))
            if cached is None:
                self.computed.append(task)
                result = self.work(task)
                if self.cache is not None:
                    self.cache.put(key_of(task), result)
                yield CompletedTask(index, task, result, False, 0.1)
            else:
                yield CompletedTask(index, task, cached, True, 0.0)


def make_plan(*policies: str, **changes: Any) -> Plan:
    arguments: dict[str, Any] = {
        "config": CODER,
        "policies": tuple(map(PolicySpec, policies or ("fcfs", "edf"))),
        "loads": (0.7, 2.0),
        "seeds": (0, 1),
    }
    return Plan(**arguments | changes)


def make_comparison(*policies: str, **changes: Any) -> Comparison:
    return compare(make_plan(*policies, **changes), InProcessRunner())


def hand_made(
    goodputs: Mapping[str, tuple[float, float]], bound: tuple[float, float] | None
) -> Comparison:
    """A comparison at 1.0x: policy -> the means of (tokens, requests) over two seeds."""
    plan = make_plan(*goodputs, loads=(1.0,), with_bound=bound is not None)
    curves: dict[str, tuple[float, ...]] = dict.fromkeys(CURVES, ())
    outcomes = {
        Run(policy, 1.0, seed): Outcome(
            make_report(tokens * (0.5 + seed), requests * (0.5 + seed)), curves
        )
        for policy, (tokens, requests) in goodputs.items()
        for seed in plan.seeds
    }
    bounds = {(1.0, seed): Goodputs(*bound) for seed in plan.seeds} if bound else {}
    return Comparison(plan, CAPACITY, outcomes, bounds, 0, "code")


HAND_MADE = {
    "one": hand_made({"fcfs": (100, 4), "edf": (200, 2), "calm": (300, 3)}, (600, 6)),
    "two": hand_made({"fcfs": (0, 0), "edf": (0, 1), "calm": (50, 2)}, (100, 2)),
    "three": hand_made({"fcfs": (80, 0), "edf": (40, 0), "calm": (0, 0)}, (90, 1)),
}
"""A suite's comparisons, with goodputs of 0 among them."""


def run_concurrently(*works: Callable[[], object]) -> None:
    """Run all functions at once, each in a thread."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
