"""A worker as a command: its flows, its signals, and what it says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from cli.errors import BadInput
from cli.terminal.output import say
from cli.terminal.signals import SIGNALS
from cli.terminal.warnings import log_as_warnings
from cli.work.pipelines import find_pipeline, pipelines
from cli.work.run_session import check_engine_settings
from orchestrator import Flow
from orchestrator.durations import seconds_of
from orchestrator.runtime.worker import Worker
from orchestrator.settings import EMBEDDED, Settings
from orchestrator.wiring import open_runtime
from serving.generation import Engine
from serving.references import absolute, load_reference


def flows_of(references: Sequence[str]) -> list[Flow[..., Any]]:
    """The flows that references name, all of a file; without a reference the pipelines.

    Raises:
        BadInput: one names nothing, or two flows have the same name.
        InvalidReference: code cannot be imported.
    """
    found: list[Flow[..., Any]] = []
    for reference in references:
        found += _flows_in(reference)
    if not references:
        found = [pipeline.flow for pipeline in pipelines().values()]
    by_name: dict[str, Flow[..., Any]] = {}
    for flow in found:
        if by_name.setdefault(flow.name, flow).body is not flow.body:
            raise BadInput(f"two flows are named {flow.name}: a worker takes one of them")
    return list(by_name.values())


def _flows_in(reference: str) -> list[Flow[..., Any]]:
    if reference.endswith(".py") and Path(reference).is_file():
        defined = load_reference(absolute(f"{reference}:__dict__")).values()
        flows = [each for each in defined if isinstance(each, Flow)]
        if not flows:
            raise BadInput(f"{reference} has no flow: decorate a function with @flow")
        return flows
    pipeline = find_pipeline(reference)
    if pipeline is None:
        raise BadInput(f"no pipeline {reference!r}: there is {', '.join(pipelines()) or 'none'}")
    return [pipeline.flow]


async def work(
    settings: Settings,
    references: Sequence[str],
    *,
    queues: Sequence[str],
    concurrency: int,
    any_version: bool,
    grace: str,
    engine: Engine | None = None,
) -> None:
    """Work on queues until SIGINT or SIGTERM; a second signal leaves at once.

    Args:
        grace: as it was typed: "30s", or "0".
        engine: used instead of the one that the settings name.
    """
    allowed = timedelta(0) if grace.strip().rstrip("s") == "0" else seconds_of(grace)
    flows = flows_of(references)
    if engine is None:
        check_engine_settings(settings)
    if settings.engine == EMBEDDED:
        # vLLM logs to stdout by default.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    async with log_as_warnings(), open_runtime(settings, engine=engine) as runtime:
        worker = Worker(
            runtime, flows, queues=queues, concurrency=concurrency, any_version=any_version
        )
        _stop_on_signals(worker)
        await runtime.engines.start()
        versions = ", ".join(f"{name} ({worker.versions[name]})" for name in worker.versions)
        say(f"working on {', '.join(worker.queues)}: {versions}; at most {concurrency} at once")
        handed_back = await worker.run(grace=allowed)
    if handed_back:
        say(f"handed back, for any worker: {', '.join(handed_back)}")
    say("stopped")


def _stop_on_signals(worker: Worker) -> None:
    received: list[int] = []

    def handle(number: int) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        say(f"taking no more runs; {worker.num_running} in progress; once more leaves at once")
        worker.stop()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, handle, number)
