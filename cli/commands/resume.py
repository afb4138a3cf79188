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
    "Steps and calls with a recorded outcome are not repeated. The deadline counts from the "
    "run's first start."
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
    from cli.terminal.output import say
    from orchestrator.settings import read_settings

    if (run is None) != orphans:
        raise BadInput("give either a run's id, or --orphans")
    settings = read_settings(
        store=store, engine=engine, model=model, policy=policy, verbose=verbose
    )
    records = asyncio.run(runs_to_resume(settings.store, run))
    if not records:
        say("no orphaned runs")
    for record in records:
        resume_run(record, settings, allow_changed=allow_changed, as_json=json)


async def runs_to_resume(url: str, prefix: str | None) -> list[RunRecord]:
    """The run with an id that begins with `prefix`; None: all orphaned runs, oldest first."""
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
        return [run for run in reversed(running) if is_orphaned(run)]


def resume_run(
    record: RunRecord,
    settings: Settings,
    *,
    allow_changed: bool = False,
    as_json: bool = False,
    engine: Engine | None = None,
) -> None:
    """Resume one run, and print its result.

    Args:
        engine: used instead of the one in the settings.
    """
    from cli.terminal.progress import RunProgress
    from cli.terminal.signals import run_until_interrupted
    from cli.work.pipelines import pipeline_of_flow
    from cli.work.run_flow import deliver
    from cli.work.run_session import check_engine_settings, execute

    check_engine_settings(settings)
    progress = RunProgress()
    delivered: list[int] = []

    def hand_over(executed: Executed[object]) -> None:
        deliver(pipeline_of_flow(record.flow), executed, as_json=as_json)
        delivered.append(0)

    run_until_interrupted(
        execute(
            settings,
            lambda runtime: runtime.resume(record.id, allow_changed=allow_changed),
            deliver=hand_over,
            progress=progress,
            engine=engine,
        ),
        run_id=lambda: progress.run_id,
        exit_code=lambda: delivered[0] if delivered else None,
    )
