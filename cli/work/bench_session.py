"""A comparison as a command runs it: with signals, progress, and what was computed before."""

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


def compared(plan: Plan, *, jobs: int | None, use_cache: bool) -> Comparison:
    """Run a comparison, and tell how far it is.

    Args:
        jobs: processes at once; None: one a core.
    Raises:
        BenchInterrupted: by a signal; what was simulated by then is kept, if anything is.
        And what `compare` raises.
    """
    cache = ResultCache(results_folder(), code_version()) if use_cache else None
    most = jobs or len(os.sched_getaffinity(0))
    progress = BenchProgress(is_simulated=plan.live is None)
    with ExitStack() as stack:
        stack.enter_context(logged_as_warnings())
        stack.enter_context(_signals_raise(progress, is_kept=use_cache and plan.live is None))
        stack.enter_context(progress)
        runner = stack.enter_context(Runner(jobs=most, cache=cache))
        live_runner = None
        if plan.live is not None:
            live_runner = stack.enter_context(Runner(jobs=1, ends_at_once=False))
        return compare(plan, runner, live_runner=live_runner, on_progress=progress.on_progress)


@contextmanager
def _signals_raise(progress: BenchProgress, *, is_kept: bool) -> Iterator[None]:
    """While the block runs, SIGINT and SIGTERM end it with a named error."""

    def on_signal(number: int, frame: FrameType | None) -> NoReturn:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # the workers are being ended
        raise BenchInterrupted(number, progress.num_done if is_kept else None)

    former = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
