"""What stands behind the figures of the README and of docs/: a command each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """One command.

    Attributes:
        shows: what it is a figure of.
        command: as a person would type it; `{data}` and `{out}` are the folders.
        reads: files and folders below `{data}` that it needs.
        imports: packages that it needs beside this project's own.
        is_timed: whether it measures this machine, which must be quiet.
    """

    shows: str
    command: str
    reads: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    is_timed: bool = False


RIVALS = ["fcfs", "edf", "sjf", "plas", "lsdf", "slai", "slos_serve", "annealing", "calm_published"]
FEW_SLOTS = [f"{name}:batch=96" for name in ["fcfs", "edf", "plas", "sjf", "slos_serve", "slai"]]
HEADROOMS = [*(f"calm:utilisation={share}" for share in (0.75, 0.85, 0.93)), "calm"]
CACHED = ["fcfs", "slai", "slos_serve", "calm"]


def _policies(names: Sequence[str]) -> str:
    return " ".join(f"--policy {name}" for name in names)


_TRACE = (
    "orchestrate bench --trace {{data}}/{} --policy fcfs --policy calm"
    " --loads 0.7,1.0,2.0 --seeds 2 --window-s 120"
)
_DEEP_RESEARCH = "agentic/jitserve_deepresearch_sample.json"
_TREES = "agentic/tot_game24_dag.json"
_SOON = "orchestrate bench {} --policy fcfs --policy calm --loads 0.7,1.0 --seeds 2 --window-s 60"

FIGURES = {
    "startup": Figure(
        "start of the program, of an engine, a first answer",
        "python -m benchmarks.startup",
        is_timed=True,
    ),
    "edf": Figure(
        "deadlines met by edf and by fcfs on the engine",
        "pytest -q -rP tests/engine/test_edf_against_fcfs.py",
    ),
    "overhead": Figure(
        "what a recorded step costs, beside LangGraph and DBOS",
        "python -m benchmarks.overhead",
        imports=("dbos", "langgraph.checkpoint.sqlite"),
        is_timed=True,
    ),
    "patterns": Figure(
        "how well and how fast past runs foretell a live one",
        "python benchmarks/patterns.py --data {data}/agentic",
        reads=("agentic",),
        is_timed=True,
    ),
    "lengths": Figure(
        "bounds on the length of answers",
        "python benchmarks/lengths.py --data {data}",
        reads=("traces", "agentic"),
        is_timed=True,
    ),
    "policies": Figure(
        "all policies at four loads, with the picture",
        f"orchestrate bench mixed {_policies([*RIVALS, 'calm'])}"
        " --loads 0.7,1.0,1.5,2.0 --seeds 3 --plot {out}/goodput.png",
    ),
    "oracle": Figure(
        "calm told the truth",
        "orchestrate bench mixed --policy calm --loads 0.7,1.0,1.5,2.0 --seeds 3"
        " --predictions oracle",
    ),
    "few-slots": Figure(
        "policies with 96 slots",
        f"orchestrate bench mixed {_policies(FEW_SLOTS)} --policy calm"
        " --loads 1.0,1.5,2.0 --seeds 3 --window-s 240",
    ),
    "steady": Figure(
        "calm in the long run, the bound, one pace",
        "python -m benchmarks.steady --loads 0.7,1.0,1.5,2.0",
    ),
    "ablation": Figure(
        "calm without each of its ingredients",
        "python -m benchmarks.ablation --loads 2 --seeds 3 --window-s 120",
    ),
    "conditions": Figure(
        "other work, promises, predictions, machines; no tags at all",
        "python -m benchmarks.robustness --loads 1,2 --seeds 2 --window-s 120",
    ),
    "unsteady": Figure(
        "a machine whose speed wanders",
        "python -m benchmarks.robustness --condition unsteady --loads 0.5,1,2 --seeds 3"
        " --window-s 240",
    ),
    "headroom": Figure(
        "how much time is left free",
        f"python -m benchmarks.robustness {_policies(HEADROOMS)}"
        " --loads 2 --seeds 2 --window-s 120",
    ),
    "deep-research": Figure(
        "a trace of deep research", _TRACE.format(_DEEP_RESEARCH), reads=(_DEEP_RESEARCH,)
    ),
    "trees": Figure("a trace of trees of thoughts", _TRACE.format(_TREES), reads=(_TREES,)),
    "chatbot": Figure("streams that begin soon", _SOON.format("chatbot")),
    "summarizer": Figure("the same, long prompts", _SOON.format("summarizer")),
    "coder": Figure("the same, short answers", _SOON.format("coder")),
    "loops": Figure(
        "loops that repeat their context",
        f"orchestrate bench tools --prefix-caching {_policies(CACHED)}"
        " --loads 1.0,2.0 --seeds 2 --window-s 120",
    ),
    "cached": Figure(
        "the mix with a prefix cache",
        f"orchestrate bench mixed --prefix-caching {_policies(CACHED)}"
        " --loads 0.7,2.0 --seeds 2 --window-s 120",
    ),
    "floods": Figure(
        "a user who floods the engine",
        "python -m benchmarks.fairness --policy calm --fairness 0 0.5 0.9 --seeds 3",
    ),
    "replicas": Figure(
        "several replicas, by router",
        "python -m benchmarks.replicas --policy calm --replicas 2,4,8 --seeds 1",
    ),
    "throughput": Figure(
        "tokens computed, promised or not",
        "python -m benchmarks.throughput --loads 0.7,1,1.5,2 --seeds 3",
        is_timed=True,
    ),
    "frames": Figure(
        "what a plan costs",
        "python -m benchmarks.frames --policy calm --requests 256 1024 4096",
        is_timed=True,
    ),
    "live": Figure(
        "fcfs and calm on the engine itself, and foretold",
        "python -m benchmarks.live --policy fcfs --policy calm --loads 0.6,2.0 --seeds 3"
        " --json {out}/live.json",
        is_timed=True,
    ),
}
"""By name, in the order of the documents."""
