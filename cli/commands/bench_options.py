"""The options of `orchestrate bench`; each says what it does, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PROGRAMS, _MACHINE = "The programs", "The machine"


def _workloads() -> list[str]:
    from serving.sim.workloads.workloads import WORKLOADS

    return list(WORKLOADS)


def _policies() -> list[str]:
    from serving.policies.table import POLICIES

    return list(POLICIES)


Workload = Annotated[
    str | None,
    typer.Argument(
        help="A generator of programs, after the papers' tables; an unknown one lists all. "
        "Default: mixed.",
        autocompletion=_workloads,
        show_default=False,
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME[:KEY=VALUE,...]",
        help="A policy to compare; repeatable. Default: fcfs, and the engine's own default.",
        autocompletion=_policies,
        show_default=False,
    ),
]
Loads = Annotated[
    str,
    typer.Option(
        "--loads",
        metavar="X,X,...",
        help="Multiples of the programs that fcfs drains a second, which is simulated first.",
    ),
]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", help="Runs with seeds 0 to N-1.")]
WindowS = Annotated[
    float | None,
    typer.Option(
        "--window-s",
        metavar="S",
        help="Programs that arrive in so many seconds count. Default: 600, on vLLM 240.",
        show_default=False,
    ),
]
WarmupS = Annotated[
    float, typer.Option("--warmup-s", metavar="S", help="Seconds of arrivals before those.")
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="sim|vllm",
        help="In virtual time, or on vLLM here with the demo model, in real time; "
        "ORCHESTRATE_MODEL does not change which.",
    ),
]
Traces = Annotated[
    list[Path] | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Programs of a file instead: Azure CSV, Mooncake JSONL, or JSON of workflows.",
        rich_help_panel=_PROGRAMS,
    ),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        "--arrivals",
        metavar="poisson|gamma|burst",
        help="How programs arrive: gamma in clusters, burst 5 times as dense for a tenth of the "
        "time. Default: as the trace has it, else poisson.",
        show_default=False,
        rich_help_panel=_PROGRAMS,
    ),
]
SloScale = Annotated[
    float,
    typer.Option(
        "--slo-scale",
        metavar="X",
        help="Multiplies every promised time; below 1 is harder.",
        rich_help_panel=_PROGRAMS,
    ),
]
Predictions = Annotated[
    str,
    typer.Option(
        "--predictions",
        metavar="learned|oracle|none",
        help="What policies are told of lengths and futures: with an error, the truth, nothing.",
        rich_help_panel=_PROGRAMS,
    ),
]
LengthBias = Annotated[
    float,
    typer.Option(
        "--length-bias",
        metavar="X",
        help="Multiplies every learned length: 2 or 0.5 are off by two.",
        rich_help_panel=_PROGRAMS,
    ),
]
FutureBias = Annotated[
    float,
    typer.Option(
        "--future-bias",
        metavar="X",
        help="Multiplies all of the learned rest of programs: 2 or 0.5 are off by two.",
        rich_help_panel=_PROGRAMS,
    ),
]
Machine = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="NAME",
        help="Whose step cost and memory are simulated. Default: a100-llama3-8b.",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
Slots = Annotated[
    int,
    typer.Option(
        "--slots", metavar="N", help="Most requests that run at once.", rich_help_panel=_MACHINE
    ),
]
StepTokens = Annotated[
    int | None,
    typer.Option(
        "--step-tokens",
        metavar="N",
        help="Most tokens of a step, at least as many as slots. Default: 2048, and 1024 for vllm.",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
PrefixCaching = Annotated[
    bool,
    typer.Option(
        "--prefix-caching",
        help="Calls of a program share the KV cache of what their prompts have in common.",
        rich_help_panel=_MACHINE,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        help="Simulating processes at once. Default: one a core.",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
Bound = Annotated[
    bool, typer.Option("--bound/--no-bound", help="Also find what no policy could exceed.")
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Also draw it: .png, .svg or .pdf."),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Compute all anew, and keep nothing of it.")
]
