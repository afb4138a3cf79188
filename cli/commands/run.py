"""`orchestrate run PIPELINE`: each pipeline is a command here, with options of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands import options

app = typer.Typer(
    help="Run a pipeline. Without one: list them.",
    invoke_without_command=True,
    rich_markup_mode="rich",
    epilog='Example: orchestrate run deep-research "What is a sub-deadline?" --corpus docs',
)

_DEEP_RESEARCH_EXAMPLE = (
    'Example: orchestrate run deep-research "How is a deadline divided?" --corpus docs '
    "--deadline 60s --out report"
)


@app.callback()
def _list_pipelines(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("deep-research", epilog=_DEEP_RESEARCH_EXAMPLE)
def deep_research(
    question: Annotated[str, typer.Argument(help="What you want to know.", show_default=False)],
    corpus: Annotated[
        Path,
        typer.Option(
            "--corpus",
            metavar="DIR",
            help="A folder of documents: .md, .txt, .html, .pdf.",
            show_default=False,
        ),
    ],
    deadline: options.Deadline = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, max=20, help="Most rounds of searching and reading.")
    ] = 2,
    width: Annotated[
        int, typer.Option(metavar="N", min=1, max=20, help="Most questions looked up side by side.")
    ] = 3,
    model: options.Model = None,
    engine: options.Engine = None,
    policy: options.Policy = None,
    store: options.Store = None,
    record_text: options.RecordText = None,
    out: options.Out = None,
    json: options.Json = False,
    verbose: options.Verbose = None,
) -> None:
    """Research a question in a folder of documents; the report cites them, line by line."""
    from cli.work.deep_research import Request, run
    from orchestrator.settings import read_settings

    settings = read_settings(
        store=store,
        engine=engine,
        model=model,
        policy=policy,
        record_text=record_text,
        verbose=verbose,
    )
    request = Request(
        question=question,
        corpus=corpus,
        deadline=deadline,
        rounds=rounds,
        width=width,
        out=out,
        as_json=json,
    )
    raise typer.Exit(run(request, settings))
