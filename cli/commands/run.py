"""`orchestrate run`: a pipeline by its name, or a user's own flow by file or module."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from cli.commands import options

if TYPE_CHECKING:
    from agents.pipeline import Pipeline
    from cli.work.flow_arguments import FlowParameter

EPILOG = (
    'Example: orchestrate run deep-research "What is a sub-deadline?" --corpus docs\n\n'
    "Your own flow: orchestrate run path/to/file.py:flow --topic deadlines --deadline 20s\n\n"
    "Its options are its parameters: orchestrate run path/to/file.py:flow --help"
)

_SETTINGS = ("store", "engine", "model", "policy", "record_text", "verbose")
"""Options that are settings of the runtime; the others are of the command."""


class _Flows(TyperGroup):
    """Each pipeline is a command, and so is every reference to a flow."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The installed pipelines."""
        from cli.work.pipelines import pipelines

        return list(pipelines())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a pipeline or flow."""
        from cli.errors import BadInput
        from cli.work.pipelines import find_pipeline, pipelines

        pipeline = find_pipeline(cmd_name)
        if pipeline is None:
            raise BadInput(
                f"no pipeline {cmd_name!r}: there is {', '.join(pipelines()) or 'none'};"
                " a flow of your own is run as path/to/file.py:flow or module:flow"
            )
        return _command_of(cmd_name, pipeline)


app = typer.Typer(
    cls=_Flows,
    help="Run a pipeline, or a flow of your own. Without a name: list the pipelines.",
    invoke_without_command=True,
    rich_markup_mode="rich",
    epilog=EPILOG,
    subcommand_metavar="PIPELINE|FILE.py:FLOW|MODULE:FLOW [ARGS]...",
)


@app.callback()
def _list_pipelines(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _command_of(name: str, pipeline: Pipeline[Any]) -> Any:
    """The command that runs a pipeline; its options are the flow's parameters and run's own."""
    from cli.work.flow_arguments import parameters_of, summary_of
    from orchestrator.durations import shown

    taken = {"help", *(each.replace("_", "-") for each in options.RUN_OPTIONS)}
    parameters = parameters_of(pipeline.flow, taken=taken)

    def command(**given: Any) -> None:
        from cli.work.run_flow import run_flow
        from orchestrator.settings import read_settings

        own = {each: given[_key(each)] for each in parameters}
        settings = read_settings(**{each: given[each] for each in _SETTINGS})
        raise typer.Exit(
            run_flow(
                pipeline,
                {each: typed for each, typed in own.items() if typed is not None},
                settings,
                deadline=given["deadline"],
                out=given["out"],
                as_json=given["json"],
            )
        )

    signature = [
        _keyword(_key(each), *_option_of(each, is_argument=each.name == pipeline.argument))
        for each in parameters
    ]
    own_s = pipeline.flow.deadline_s
    run_options = dict(options.RUN_OPTIONS)
    if own_s is not None:
        run_options["deadline"] = (options.deadline_option(shown(own_s)), None)
    signature += [_keyword(each, *option) for each, option in run_options.items()]
    vars(command)["__signature__"] = inspect.Signature(signature)
    command.__annotations__ = {each.name: each.annotation for each in signature}
    example = f"Example: {pipeline.example}" if pipeline.example else None
    alone = typer.Typer(
        rich_markup_mode="rich",
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    summary = escape(summary_of(pipeline.flow)) or None
    alone.command(name, help=summary, epilog=example)(command)
    return typer.main.get_command(alone)


def _key(parameter: FlowParameter) -> str:
    """The name of a flow's parameter among those of the command."""
    return f"flow_{parameter.name}"


def _keyword(name: str, annotation: Any, default: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _option_of(parameter: FlowParameter, *, is_argument: bool) -> tuple[Any, object]:
    """Type and default of the command's parameter that stands for a flow's parameter."""
    from cli.work.flow_arguments import Shape

    kind: Any = {Shape.FLAG: bool, Shape.REPEATED: list[str]}.get(parameter.shape, str)
    default = inspect.Parameter.empty if parameter.is_required else parameter.typed_default
    if is_argument:
        argument = typer.Argument(metavar=parameter.option.upper(), help=escape(parameter.help))
        return Annotated[kind, argument], default
    flag = f"--{parameter.option}"
    if parameter.shape is Shape.FLAG:
        flag = f"{flag}/--no-{parameter.option}"
    option = typer.Option(
        flag,
        metavar=None if parameter.shape is Shape.FLAG else parameter.metavar,
        help=escape(parameter.help),
        show_default=parameter.shown_default or True,
    )
    return Annotated[kind if parameter.is_required else kind | None, option], default
