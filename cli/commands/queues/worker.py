"""`orchestrate worker`: execute the runs of queues until SIGTERM."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.commands import options

EPILOG = (
    "Example: orchestrate worker --flows my_flows.py --queue nightly --concurrency 8\n\n"
    "SIGTERM or Ctrl-C: it takes no more runs, waits --grace for those in progress, and hands the "
    "rest back to their queue. A second signal leaves at once: other workers take the runs when "
    "their leases expire (ORCHESTRATE_LEASE_S)."
)


def worker(
    flows: Annotated[
        list[str] | None,
        typer.Option(
            "--flows",
            metavar="FILE.py|FILE.py:FLOW|MODULE:FLOW|PIPELINE",
            help="Flows of which it takes runs; repeatable. Default: the installed pipelines.",
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", metavar="NAME", help="A queue; repeatable, the first is served first."
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Runs that it executes at once.")
    ] = 4,
    any_version: Annotated[
        bool,
        typer.Option("--any-version", help="Also take runs submitted with other code."),
    ] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="For runs in progress, after SIGTERM.")
    ] = "30s",
    model: options.Model = None,
    engine: options.Engine = None,
    policy: options.Policy = None,
    store: options.Store = None,
    verbose: options.Verbose = None,
) -> None:
    """Take runs from queues and execute them, until it is told to stop."""
    import asyncio

    from cli.work.queues.working import work
    from orchestrator.settings import read_settings

    settings = read_settings(
        store=store, engine=engine, model=model, policy=policy, verbose=verbose
    )
    asyncio.run(
        work(
            settings,
            flows or (),
            queues=queue or ["default"],
            concurrency=concurrency,
            any_version=any_version,
            grace=grace,
        )
    )
