"""Options that several commands share, with their help texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer


def policy_names() -> list[str]:
    """The names of all policies, for the shell's completion."""
    from serving.policies.table import POLICIES

    return list(POLICIES)


_ENGINE = "The engine"
RECORDS = "Records and output"
STATE = (
    "RUN (its last state), RUN@CHECKPOINT, RUN@STEP, or a state's id. Runs and states are named by "
    "the beginning of their ids, states by 6 characters at least."
)

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A Hugging Face id, a folder, smollm2 or random. Default: smollm2 (135M parameters)"
        " if its package is installed, else random (random weights, meaningless text).",
        rich_help_panel=_ENGINE,
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="embedded|URL",
        help="vLLM in this process, or the URL of an OpenAI-compatible server.",
        rich_help_panel=_ENGINE,
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME|FILE.py:FUNCTION",
        help="Scheduling policy of the embedded engine; your own function works too.",
        autocompletion=policy_names,
        rich_help_panel=_ENGINE,
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="sqlite:///FILE or postgresql://... Default: a file in your data folder.",
        rich_help_panel=RECORDS,
    ),
]
RecordText = Annotated[
    bool | None,
    typer.Option(
        "--record-text/--no-record-text",
        help="Record the text of prompts and answers in the store.",
        show_default=False,
        rich_help_panel=RECORDS,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Also save the result there, as Markdown and as JSON.",
        rich_help_panel=RECORDS,
    ),
]
WorkspaceName = Annotated[
    str | None,
    typer.Option(
        "--workspace",
        metavar="NAME",
        help="One of the run's workspaces and forks. Default: the first one that it began.",
        rich_help_panel=RECORDS,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel=RECORDS),
]
Verbose = Annotated[
    bool | None,
    typer.Option(
        "--verbose",
        help="Show the engine's log, its scheduler, and tracebacks of errors.",
        show_default=False,
        rich_help_panel=RECORDS,
    ),
]


def deadline_option(own: str) -> Any:
    """The option `--deadline` of a flow.

    Args:
        own: the default: the flow's own deadline, or "none".
    """
    option = typer.Option(
        "--deadline",
        metavar="TIME",
        help=f"End-to-end deadline of the run, such as 60s, 2m or 1.5h. Default: {own}.",
    )
    return Annotated[str | None, option]


RUN_OPTIONS: Mapping[str, tuple[Any, object]] = {
    "deadline": (deadline_option("none"), None),
    "model": (Model, None),
    "engine": (Engine, None),
    "policy": (Policy, None),
    "store": (Store, None),
    "record_text": (RecordText, None),
    "out": (Out, None),
    "json": (Json, False),
    "verbose": (Verbose, None),
}
"""The options of every `orchestrate run`, besides the flow's parameters: type and default."""
