"""Runs a comparison with progress, signal handling and the result cache."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import NoReturn

from cli.errors import BenchInterrupted
from cli.terminal.bench_progress import BenchProgress
from cli.terminal.signals import SIGNALS
from cli.terminal.warnings import logged_as_warnings
from serving.sim.compare.compare import Comparison, Plan, compare
from serving.sim.compare.result_cache import ResultCache, code_version, results_folder
from serving.sim.compare.runner import Runner


def run_comparison(plan: Plan, *, jobs: int | None, use_cache: bool) -> Comparison:
    """Run a comparison and show its progress.

    Args:
        jobs: number of processes; None: one per core.
    Raises:
        BenchInterrupted: a signal came; completed simulations are in the cache if it is used.
        And whatever `compare` raises.
    """
    cache = ResultCache(results_folder(), code_version()) if use_cache else None
    num_jobs = jobs or len(os.sched_getaffinity(0))
    progress = BenchProgress(is_simulated=plan.live is None)
    with ExitStack() as stack:
        stack.enter_context(logged_as_warnings())
        stack.enter_context(_signals_raise(progress, is_cached=use_cache and plan.live is None))
        stack.enter_context(progress)
        runner = stack.enter_context(Runner(jobs=num_jobs, cache=cache))
        live_runner = None
        if plan.live is not None:
            live_runner = stack.enter_context(Runner(jobs=1, ends_at_once=False))
        return compare(plan, runner, live_runner=live_runner, on_progress=progress.on_progress)


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
