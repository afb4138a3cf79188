"""The options of `orchestrate bench`, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands.options import policy_names

_PROGRAMS, _MACHINE = "The programs", "The machine"


def _workloads() -> list[str]:
    from serving.sim.workloads.workloads import WORKLOADS

    return list(WORKLOADS)


Workload = Annotated[
    str | None,
    typer.Argument(
        help="Generator of programs, most from the tables of published workloads; an unknown name "
        "lists all. Default: mixed.",
        autocompletion=_workloads,
        show_default=False,
    ),
]
Suite = Annotated[
    bool,
    typer.Option(
        "--suite",
        help="Run many workloads instead of one, and report over all of them. Two seeds of five "
        "policies at three loads, with --window-s 120, take an hour and a half on two cores.",
        rich_help_panel=_PROGRAMS,
    ),
]
Only = Annotated[
    str | None,
    typer.Option(
        "--only",
        metavar="NAME,NAME,...",
        help="Run only these entries of the suite; an unknown name lists all.",
        rich_help_panel=_PROGRAMS,
        show_default=False,
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME|FILE.py:FUNCTION[:KEY=VALUE,...]",
        help="Policy to compare, by name or your own; repeatable. Default: fcfs and the engine's "
        "default policy.",
        autocompletion=policy_names,
        show_default=False,
    ),
]
Loads = Annotated[
    str | None,
    typer.Option(
        "--loads",
        metavar="X,X,...",
        help="Arrival rates, as multiples of the capacity under fcfs, which is simulated first. "
        "Default: 0.7,1.0,1.5,2.0.",
        show_default=False,
    ),
]
Seeds = Annotated[
    str,
    typer.Option(
        "--seeds",
        metavar="N|A-B|A,B,...",
        help="Repeat each run with each seed: 3 means seeds 0 to 2; 10-10, 10-11 and 10,12 name "
        "them. "
        "Seeds 0 to 9 are for tuning, those from 10 on for reporting what was not tuned on them.",
    ),
]
WindowS = Annotated[
    float | None,
    typer.Option(
        "--window-s",
        metavar="S",
        help="Length of the measured window of arrivals, in seconds. Default: 600, on vLLM 240.",
        show_default=False,
    ),
]
WarmupS = Annotated[
    float, typer.Option("--warmup-s", metavar="S", help="Seconds of arrivals before the window.")
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="sim|vllm",
        help="Simulate in virtual time, or measure vLLM on this machine in real time, always with "
        "the random model (ORCHESTRATE_MODEL is ignored).",
    ),
]
Traces = Annotated[
    list[Path] | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Read the programs from a file: Azure CSV, Mooncake JSONL, or JSON of workflows.",
        rich_help_panel=_PROGRAMS,
    ),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        "--arrivals",
        metavar="poisson|gamma|burst|day",
        help="Arrival process: gamma is clustered; burst has 5 times the rate for a tenth of the "
        "time; day swings between calm and a rush of 4 times the rate. Default: the trace's own "
        "times, or the workload's own process, which is poisson for most.",
        show_default=False,
        rich_help_panel=_PROGRAMS,
    ),
]
SloScale = Annotated[
    float,
    typer.Option(
        "--slo-scale",
        metavar="X",
        help="Multiply the times of all SLOs; below 1 they are tighter.",
        rich_help_panel=_PROGRAMS,
    ),
]
Capacity = Annotated[
    float | None,
    typer.Option(
        "--capacity",
        metavar="SHARE",
        help="Instead of a comparison, find the highest load at which each policy keeps this "
        "share of its promises, such as 0.9. A load is that of each machine.",
        rich_help_panel=_PROGRAMS,
    ),
]
Replicas = Annotated[
    str | None,
    typer.Option(
        "--replicas",
        metavar="LIST",
        help="With --capacity: numbers of machines, such as 1,2,4. Default: 1.",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
Predictions = Annotated[
    str,
    typer.Option(
        "--predictions",
        metavar="noisy|learned|oracle|none",
        help="Predictions that policies get of answer lengths and remaining work: the truth with "
        "an error; learned from other programs, as in production; the truth; or none.",
        rich_help_panel=_PROGRAMS,
    ),
]
LearnedRuns = Annotated[
    int | None,
    typer.Option(
        "--learned-runs",
        metavar="N",
        help="With --predictions learned: number of programs that are recorded and learned from "
        "before. Default: 100.",
        show_default=False,
        rich_help_panel=_PROGRAMS,
    ),
]
LearnFrom = Annotated[
    Path | None,
    typer.Option(
        "--learn-from",
        metavar="FILE",
        help="With --predictions learned and --trace: another trace, to learn from its programs.",
        rich_help_panel=_PROGRAMS,
    ),
]
LengthBias = Annotated[
    float,
    typer.Option(
        "--length-bias",
        metavar="X",
        help="Multiply every noisy answer length, to test wrong predictions.",
        rich_help_panel=_PROGRAMS,
    ),
]
FutureBias = Annotated[
    float,
    typer.Option(
        "--future-bias",
        metavar="X",
        help="Multiply the noisy remaining work of programs, to test wrong predictions.",
        rich_help_panel=_PROGRAMS,
    ),
]
Machine = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="NAME",
        help="Machine to simulate: its step cost and memory. Default: a100-llama3-8b.",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
Slots = Annotated[
    int,
    typer.Option(
        "--slots",
        metavar="N",
        help="Maximum number of requests that run at once.",
        rich_help_panel=_MACHINE,
    ),
]
StepTokens = Annotated[
    int | None,
    typer.Option(
        "--step-tokens",
        metavar="N",
        help="Maximum number of tokens in a step, at least --slots. Default: 2048, on vLLM 1024.",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
PrefixCaching = Annotated[
    bool,
    typer.Option(
        "--prefix-caching",
        help="Let the calls of a program share the KV cache of their common prompt prefix.",
        rich_help_panel=_MACHINE,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        help="Number of simulating processes. Default: one per core.",
        show_default=False,
        rich_help_panel=_MACHINE,
    ),
]
Bound = Annotated[
    bool,
    typer.Option("--bound/--no-bound", help="Also compute an upper bound on any policy's goodput."),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help="Also draw a chart to this .png, .svg or .pdf file."
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Neither read nor write the result cache.")
]
