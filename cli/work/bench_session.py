"""Runs a comparison with progress, signal handling and the result cache."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import NoReturn

from cli.errors import BenchInterrupted
from cli.terminal.bench_progress import BenchProgress
from cli.terminal.signals import SIGNALS
from cli.terminal.warnings import logged_as_warnings
from serving.sim.compare.compare import Comparison, Plan, compare
from serving.sim.compare.promise_capacity import PromiseCapacities, find_capacities
from serving.sim.compare.result_cache import ResultCache
from serving.sim.compare.runner import Runner
from serving.sim.compare.suite import compare_suite


def run_comparison(plan: Plan, *, jobs: int | None, use_cache: bool) -> Comparison:
    """Run a comparison and show its progress.

    Args:
        jobs: number of processes; None: one per core.
    Raises:
        BenchInterrupted: a signal came; completed simulations are in the cache if it is used.
        And whatever `compare` raises.
    """
    is_simulated = plan.live is None
    progress = BenchProgress(is_simulated=is_simulated)
    is_cached = use_cache and is_simulated
    with _session(progress, jobs=jobs, use_cache=use_cache, is_cached=is_cached) as runner:
        if is_simulated:
            return compare(plan, runner, on_progress=progress.on_progress)
        with Runner(jobs=1, ends_at_once=False) as live_runner:
            return compare(plan, runner, live_runner=live_runner, on_progress=progress.on_progress)


def run_suite(
    plans: Mapping[str, Plan], *, jobs: int | None, use_cache: bool
) -> dict[str, Comparison]:
    """Run the plans of a suite and show their progress together.

    Args:
        jobs: number of processes; None: one per core.
    Raises:
        BenchInterrupted: as `run_comparison`.
        And whatever `compare_suite` raises.
    """
    progress = BenchProgress(is_simulated=True, names_workloads=True)
    with _session(progress, jobs=jobs, use_cache=use_cache, is_cached=use_cache) as runner:
        return compare_suite(plans, runner, on_progress=progress.on_progress)


def run_capacities(
    plan: Plan, kept_share: float, replicas: Sequence[int], *, jobs: int | None, use_cache: bool
) -> PromiseCapacities:
    """Search capacities and show the progress.

    Args:
        jobs: number of processes; None: one per core.
    Raises:
        BenchInterrupted: as `run_comparison`.
        And whatever `find_capacities` raises.
    """
    progress = BenchProgress(is_simulated=True)
    with _session(progress, jobs=jobs, use_cache=use_cache, is_cached=use_cache) as runner:
        return find_capacities(
            plan, kept_share, runner, replicas=replicas, on_progress=progress.on_progress
        )


@contextmanager
def _session(
    progress: BenchProgress, *, jobs: int | None, use_cache: bool, is_cached: bool
) -> Iterator[Runner]:
    """A runner with the result cache, signals that raise, and progress on stderr.

    Args:
        is_cached: whether completed results are there if the same command runs again.
    """
    cache = ResultCache.of_this_code() if use_cache else None
    with ExitStack() as stack:
        stack.enter_context(logged_as_warnings())
        stack.enter_context(_signals_raise(progress, is_cached=is_cached))
        stack.enter_context(progress)
        num_jobs = jobs or len(os.sched_getaffinity(0))
        yield stack.enter_context(Runner(jobs=num_jobs, cache=cache))


@contextmanager
def _signals_raise(progress: BenchProgress, *, is_cached: bool) -> Iterator[None]:
    """While the block runs, SIGINT and SIGTERM raise BenchInterrupted in it."""

    def on_signal(number: int, frame: FrameType | None) -> NoReturn:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # while the worker processes are ended
        raise BenchInterrupted(number, progress.num_done if is_cached else None)

    former = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
