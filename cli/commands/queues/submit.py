"""`orchestrate submit`: record a run for a worker to execute, now or by a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands import options
from cli.commands.flow_commands import FlowCommands, Given

if TYPE_CHECKING:
    from agents.pipeline import Pipeline
    from cli.work.flow_arguments import FlowParameter

EPILOG = (
    "Example: orchestrate submit my_flows.py:article --topic tides --deadline 2m --queue night\n\n"
    "Every night: orchestrate submit my_flows.py:article --topic tides --cron '30 2 * * *' "
    "--schedule tides\n\n"
    "A worker executes it: orchestrate worker --flows my_flows.py --queue night"
)

_QUEUE = "The queue"


def _option(flag: str, metavar: str, description: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=description, rich_help_panel=_QUEUE)


_OPTIONS: Mapping[str, tuple[Any, object]] = {
    "deadline": (options.deadline_option("none"), None),
    "queue": (
        Annotated[str, _option("--queue", "NAME", "The queue in which it waits.")],
        "default",
    ),
    "priority": (
        Annotated[int, _option("--priority", "N", "The higher, the earlier it is taken.")],
        0,
    ),
    "not_before": (
        Annotated[
            str | None,
            _option(
                "--not-before",
                "TIME",
                "No worker takes it before: 2h from now, or 2026-05-01T02:00+02:00. Its deadline "
                "counts from then.",
            ),
        ],
        None,
    ),
    "key": (
        Annotated[
            str | None,
            _option("--key", "TEXT", "While a run with this key waits or runs, take no other."),
        ],
        None,
    ),
    "attempts": (
        Annotated[int, _option("--attempts", "N", "After so many lost workers it is dead.")],
        3,
    ),
    "retry": (
        Annotated[
            str | None,
            _option("--retry", "TIME", "If it fails, try it again after this time, then twice it."),
        ],
        None,
    ),
    "user": (
        Annotated[str | None, _option("--user", "NAME", "Its user; default: ORCHESTRATE_USER.")],
        None,
    ),
    "schedule": (
        Annotated[str | None, _option("--schedule", "NAME", "Name of a schedule, with --cron.")],
        None,
    ),
    "cron": (
        Annotated[
            str | None,
            _option("--cron", "TIMES", "Submit it at these times: '30 2 * * mon-fri'."),
        ],
        None,
    ),
    "timezone": (
        Annotated[str, _option("--timezone", "ZONE", "Of --cron, such as Europe/Berlin.")],
        "UTC",
    ),
    "store": (options.Store, None),
    "json": (options.Json, False),
}


class _Flows(FlowCommands):
    """Submits the flow that it is given."""

    options = _OPTIONS

    @staticmethod
    def act(pipeline: Pipeline[Any], own: Mapping[FlowParameter, Any], given: Given) -> None:
        """Submit it, and say what is known of its deadline."""
        import asyncio

        from cli.work.queues.submission import submit

        asyncio.run(submit(pipeline, own, given))


app = typer.Typer(
    cls=_Flows,
    help="Submit a run to a queue: a worker executes it. Without a name: list the pipelines.",
    invoke_without_command=True,
    rich_markup_mode="rich",
    epilog=EPILOG,
    subcommand_metavar="PIPELINE|FILE.py:FLOW|MODULE:FLOW [ARGS]...",
)


@app.callback()
def _list_pipelines(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
