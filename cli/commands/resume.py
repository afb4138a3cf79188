"""`orchestrate resume`: continue a run that was interrupted or has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options

if TYPE_CHECKING:
    from cli.work.run_session import Executed
    from orchestrator.settings import Settings
    from serving.generation import Engine
    from store.records import RunRecord

EPILOG = (
    "Example: orchestrate resume 3f2a\n\n"
    "All orphaned runs, which have lost their process: orchestrate resume --orphans\n\n"
    "Those of your own flows: orchestrate resume --orphans --allow my_flows.py\n\n"
    "Steps and calls with a recorded outcome are not repeated. The deadline counts from the "
    "run's first start, unless a new one is given: orchestrate resume 3f2a --deadline 60s\n\n"
    "A run continues with its recorded model unless --model is given. If it began on another kind "
    "of engine than is selected, give --engine. Of a completed run the recorded result is printed."
)


def resume(
    run: Annotated[
        str | None,
        typer.Argument(help="A run's id, or the beginning of it.", show_default=False),
    ] = None,
    orphans: Annotated[
        bool,
        typer.Option("--orphans", help="Resume every run that has lost its process, oldest first."),
    ] = False,
    allow_changed: Annotated[
        bool,
        typer.Option(
            "--allow-changed",
            help="Continue even if the flow's code no longer executes the recorded steps.",
        ),
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="FILE.py|FOLDER|MODULE",
            help="Code that may be imported, beside installed pipelines; repeatable.",
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            metavar="TIME",
            help="A new deadline, counted from now, such as 60s, 2m or 1.5h. Default: the run's.",
            show_default=False,
        ),
    ] = None,
    model: options.Model = None,
    engine: options.Engine = None,
    policy: options.Policy = None,
    store: options.Store = None,
    json: options.Json = False,
    verbose: options.Verbose = None,
) -> None:
    """Continue an interrupted or failed run from its last recorded outcome."""
    import asyncio

    from cli.errors import BadInput
    from cli.terminal.output import say, warn
    from cli.work.trusted_code import confirm_import, reason_not_to_import
    from orchestrator.durations import seconds_of
    from orchestrator.settings import read_settings
    from store.records import Status

    if (run is None) != orphans:
        raise BadInput("give either a run's id, or --orphans")
    if deadline is not None:
        seconds_of(deadline)  # refused before an engine starts
    settings = read_settings(
        store=store, engine=engine, model=model, policy=policy, verbose=verbose
    )
    records = asyncio.run(runs_to_resume(settings.store, run))
    if not records:
        say("no orphaned runs")
    num_left_out = 0
    for record in records:
        needs_engine = engine is None and record.status is not Status.COMPLETED
        reason = other_engine(record, settings) if needs_engine else None
        if not orphans:
            if reason is not None:
                raise BadInput(reason)
            confirm_import(record, allow or ())
        elif (reason := reason or reason_not_to_import(record, allow or ())) is not None:
            warn(reason)
            num_left_out += 1
            continue
        chosen = settings if model is not None else with_recorded_model(record, settings)
        resume_run(record, chosen, deadline=deadline, allow_changed=allow_changed, as_json=json)
    if num_left_out:
        raise BadInput(f"not resumed, as said above: {num_left_out} of {len(records)}")


def other_engine(record: RunRecord, settings: Settings) -> str | None:
    """How to go on if a run began on another kind of engine than the settings name, else None."""
    from orchestrator.settings import EMBEDDED

    selected = settings.engine if settings.engine == EMBEDDED else "remote"
    if record.engine in ("", selected):
        return None
    recorded = "URL" if record.engine == "remote" else EMBEDDED
    return (
        f"run {record.id} began on engine {record.engine} with model {record.model}, and engine "
        f"{settings.engine} is selected: continue there with --engine {recorded}, or change the "
        f"engine with --engine {settings.engine}"
    )


def with_recorded_model(record: RunRecord, settings: Settings) -> Settings:
    """Settings with the model that a run began with, if it is known."""
    return settings.model_copy(update={"model": record.model}) if record.model else settings


async def runs_to_resume(url: str, prefix: str | None) -> list[RunRecord]:
    """The run with an id that begins with `prefix`; None: all orphaned runs, oldest first.

    An orphaned run that was to be cancelled is left out, and so is one of a queue.
    """
    from cli.reading.store_reader import existing_store
    from orchestrator.durability.liveness import is_orphaned
    from store.errors import RunNotFound
    from store.records import Status

    store = await existing_store(url)
    if store is None:
        if prefix is None:
            return []
        raise RunNotFound(prefix)
    async with store, store.reading() as tx:
        if prefix is not None:
            return [await tx.runs.find(prefix)]
        running = await tx.runs.newest(status=Status.RUNNING)
        orphans = [run for run in reversed(running) if is_orphaned(run)]
        # Those of queues are left to the workers.
        return [run for run in orphans if run.cancel_requested_at is None and run.queue is None]


def resume_run(
    record: RunRecord,
    settings: Settings,
    *,
    deadline: str | None = None,
    allow_changed: bool = False,
    as_json: bool = False,
    engine: Engine | None = None,
) -> None:
    """Resume one run, and print its result; of a completed run without starting an engine.

    Args:
        deadline: a new one, counted from now, as it was typed; None: the run keeps its own.
        engine: used instead of the one in the settings.
    """
    import asyncio

    from cli.terminal.signals import run_until_interrupted
    from cli.work.pipelines import pipeline_of_flow
    from cli.work.run_flow import deliver
    from cli.work.run_session import check_engine_settings, execute, load_executed, say_outcome
    from orchestrator.display.progress import RunProgress
    from store.records import Status

    if record.status is Status.COMPLETED:
        executed = asyncio.run(load_executed(settings, record.id))
        deliver(pipeline_of_flow(record.flow), executed, as_json=as_json)
        say_outcome(executed.result)
        return
    check_engine_settings(settings)
    progress = RunProgress()
    delivered: list[int] = []

    def hand_over(executed: Executed[object]) -> None:
        deliver(pipeline_of_flow(record.flow), executed, as_json=as_json)
        delivered.append(0)

    run_until_interrupted(
        execute(
            settings,
            lambda runtime: runtime.resume(
                record.id, deadline=deadline, allow_changed=allow_changed, may_import=True
            ),
            deliver=hand_over,
            progress=progress,
            engine=engine,
        ),
        run_id=lambda: progress.run_id,
        exit_code=lambda: delivered[0] if delivered else None,
    )
