"""Shared code of benchmarks in virtual time: options, a pool of processes, progress, verdicts."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.command import parser_of, positive, say
from cli.terminal.warnings import logged_as_warnings
from cli.work.bench_request import loads_of, policy_of
from serving.policies.table import PolicySpec
from serving.sim.compare.capacity import capacity_of, measurements_of
from serving.sim.compare.compare import Comparison, Plan, compare
from serving.sim.compare.experiment_config import (
    DEFAULT_WARMUP_S,
    DEFAULT_WINDOW_S,
    ExperimentConfig,
)
from serving.sim.compare.experiments import Task
from serving.sim.compare.result_cache import ResultCache
from serving.sim.compare.runner import Runner
from serving.sim.compare.task_progress import Progress
from serving.sim.workloads.load_generator import Source

BASELINE = "fcfs"
OURS = "calm"
FLOOR = 0.98
"""A policy below this share of the baseline's result counts as worse."""


def options(documentation: str | None, *, loads: str, seeds: int = 3) -> argparse.ArgumentParser:
    """A parser with the options that all these benchmarks have; the caller adds its own."""
    parser = parser_of(documentation)
    parser.add_argument("--loads", default=loads, help="multiples of the rate that fcfs drains")
    parser.add_argument("--seeds", type=positive, default=seeds, help="number of seeds")
    parser.add_argument(
        "--window-s", type=float, default=DEFAULT_WINDOW_S, help="programs that arrive in it count"
    )
    parser.add_argument(
        "--warmup-s", type=float, default=DEFAULT_WARMUP_S, help="before the window"
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=positive, default=cores, help="processes at once")
    return parser


def loads(arguments: argparse.Namespace) -> tuple[float, ...]:
    """The loads of the command line, ascending; raises BadInput if one is not a number."""
    return loads_of(arguments.loads)


def seeds(arguments: argparse.Namespace) -> tuple[int, ...]:
    """As many seeds as the command line asks for, from 0 on."""
    return tuple(range(arguments.seeds))


def config_of(arguments: argparse.Namespace, workload: str = "mixed") -> ExperimentConfig:
    """A workload with the command line's window and warm-up, on the default machine."""
    source = Source.generator(workload)
    return ExperimentConfig(source=source, window_s=arguments.window_s, warmup_s=arguments.warmup_s)


def document(arguments: argparse.Namespace, **fields: object) -> dict[str, object]:
    """A simulated result with the options that it depends on, as JSON."""
    window = {"window_s": arguments.window_s, "seeds": arguments.seeds}
    return {"simulated": True} | window | fields


def policies(names: Sequence[str]) -> tuple[PolicySpec, ...]:
    """The baseline, then the given policies, each once; raises BadInput, InvalidEngineConfig."""
    specs = map(policy_of, [BASELINE, *names])
    return tuple({json.dumps(each.to_json(), sort_keys=True): each for each in specs}.values())


@dataclass(frozen=True, slots=True)
class Session:
    """Runs comparisons one after another on the same worker processes."""

    runner: Runner

    def compare(self, name: str, plan: Plan) -> Comparison:
        """Run a plan and log its progress; raises like `compare.compare`."""

        def log_progress(progress: Progress) -> None:
            if progress.latest is not None:
                done = f"{progress.num_done} of {progress.num_tasks}"
                say(f"{name}: {done} done, {progress.part} (simulated)")

        return compare(plan, self.runner, on_progress=log_progress)

    def capacity(self, config: ExperimentConfig) -> float:
        """The rate of load 1.0, in programs per second."""
        return capacity_of(self.run("capacity", measurements_of(config)))

    def run(self, name: str, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """The tasks' results, in their order."""
        results: list[dict[str, Any]] = [{} for _ in tasks]
        for number, done in enumerate(self.runner.run(tasks), start=1):
            results[done.task_index] = done.result
            say(f"{name}: {number} of {len(tasks)} done (simulated)")
        return results


@contextmanager
def session(jobs: int) -> Iterator[Session]:
    """A session with this many worker processes, and the cache of results."""
    cache = ResultCache.of_this_code()
    with logged_as_warnings(), Runner(jobs=jobs, cache=cache) as runner:
        yield Session(runner)


def ratio(value: float, baseline: float) -> float | None:
    """value / baseline; None if the baseline is 0."""
    return value / baseline if baseline > 0 else None


def format_ratio(share: float | None) -> str:
    """A ratio with two decimals; a dash for None."""
    return "-" if share is None else f"{share:.2f}"


def verdict(is_ok: bool | None) -> str:
    """A verdict in one word; empty for None."""
    return {True: "ok", False: "MISS", None: ""}[is_ok]
