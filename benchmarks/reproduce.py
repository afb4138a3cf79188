"""The commands behind the figures of the README and of docs/, one after another, into files.

    make figures
    python -m benchmarks.reproduce [--out figures] [--only NAME ...] [--data DIR] [--list]

What each command prints is in OUT/NAME.txt once it has succeeded, and is not computed again while
that is there: stopped, it goes on where it was. All of it takes a night on two cores, and nothing
else may run beside those that measure time (`--list` says which do). Those that read public traces
and workflows, which are not part of this project, want their folder, and one the packages that it
compares with: without these they are left out, and say so.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.comparing import say
from cli.errors import CannotWrite, CommandError

ROOT = Path(__file__).resolve().parents[1]

PROGRAMS = {
    "python": (sys.executable,),
    "orchestrate": (sys.executable, "-m", "cli"),
    "pytest": (sys.executable, "-m", "pytest"),
}
"""What a command may begin with, as programs of this very environment."""


class Figure(NamedTuple):
    """One command.

    Attributes:
        shows: what it is a figure of.
        command: as a person would type it; `{data}` and `{out}` are the folders.
        reads: the file or folder below `{data}` that it needs; nothing if that is empty.
        imports: likewise a package that is not among this project's own.
        is_timed: whether it measures this machine, which must be quiet.
    """

    shows: str
    command: str
    reads: str = ""
    imports: str = ""
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
        imports="dbos",
        is_timed=True,
    ),
    "patterns": Figure(
        "how well and how fast past runs foretell a live one",
        "python benchmarks/patterns.py --data {data}/agentic",
        reads="agentic",
        is_timed=True,
    ),
    "lengths": Figure(
        "bounds on the length of answers",
        "python benchmarks/lengths.py --data {data}",
        reads="traces",
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
    "margin": Figure(
        "how much of what it takes who begins must have",
        "orchestrate bench mixed --policy calm:margin=0.75 --policy calm:margin=0.65"
        " --policy calm:margin=0.55 --loads 1.0,1.5,2.0 --seeds 2 --window-s 120",
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
        "a trace of deep research", _TRACE.format(_DEEP_RESEARCH), reads=_DEEP_RESEARCH
    ),
    "trees": Figure("a trace of trees of thoughts", _TRACE.format(_TREES), reads=_TREES),
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


def argv(command: str, folders: dict[str, Path]) -> list[str]:
    """The arguments of a process, from what a person would type."""
    program, *rest = shlex.split(command)
    return [*PROGRAMS[program], *(each.format(**folders) for each in rest)]


def reproduce(names: Sequence[str], *, out: Path, data: Path) -> bool:
    """Run these commands; whether none of them failed.

    Raises:
        CannotWrite: the output folder cannot be made.
    """
    folders = {"out": out.resolve(), "data": data.resolve()}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(out, error.strerror or str(error)) from error
    failed = [name for name in names if not _computed(name, folders)]
    if failed:
        say(f"failed: {', '.join(failed)}; what they printed is in {out}/NAME.failed.txt")
    return not failed


def _computed(name: str, folders: dict[str, Path]) -> bool:
    """Whether this figure is there now, or cannot be for want of something."""
    figure, kept = FIGURES[name], folders["out"] / f"{name}.txt"
    if kept.exists():
        say(f"{name}: in {kept} already")
        return True
    if missing := _missing(figure, folders["data"]):
        say(f"{name}: left out, {missing}")
        return True
    say(f"{name}: {figure.command.format(**folders)}")
    began_s = time.monotonic()
    unfinished = kept.with_suffix(".failed.txt")
    with unfinished.open("w", encoding="utf-8") as printed:
        code = subprocess.run(
            argv(figure.command, folders), stdout=printed, cwd=ROOT, check=False
        ).returncode
    took = f"{(time.monotonic() - began_s) / 60:.1f} min"
    if code:
        say(f"{name}: exit code {code} after {took}")
        return False
    unfinished.rename(kept)
    say(f"{name}: {kept}, {took}")
    return True


def _missing(figure: Figure, data: Path) -> str:
    """What it wants that is not here, and how to get it; nothing if that is empty."""
    if figure.reads and not (data / figure.reads).exists():
        return f"{data / figure.reads} is not here; see --data"
    if figure.imports and find_spec(figure.imports) is None:
        return f"{figure.imports} is not installed; see requirements/rivals.txt"
    return ""


def listed() -> str:
    """A line for each figure, and its command."""
    lines = []
    for name, figure in FIGURES.items():
        marks = [f"reads {figure.reads}"] * bool(figure.reads)
        marks += [f"imports {figure.imports}"] * bool(figure.imports)
        marks += ["measures this machine"] * figure.is_timed
        told = f"{figure.shows} ({'; '.join(marks)})" if marks else figure.shows
        lines += [f"{name:14} {told}", f"{'':14}     {figure.command}"]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Run, or list; the exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(__doc__ or "").partition("\n")[2],
    )
    parser.add_argument("--out", type=Path, default=Path("figures"), help="default: figures")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), metavar="NAME")
    parser.add_argument("--data", type=Path, default=Path("data"), help="traces/ and agentic/")
    parser.add_argument("--list", action="store_true", help="what there is; runs nothing")
    chosen = parser.parse_args(given)
    if chosen.list:
        print(listed())
        return 0
    try:
        return 0 if reproduce(chosen.only, out=chosen.out, data=chosen.data) else 1
    except CommandError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        return 130


if __name__ == "__main__":
    sys.exit(main())
