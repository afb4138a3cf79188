"""Run a flow from the command line: check what was asked for, run it, deliver the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from agents.pipeline import Pipeline
from agents.tools.corpus import Corpus
from cli.failures import ExitCode
from cli.terminal.atomic_write import prepare_folder, save
from cli.terminal.output import print_json, print_markdown, print_text, say
from cli.terminal.signals import run_until_interrupted
from cli.work.flow_arguments import FlowParameter, bound
from cli.work.run_session import Executed, check_engine_settings, execute, open_corpus
from orchestrator.display.progress import RunProgress
from orchestrator.settings import Settings
from serving.generation import Engine

OPENED_WITH_PROGRESS = {Corpus: open_corpus}
"""Type of an argument that takes long to open -> function that opens it and shows progress."""


def run_flow(
    pipeline: Pipeline[Any],
    parameters: Mapping[FlowParameter, Any],
    settings: Settings,
    *,
    deadline: str | None = None,
    out: Path | None = None,
    as_json: bool = False,
    engine: Engine | None = None,
) -> ExitCode:
    """Run a pipeline's flow; what is cheap to refuse is refused before anything slow begins.

    Args:
        parameters: those of the flow that were given, each as it was typed.
        deadline: as it was typed, like "60s"; None: the flow's own.
        out: the folder to save the result in.
        as_json: print one JSON object.
        engine: used instead of the one that the settings name.
    Raises:
        BadInput, InvalidDuration, CannotWrite and other errors of what was asked for.
        And what the flow raises.
    """
    to_open = {each: text for each, text in parameters.items() if _opens(each) is not None}
    values = {
        each.name: each.read(typed) for each, typed in parameters.items() if each not in to_open
    }
    if pipeline.check is not None:
        pipeline.check(bound(pipeline.flow, values).arguments)
    stages = None
    if pipeline.expected_stages is not None:
        stages = pipeline.expected_stages(bound(pipeline.flow, values).arguments)
    flow = pipeline.flow.options(deadline=deadline, stages=stages)
    check_engine_settings(settings)
    if out is not None:
        prepare_folder(out)
    progress = RunProgress()
    delivered: list[ExitCode] = []

    def hand_over(executed: Executed[Any]) -> None:
        deliver(pipeline, executed, out=out, as_json=as_json)
        delivered.append(ExitCode.DONE if executed.result.in_time else ExitCode.DEADLINE)

    async def work() -> None:
        for parameter, text in to_open.items():
            opened = _opens(parameter)
            assert opened is not None, "to_open holds these alone"
            values[parameter.name] = await opened(Path(str(text)), verbose=settings.verbose)
        call = bound(pipeline.flow, values)
        await execute(
            settings,
            lambda runtime: runtime.run(flow, *call.args, **call.kwargs),
            deliver=hand_over,
            progress=progress,
            engine=engine,
        )

    run_until_interrupted(
        work(),
        run_id=lambda: progress.run_id,
        exit_code=lambda: delivered[0] if delivered else None,
    )
    return delivered[0]


def deliver(
    pipeline: Pipeline[Any] | None,
    executed: Executed[Any],
    *,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Print a run's result, and save it where that was asked for.

    Args:
        pipeline: says how its results are shown; None: text as it is, anything else as JSON.
    Raises:
        CannotWrite, CannotPrint: as they say.
    """
    result, info = executed.result, executed.info
    value = to_jsonable_python(result.value, fallback=str)
    document: object = {
        "run": result.run_id,
        "result": value,
        "deadline_s": result.deadline_s,
        "elapsed_s": result.elapsed_s,
        "in_time": result.in_time,
        "model": info.model,
        "random_weights": info.random_weights,
    }
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    show = print_text
    if pipeline is not None and pipeline.to_json is not None:
        document = pipeline.to_json(result, info)
    if pipeline is not None and pipeline.to_markdown is not None:
        text, show = pipeline.to_markdown(result, info), print_markdown
    if as_json:
        print_json(document)
    else:
        show(text)
    if out is not None and pipeline is not None:
        save(out / f"{pipeline.file_name}.md", text)
        save(out / f"{pipeline.file_name}.json", json.dumps(document, indent=2, ensure_ascii=False))
        files = {} if pipeline.to_files is None else pipeline.to_files(result, info)
        for end, content in files.items():
            save(out / f"{pipeline.file_name}{end}", content)
        names = ", ".join(f"{pipeline.file_name}{end}" for end in (".md", ".json", *files))
        say(f"saved in {out}: {names}")


def _opens(parameter: FlowParameter) -> Any:
    """How a parameter's argument is opened with progress; None: it is read as any other."""
    is_type = isinstance(parameter.annotation, type)
    return OPENED_WITH_PROGRESS.get(parameter.annotation) if is_type else None
