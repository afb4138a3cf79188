"""The deep-research pipeline from the command line: check, run, deliver."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agents.deep_research.pipeline import deep_research, expected_stages
from agents.deep_research.report import Report, to_json, to_markdown
from cli.errors import BadInput
from cli.failures import ExitCode
from cli.terminal.atomic_write import prepare_folder, save
from cli.terminal.output import print_json, results, say
from cli.terminal.progress import RunProgress
from cli.terminal.signals import run_until_interrupted
from cli.work.run_session import Executed, check_engine_settings, execute, open_corpus
from orchestrator.settings import Settings
from serving.generation import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for on the command line.

    Attributes:
        deadline: as it was written, like "60s"; None: none.
        out: the folder to save the report in.
        as_json: print JSON instead of Markdown.
    """

    question: str
    corpus: Path
    deadline: str | None
    rounds: int
    width: int
    out: Path | None
    as_json: bool


def run(request: Request, settings: Settings, *, engine: Engine | None = None) -> ExitCode:
    """Do what was asked for; what is cheap to refuse is refused before anything slow begins.

    Args:
        engine: used instead of the one that the settings name.
    """
    if not request.question.strip():
        raise BadInput("the question is empty")
    flow = deep_research.options(deadline=request.deadline, stages=expected_stages(request.rounds))
    check_engine_settings(settings)
    if request.out is not None:
        prepare_folder(request.out)
    progress = RunProgress()

    delivered: list[ExitCode] = []

    def hand_over(executed: Executed[Report]) -> None:
        deliver(executed, request)
        delivered.append(ExitCode.DONE if executed.result.in_time else ExitCode.DEADLINE)

    async def work() -> None:
        corpus = await open_corpus(request.corpus, verbose=settings.verbose)
        await execute(
            settings,
            lambda runtime: runtime.run(
                flow, request.question, corpus, rounds=request.rounds, width=request.width
            ),
            deliver=hand_over,
            progress=progress,
            engine=engine,
        )

    run_until_interrupted(
        work(),
        run_id=lambda: progress.run_id,
        exit_code=lambda: delivered[0] if delivered else None,
    )
    return delivered[0]


def deliver(executed: Executed[Report], request: Request) -> None:
    """Print the report, and save it where that was asked for; raises CannotWrite."""
    markdown = to_markdown(executed.result, executed.info)
    document = to_json(executed.result, executed.info)
    if request.as_json:
        print_json(document)
    else:
        _print_markdown(markdown)
    if request.out is not None:
        save(request.out / "report.md", markdown)
        save(request.out / "report.json", json.dumps(document, indent=2, ensure_ascii=False))
        say(f"saved {request.out / 'report.md'} and report.json")


def _print_markdown(markdown: str) -> None:
    """Laid out for a terminal; as it is for everything else."""
    console = results()
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown(markdown))
    else:
        console.file.write(markdown)
        console.file.flush()
