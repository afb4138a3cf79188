"""The commands that produce the figures of the README and of docs/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """One command.

    Attributes:
        shows: the content of the figure.
        command: as typed in a shell; `{data}` and `{out}` are folders.
        reads: files and folders below `{data}` that it needs.
        imports: further packages that it needs.
        is_timed: whether it measures this machine, which must be idle otherwise.
    """

    shows: str
    command: str
    reads: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    is_timed: bool = False


RIVALS = ["fcfs", "edf", "sjf", "plas", "lsdf", "slai", "slos_serve", "annealing", "calm_published"]
FEW_SLOTS = [f"{name}:batch=96" for name in ["fcfs", "edf", "plas", "sjf", "slos_serve", "slai"]]
PACED = ["fcfs", "edf", "sjf", "lsdf", "slai", "slos_serve"]
CACHED = ["fcfs", "slai", "slos_serve", "calm"]


def _policies(names: Sequence[str]) -> str:
    return " ".join(f"--policy {name}" for name in names)


_TRACE = (
    "orchestrate bench --trace {{data}}/{} --policy fcfs --policy calm"
    " --loads 0.7,1.0,2.0 --seeds 2 --window-s 120"
)
_DEEP_RESEARCH = "agentic/jitserve_deepresearch_sample.json"
_TREES = "agentic/tot_game24_dag.json"
_SHORT_TTFT = (
    "orchestrate bench {} --policy fcfs --policy calm --loads 0.7,1.0 --seeds 2 --window-s 60"
)

FIGURES = {
    "startup": Figure(
        "time to start the program and an engine, and to the first answer",
        "python -m benchmarks.startup",
        is_timed=True,
    ),
    "workspaces": Figure(
        "checkpoint, fork, rewind and merge of a folder of 20,000 files",
        "python -m benchmarks.environment --files 20000 --folder /var/tmp",
        is_timed=True,
    ),
    "edf": Figure(
        "deadlines met by edf and fcfs on the engine",
        "pytest -q -rP tests/engine/test_edf_against_fcfs.py",
    ),
    "overhead": Figure(
        "cost of a recorded step, compared with LangGraph and DBOS",
        "python -m benchmarks.overhead",
        imports=("dbos", "langgraph.checkpoint.sqlite"),
        is_timed=True,
    ),
    "patterns": Figure(
        "accuracy and speed of predictions from past runs",
        "python -m benchmarks.patterns --data {data}/agentic",
        reads=("agentic",),
        is_timed=True,
    ),
    "lengths": Figure(
        "upper bounds on the length of answers",
        "python -m benchmarks.lengths --data {data}",
        reads=("traces", "agentic"),
        is_timed=True,
    ),
    "policies": Figure(
        "all policies at four loads, with the chart",
        f"orchestrate bench mixed {_policies([*RIVALS, 'calm'])}"
        " --loads 0.7,1.0,1.5,2.0 --seeds 3 --plot {out}/goodput.png",
    ),
    "calm": Figure(
        "calm on seeds for reporting",
        "orchestrate bench mixed --policy calm --loads 0.7,1.0,2.0 --seeds 10-14 --window-s 120",
    ),
    **{
        name.replace("_", "-"): Figure(
            f"answers in two parts: {name}",
            f"orchestrate bench {name} {_policies([*PACED, 'calm'])}"
            " --loads 0.7,1.0,2.0 --seeds 10-11 --window-s 120",
        )
        for name in ("streamed_research", "thinking", "two_paces")
    },
    "oracle": Figure(
        "calm with oracle predictions",
        "orchestrate bench mixed --policy calm --loads 0.7,1.0,1.5,2.0 --seeds 3"
        " --predictions oracle",
    ),
    "few-slots": Figure(
        "policies with 96 slots",
        f"orchestrate bench mixed {_policies(FEW_SLOTS)} --policy calm"
        " --loads 1.0,1.5,2.0 --seeds 3 --window-s 240",
    ),
    "steady": Figure(
        "calm in a long window, the upper bound, the best constant step duration",
        "python -m benchmarks.steady --loads 0.7,1.0,1.5,2.0",
    ),
    "learned": Figure(
        "learned predictions against given ones, and how many runs they need",
        "python -m benchmarks.learned --data {data}",
        reads=("agentic",),
    ),
    "sub-deadlines": Figure(
        "when sub-deadlines of stages steer better than the program's deadline",
        "python -m benchmarks.sub_deadlines --future noisy missing --window-s 60",
    ),
    **{
        f"capacity-{name}": Figure(
            f"the load at which 90% of the promises are kept: {name}",
            f"orchestrate bench {name} --policy fcfs --policy calm --capacity 0.9"
            f" --seeds 10-11 --window-s {window_s}",
        )
        for name, window_s in {"mixed": 120, "agentic": 120, "chat": 60}.items()
    },
    "capacity-replicas": Figure(
        "the load at which 90% of the promises are kept: mixed on 2 and 4 machines",
        "orchestrate bench mixed --policy fcfs --policy calm --capacity 0.9 --replicas 2,4"
        " --seeds 10-11 --window-s 60",
    ),
    "ablation": Figure(
        "calm without one of its ingredients at a time",
        "python -m benchmarks.ablation --loads 2 --seeds 2 --window-s 120",
    ),
    "claims": Figure(
        "the papers' headline claims, each in its own setting",
        "python -m benchmarks.claims --data {data}",
        reads=("traces",),
    ),
    "conditions": Figure(
        "other workloads, SLOs, predictions and machines; requests without tags",
        "python -m benchmarks.robustness --loads 1,2 --seeds 2 --window-s 120",
    ),
    "unsteady": Figure(
        "a machine with varying speed",
        "python -m benchmarks.robustness --condition unsteady --loads 0.5,1,2 --seeds 3"
        " --window-s 240",
    ),
    "deep-research": Figure(
        "a trace of deep research", _TRACE.format(_DEEP_RESEARCH), reads=(_DEEP_RESEARCH,)
    ),
    "trees": Figure("a trace of trees of thoughts", _TRACE.format(_TREES), reads=(_TREES,)),
    "chatbot": Figure("streams with a short TTFT", _SHORT_TTFT.format("chatbot")),
    "summarizer": Figure("the same, long prompts", _SHORT_TTFT.format("summarizer")),
    "coder": Figure("the same, short answers", _SHORT_TTFT.format("coder")),
    "loops": Figure(
        "agent loops that repeat their context",
        f"orchestrate bench tools --prefix-caching {_policies(CACHED)}"
        " --loads 1.0,2.0 --seeds 2 --window-s 120",
    ),
    "cached": Figure(
        "the mixed workload with a prefix cache",
        f"orchestrate bench mixed --prefix-caching {_policies(CACHED)}"
        " --loads 0.7,2.0 --seeds 2 --window-s 120",
    ),
    "suite": Figure(
        "all policies on many kinds of work",
        f"orchestrate bench --suite {_policies([*RIVALS, 'calm'])}"
        " --loads 0.7,1.0,1.5,2.0 --seeds 10-11 --window-s 120",
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
        "throughput, in time or not",
        "python -m benchmarks.throughput --loads 0.7,1,1.5,2 --seeds 3",
        is_timed=True,
    ),
    "frames": Figure(
        "cost of a plan",
        "python -m benchmarks.frames --policy calm --requests 256 1024 4096",
        is_timed=True,
    ),
    "scheduling": Figure(
        "scheduling's share of a step on the real engine, beside vLLM's own scheduler",
        "python -m benchmarks.scheduling --steps 30",
        is_timed=True,
    ),
    "live": Figure(
        "fcfs and calm on the real engine, measured and simulated",
        "python -m benchmarks.live --policy fcfs --policy calm --loads 0.6,2.0 --seeds 3"
        " --json {out}/live.json",
        is_timed=True,
    ),
    "end-to-end": Figure(
        "deadlines of whole runs kept by policy, on the real engine with the default model",
        "python -m benchmarks.end_to_end --json {out}/end_to_end.json",
        is_timed=True,
    ),
    "live-replicas": Figure(
        "routers on two real replicas behind the gateway, measured and simulated",
        "python -m benchmarks.live_replicas --seeds 3 --json {out}/live_replicas.json",
        is_timed=True,
    ),
}
"""Name -> figure, in the order of the documents."""
