"""What `orchestrate bench` was asked for -> what is compared; bad input is refused by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cli.errors import BadInput
from cli.terminal.output import warn
from serving.engine.setup.config import DEMO_MODEL
from serving.parameters import Parameter
from serving.policies.table import DEFAULT_POLICY, POLICIES, PolicySpec
from serving.references import is_reference
from serving.sim.compare.experiment_config import DEFAULT_WINDOW_S
from serving.sim.drive.live_scale import LiveSettings
from serving.sim.workloads.load_generator import Source
from serving.step_cost import MACHINES, Machine

DEFAULT_WORKLOAD = "mixed"
DEFAULT_MACHINE = "a100-llama3-8b"
DEFAULT_LIVE_WINDOW_S = 240.0
DEFAULT_STEP_TOKENS = 2048
ENGINES = ("sim", "vllm")
PICTURES = (".png", ".svg", ".pdf")


def source_of(workload: str | None, traces: Sequence[Path]) -> Source:
    """Where programs come from.

    Raises:
        BadInput: both are given, or several traces.
        InvalidWorkload, TraceMissing, BadTrace: there is no such thing.
    """
    if not traces:
        return Source.generator(DEFAULT_WORKLOAD if workload is None else workload)
    if len(traces) > 1:
        told = "programs come from one file: compare the traces one after the other"
        raise BadInput(f"--trace {', '.join(map(str, traces))}: {told}")
    [trace] = traces
    if workload is not None:
        raise BadInput(f"programs come from {workload} or from {trace}: leave one out")
    return Source.file(trace)


def policies_of(written: Sequence[str]) -> tuple[PolicySpec, ...]:
    """Policies as the command line has them; raises BadInput, InvalidEngineConfig."""
    named = list(written) or list(dict.fromkeys(["fcfs", DEFAULT_POLICY]))
    return tuple(map(policy_of, named))


def policy_of(written: str) -> PolicySpec:
    """`name`, or `name:key=value,key=value`; `name` may be a user's own `FILE.py:FUNCTION`.

    Raises:
        BadInput: it is not written so.
        InvalidEngineConfig: no such policy, or it takes no such parameter or value.
    """
    name, colon, rest = written.rpartition(":")
    if not colon or ("=" not in rest and is_reference(written) and name not in POLICIES):
        name, colon, rest = written, "", ""
    params: dict[str, Parameter] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value) or key in params:
            told = "write NAME:KEY=VALUE,KEY=VALUE with each key once"
            raise BadInput(f"--policy {written!r}: {told}")
        params[key] = _value(value)
    return PolicySpec(name.strip(), params)


def _value(written: str) -> Parameter:
    if written in ("true", "false"):
        return written == "true"
    for kind in (int, float):
        try:
            return kind(written)
        except ValueError:
            continue
    return written


def loads_of(written: str) -> tuple[float, ...]:
    """Loads as the command line has them, ascending; raises BadInput where one is no number."""
    try:
        return tuple(sorted(float(part) for part in written.split(",") if part.strip()))
    except ValueError:
        told = "write numbers with commas between, such as 0.7,1.5"
        raise BadInput(f"--loads {written!r}: {told}") from None


def machine_of(name: str | None, *, live: bool) -> Machine:
    """A machine by its name; raises BadInput where there is none, or none is to be simulated."""
    if live and name is not None:
        raise BadInput("--machine names a simulated machine, and --engine vllm measures its own")
    if (name or DEFAULT_MACHINE) not in MACHINES:
        raise BadInput(f"no machine {name!r}; known: {', '.join(MACHINES)}")
    return MACHINES[name or DEFAULT_MACHINE]


def window_of(window_s: float | None, *, live: bool) -> float:
    """How long programs arrive that count; real seconds are dearer than virtual ones."""
    if window_s is not None:
        return window_s
    return DEFAULT_LIVE_WINDOW_S if live else DEFAULT_WINDOW_S


def step_tokens_of(step_tokens: int | None, *, slots: int) -> int:
    """Most tokens of a simulated step; raises BadInput where a token for each slot is too many."""
    if step_tokens is None:
        return DEFAULT_STEP_TOKENS
    if step_tokens < slots:
        raise BadInput(f"--step-tokens {step_tokens}: must be at least --slots ({slots})")
    return step_tokens


def live_of(
    engine: str, *, slots: int, step_tokens: int | None, prefix_caching: bool
) -> LiveSettings | None:
    """How the real engine is set up; None: it is not used. Raises BadInput, InvalidWorkload."""
    if engine not in ENGINES:
        raise BadInput(f"no engine {engine!r}; known: {', '.join(ENGINES)}")
    if engine == "sim":
        return None
    if prefix_caching:
        raise BadInput("--prefix-caching is simulated only: leave it out with --engine vllm")
    model = os.environ.get("ORCHESTRATE_MODEL") or DEMO_MODEL
    if model != DEMO_MODEL:
        warn(f"ORCHESTRATE_MODEL={model} is not used: bench measures the demo model")
    if step_tokens is None:
        return LiveSettings(slots=slots)
    return LiveSettings(slots=slots, step_tokens=step_tokens)


def check_plot(path: Path | None) -> None:
    """See that a picture can be written, before anything is computed; raises BadInput.

    What is there stays as it is.
    """
    if path is None:
        return
    if path.suffix.lower() not in PICTURES:
        raise BadInput(f"--plot {path}: its name must end with one of {', '.join(PICTURES)}")
    target = Path(os.path.realpath(path))  # where a link leads, even if there is nothing yet
    try:
        if path.is_dir():
            raise BadInput(f"--plot {path}: that is a folder; give it a file's name")
        is_new = not target.exists()
        with target.open("ab"):
            pass
        if is_new:
            target.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        told = "give it a folder that exists, and a file that you may write to"
        raise BadInput(f"--plot {path}: {reason}; {told}") from error
