"""`orchestrate doctor`: what is wrong with this installation, and how to mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options
from cli.failures import ExitCode
from cli.terminal.output import print_json, results, say, width_of

if TYPE_CHECKING:
    from cli.work.checks import Finding
    from orchestrator.settings import Settings
    from serving.generation import Engine


def doctor(
    engine: Annotated[
        bool,
        typer.Option("--engine", help="Really start vLLM with the demo model (about 10 s)."),
    ] = False,
    store: options.Store = None,
    json: options.Json = False,
    verbose: options.Verbose = None,
) -> None:
    """Check this installation, and say how to mend what is wrong."""
    from cli.work.checks import Level, findings
    from cli.work.facts import gather_facts
    from orchestrator.settings import read_settings

    settings = read_settings(store=store, verbose=verbose)
    found = findings(gather_facts(settings))
    if engine:
        found.append(try_engine(settings))
    healthy = all(finding.level is not Level.FAIL for finding in found)
    if json:
        from dataclasses import asdict

        print_json({"healthy": healthy, "checks": [asdict(finding) for finding in found]})
    else:
        _print(found)
    if not healthy:
        raise typer.Exit(ExitCode.RUN_FAILED)


def try_engine(settings: Settings, *, engine: Engine | None = None) -> Finding:
    """Start the embedded engine with the demo model, and have it say something.

    Args:
        engine: tried instead.
    """
    import os

    from cli.failures import message_of
    from cli.terminal.progress import Activity
    from cli.terminal.signals import run_until_interrupted
    from cli.work.checks import Finding, Level
    from orchestrator.settings import EMBEDDED
    from orchestrator.wiring import engine_of
    from serving.engine.setup.config import DEMO_MODEL
    from serving.errors import ServingError

    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    demo = {"engine": EMBEDDED, "model": DEMO_MODEL}
    tried = engine or engine_of(settings.model_copy(update=demo))
    with Activity("starting vLLM with the demo model (about 10 s)", verbose=settings.verbose):
        try:
            told = run_until_interrupted(_generate(tried))
        except ServingError as error:
            mend = "mend the checks above that fail, then see --verbose"
            return Finding("engine", Level.FAIL, message_of(error), mend)
    return Finding("engine", Level.OK, told)


async def _generate(engine: Engine) -> str:
    """Have an engine put out a few tokens; how it went, in words."""
    import time

    from orchestrator.durations import shown
    from serving.generation import GenerationRequest

    began_s = time.monotonic()
    try:
        await engine.start()
        ready_s = time.monotonic()
        request = GenerationRequest(request_id="doctor", prompt="Say something.", max_tokens=8)
        completion = await engine.generate(request)
        generated_s = time.monotonic() - ready_s
        info = engine.info
    finally:
        await engine.close()
    return (
        f"started in {shown(ready_s - began_s)}, {completion.usage.output_tokens} tokens in "
        f"{shown(generated_s)}, {info.scheduler or info.name}, policy {info.policy or 'none'}"
    )


def _print(found: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from cli.work.checks import Level

    styles = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in found:
        told = Text(finding.found)
        if finding.mend:
            told.append(f"\nmend: {finding.mend}", style="cyan")
        level = Text(finding.level, style=styles[finding.level])
        table.add_row(finding.name, level, told)
    console = results()
    console.print(table, width=width_of(console))
    counts = [sum(finding.level is level for finding in found) for level in Level]
    say(f"{counts[0]} ok, {counts[1]} to look at, {counts[2]} failed")
