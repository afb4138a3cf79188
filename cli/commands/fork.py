"""`orchestrate fork`: a new run that shares another one's history up to a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands import options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.failures import ExitCode
    from cli.work.run_session import Executed
    from orchestrator.runtime.forking import ForkPlan
    from orchestrator.settings import Settings
    from serving.generation import Engine

EPILOG = (
    "Example: orchestrate fork 3f2a --at plan\n\n"
    "With another value of one of its parameters: orchestrate fork 3f2a --at plan style=formal\n\n"
    "With another model and a minute from now: orchestrate fork 3f2a --at 'ask[1]/llm' "
    "--model Qwen/Qwen3-0.6B --deadline 60s\n\n"
    "What the run recorded up to the step is used again, whatever the arguments are now; what "
    "comes after is executed. The run itself stays as it is. `orchestrate logs` shows its steps."
)


def fork(
    run: Annotated[str, typer.Argument(help="A run's id, or the beginning of it.")],
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="STEP",
            help="The last step that is kept: its path, or the beginning or the end of it.",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="Parameters of the flow with other values than the run's, typed as for its "
            "options in `orchestrate run`.",
            show_default=False,
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            metavar="TIME",
            help="A new deadline, counted from now, such as 60s, 2m or 1.5h. Default: the run's, "
            "of which is used what it had used at the step.",
            show_default=False,
        ),
    ] = None,
    allow_effects: Annotated[
        bool,
        typer.Option(
            "--allow-effects",
            help="Fork it although it had external effects after the step, which may happen again.",
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
    model: options.Model = None,
    engine: options.Engine = None,
    policy: options.Policy = None,
    store: options.Store = None,
    json: options.Json = False,
    verbose: options.Verbose = None,
) -> None:
    """Go back to a step of a run, and go on from there as a new run."""
    import asyncio

    from cli.commands.resume import other_engine, with_recorded_model
    from cli.errors import BadInput
    from cli.work.flow_arguments import named_arguments
    from cli.work.trusted_code import confirm_import
    from orchestrator.durations import seconds_of
    from orchestrator.settings import read_settings

    if deadline is not None:
        seconds_of(deadline)  # refused before an engine starts
    settings = read_settings(
        store=store, engine=engine, model=model, policy=policy, verbose=verbose
    )
    plan = asyncio.run(read_plan(settings, run, at, allow_effects=allow_effects))
    origin = plan.origin.record
    if engine is None and (reason := other_engine(origin, settings)) is not None:
        raise BadInput(reason)
    confirm_import(origin, allow or ())
    flow: Any = plan.flow(None, may_import=True)
    given = named_arguments(flow, arguments or ())
    plan.arguments(flow, given)
    raise typer.Exit(
        fork_run(
            plan,
            settings if model is not None else with_recorded_model(origin, settings),
            arguments=given,
            deadline=deadline,
            as_json=json,
        )
    )


async def read_plan(settings: Settings, prefix: str, at: str, *, allow_effects: bool) -> ForkPlan:
    """The run with an id that begins with `prefix`, and the step at which it is to be forked.

    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do.
        NoForkPoint, EffectsAfterFork: as they say.
    """
    from cli.reading.store_reader import existing_store
    from orchestrator.runtime.forking import plan_fork
    from orchestrator.settings import payload_codec
    from store.errors import RunNotFound

    store = await existing_store(settings.store, codec=payload_codec(settings))
    if store is None:
        raise RunNotFound(prefix)
    async with store:
        async with store.reading() as tx:
            record = await tx.runs.find(prefix)
        return await plan_fork(store, record.id, at, allow_effects=allow_effects)


def fork_run(
    plan: ForkPlan,
    settings: Settings,
    *,
    arguments: Mapping[str, Any],
    deadline: str | None = None,
    as_json: bool = False,
    engine: Engine | None = None,
) -> ExitCode:
    """Fork a run, and print the fork's result.

    Args:
        deadline: a new one, counted from now, as it was typed; None: the run's.
        engine: used instead of the one in the settings.
    """
    from cli.failures import ExitCode
    from cli.terminal.output import say
    from cli.terminal.signals import run_until_interrupted
    from cli.work.pipelines import pipeline_of_flow
    from cli.work.run_flow import deliver
    from cli.work.run_session import check_engine_settings, execute
    from orchestrator.display.progress import RunProgress
    from orchestrator.display.run_text import counted

    check_engine_settings(settings)
    origin, at = plan.origin.record, plan.history.at.path
    progress = RunProgress()
    delivered: list[ExitCode] = []

    def hand_over(executed: Executed[object]) -> None:
        deliver(pipeline_of_flow(origin.flow), executed, as_json=as_json)
        delivered.append(ExitCode.DONE if executed.result.in_time else ExitCode.DEADLINE)

    say(f"run {origin.id} up to {at}: {counted(len(plan.history.kept.calls), 'call')} kept")
    run_until_interrupted(
        execute(
            settings,
            lambda runtime: runtime.fork(
                origin.id,
                at=at,
                arguments=arguments,
                deadline=deadline,
                allow_effects=plan.allow_effects,
                may_import=True,
            ),
            deliver=hand_over,
            progress=progress,
            engine=engine,
        ),
        run_id=lambda: progress.run_id,
        exit_code=lambda: delivered[0] if delivered else None,
    )
    return delivered[0]
