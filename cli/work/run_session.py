"""Executes one run for a command: engine, progress, warnings, and closing messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from agents.tools.corpus import Corpus
from agents.tools.indexing import IndexProgress
from cli.errors import BadInput
from cli.terminal.output import say, warn
from cli.terminal.progress import Activity, display_for
from cli.terminal.warnings import log_as_warnings
from orchestrator.display.progress import RunProgress
from orchestrator.display.run_text import has_random_weights
from orchestrator.durations import shown
from orchestrator.runtime.recovery import load_interrupted
from orchestrator.runtime.results import RunResult
from orchestrator.runtime.runtime import Runtime
from orchestrator.settings import EMBEDDED, Settings, payload_codec
from orchestrator.wiring import engine_config, open_runtime
from serving.engine.setup.config import CAVEATS, default_model
from serving.engine.setup.model_loading import check_model_folder
from serving.generation import Engine, EngineInfo
from store.errors import RunNotFound
from store.session import open_store

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Executed(Generic[R]):
    """A run's result, and its default engine; random weights of any that answered are marked."""

    result: RunResult[R]
    info: EngineInfo


async def load_executed(settings: Settings, run_id: str) -> Executed[Any]:
    """The recorded result of a completed run; raises what `Runtime.resume` does."""
    async with await open_store(settings.store, codec=payload_codec(settings)) as store:
        run = await load_interrupted(store, run_id)
    if run is None:
        raise RunNotFound(run_id)
    record = run.record
    random_weights = record.random_weights or has_random_weights(run.calls)
    info = EngineInfo(record.engine, record.model, random_weights, None)
    return Executed(run.result(run.flow(may_import=True)), info)


def check_engine_settings(settings: Settings) -> None:
    """Reject settings that the engine would reject, before anything slow starts.

    Raises:
        BadInput, InvalidEngineConfig: a setting is invalid; the message lists valid values.
        ModelNotLoaded: the model's folder contains no model.
    """
    if settings.engine == EMBEDDED:
        check_model_folder(engine_config(settings))
    elif not settings.engine.startswith(("http://", "https://")):
        raise BadInput(
            f"engine={settings.engine!r}: give 'embedded', or the URL of an OpenAI-compatible "
            "server like http://127.0.0.1:8000/v1"
        )
    elif settings.policy is not None:
        warn(f"policy {settings.policy!r} is ignored: {settings.engine} uses its own policy")
    for name in settings.engines:
        check_engine_settings(settings.of_engine(name))


async def open_corpus(folder: Path, *, verbose: bool) -> Corpus:
    """Index a folder and show the progress; raises the errors of Corpus.open."""
    is_cancelled = False
    with Activity(f"indexing {folder}", verbose=verbose) as activity:

        def on_progress(progress: IndexProgress) -> None:
            if is_cancelled:
                raise asyncio.CancelledError
            activity.update(f"indexing {folder}: {progress.files_done} of {progress.files_total}")

        try:
            corpus = await asyncio.to_thread(Corpus.open, folder, on_progress=on_progress)
        finally:
            is_cancelled = True
    report = corpus.report
    num_files = report.num_indexed + report.num_unchanged
    changed = f", {report.num_indexed} new or changed" if report.num_indexed else ""
    say(f"corpus {folder}: {num_files} files{changed}, {report.num_passages:,} passages")
    for skipped in report.skipped:
        warn(f"{skipped.file} is not indexed: {skipped.reason}")
    for warning in report.warnings:
        warn(warning)
    return corpus


async def execute(
    settings: Settings,
    start: Callable[[Runtime], Awaitable[RunResult[R]]],
    *,
    deliver: Callable[[Executed[R]], None],
    progress: RunProgress,
    engine: Engine | None = None,
) -> None:
    """Open a runtime, start a run in it, and deliver its result.

    The result is delivered before the engine is closed, because closing takes seconds. Even after
    an error the user is told how to look at the recorded run.
    """
    if EMBEDDED in (settings.engine, *(each.engine for each in settings.engines.values())):
        # vLLM logs to stdout by default, which is for results.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    display = display_for(progress, verbose=settings.verbose)
    async with (
        log_as_warnings(),
        open_runtime(settings, engine=engine, on_event=display.on_event) as runtime,
    ):
        with Activity(_start_message(settings), verbose=settings.verbose):
            await runtime.engine.start()
        if settings.verbose:
            _say_engine(runtime.engine.info)
        try:
            with display:
                result = await start(runtime)
        except BaseException:
            if progress.run_id is not None:
                say(f"to see how far the run got: orchestrate show {progress.run_id}")
            raise
        calls = () if result.log is None else result.log.timeline().calls
        random_weights = runtime.engine.info.random_weights or has_random_weights(calls)
        deliver(Executed(result, replace(runtime.engine.info, random_weights=random_weights)))
        say_outcome(result)


def _start_message(settings: Settings) -> str:
    if settings.engine != EMBEDDED:
        return f"connecting to {settings.engine}"
    model = settings.model or default_model()
    caveat = f" ({CAVEATS[model]})" if model in CAVEATS else ""
    return f"starting vLLM with the model {model}{caveat}: 10 to 20 s"


def _say_engine(info: EngineInfo) -> None:
    policy = f", policy {info.policy}" if info.policy else ""
    say(f"engine {info.name}, model {info.model}, scheduler {info.scheduler or '?'}{policy}")


def say_outcome(result: RunResult[R]) -> None:
    """Print whether the deadline was met, and how to see more."""
    duration = f"run {result.run_id}: {shown(result.elapsed_s)}"
    if result.deadline_s is None:
        say(f"{duration}, no deadline")
    else:
        slack_s = result.deadline_s - result.elapsed_s
        slack = f"{shown(slack_s)} to spare" if slack_s >= 0 else f"{shown(-slack_s)} late"
        style = "green" if result.in_time else "bold red"
        say(f"{duration} of {shown(result.deadline_s)}, {slack}", style=style)
    say(f"to see where the time went: orchestrate show {result.run_id}")
