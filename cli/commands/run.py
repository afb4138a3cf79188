"""`orchestrate run`: a pipeline by its name, or a user's own flow by file or module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from cli.commands import options
from cli.commands.flow_commands import FlowCommands, Given

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


class _Flows(FlowCommands):
    """Runs the flow that it is given."""

    options = options.RUN_OPTIONS

    @staticmethod
    def act(pipeline: Pipeline[Any], own: Mapping[FlowParameter, Any], given: Given) -> None:
        """Run it, and print the result."""
        from cli.work.run_flow import run_flow
        from orchestrator.settings import read_settings

        settings = read_settings(**{each: given[each] for each in _SETTINGS})
        raise typer.Exit(
            run_flow(
                pipeline,
                own,
                settings,
                deadline=given["deadline"],
                out=given["out"],
                as_json=given["json"],
            )
        )


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
