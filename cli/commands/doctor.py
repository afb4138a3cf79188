"""`orchestrate doctor`: check this installation, and say how to fix what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options
from cli.failures import ExitCode
from cli.terminal.output import print_json, say, stdout_console, width_of

if TYPE_CHECKING:
    from cli.work.findings import Finding
    from orchestrator.settings import Settings
    from serving.generation import Engine


def doctor(
    engine: Annotated[
        bool,
        typer.Option("--engine", help="Also start vLLM with the random model (about 10 s)."),
    ] = False,
    store: options.Store = None,
    json: options.Json = False,
    verbose: options.Verbose = None,
) -> None:
    """Check this installation, and say how to fix what is wrong."""
    from cli.work.checks import check
    from cli.work.facts import gather_facts
    from cli.work.findings import Level
    from cli.work.workspace_checks import check_workspaces
    from cli.work.workspace_facts import try_workspaces
    from orchestrator.settings import read_settings

    settings = read_settings(store=store, verbose=verbose)
    findings = [*check(gather_facts(settings)), check_workspaces(try_workspaces(settings))]
    if engine:
        findings.append(try_engine(settings))
    is_healthy = all(finding.level is not Level.FAIL for finding in findings)
    if json:
        from dataclasses import asdict

        print_json({"healthy": is_healthy, "checks": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    if not is_healthy:
        raise typer.Exit(ExitCode.RUN_FAILED)


def try_engine(settings: Settings, *, engine: Engine | None = None) -> Finding:
    """Start the embedded engine with the random model, and generate a few tokens.

    Args:
        engine: used instead of the embedded one.
    """
    import os

    from cli.failures import message_of
    from cli.terminal.progress import Activity
    from cli.terminal.signals import run_until_interrupted
    from cli.work.findings import Finding, Level
    from orchestrator.settings import EMBEDDED
    from orchestrator.wiring import engine_of
    from serving.engine.setup.config import RANDOM_MODEL
    from serving.errors import ServingError

    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    tiny = {"engine": EMBEDDED, "model": RANDOM_MODEL}
    tried = engine or engine_of(settings.model_copy(update=tiny))
    with Activity("starting vLLM with the random model (about 10 s)", verbose=settings.verbose):
        try:
            report = run_until_interrupted(_generate(tried))
        except ServingError as error:
            mend = "first fix the failed checks above, then try again with --verbose"
            return Finding("engine", Level.FAIL, message_of(error), mend)
    return Finding("engine", Level.OK, report)


async def _generate(engine: Engine) -> str:
    """Generate a few tokens, and report the engine's times, scheduler and policy."""
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


def _print(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from cli.work.findings import Level

    styles = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in findings:
        cell = Text(finding.found)
        if finding.mend:
            cell.append(f"\nfix: {finding.mend}", style="cyan")
        level = Text(finding.level, style=styles[finding.level])
        table.add_row(finding.name, level, cell)
    console = stdout_console()
    console.print(table, width=width_of(console))
    counts = [sum(finding.level is level for finding in findings) for level in Level]
    say(f"{counts[0]} ok, {counts[1]} warnings, {counts[2]} failed")
