"""Options of `orchestrate bench` -> the parts of a comparison's plan; checks the options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.errors import BadInput
from cli.terminal.output import warn
from serving.engine.setup.config import RANDOM_MODEL
from serving.parameters import Parameter
from serving.policies.table import DEFAULT_POLICY, POLICIES, PolicySpec
from serving.references import is_reference
from serving.sim.compare.experiment_config import (
    DEFAULT_WINDOW_S,
    FIRST_PERIOD_RUNS,
    FirstPeriod,
)
from serving.sim.compare.promise_capacity import check_kept_share, check_replicas
from serving.sim.compare.seeds import MAX_SEEDS, check_seeds
from serving.sim.drive.live_scale import LiveSettings
from serving.sim.workloads.load_generator import Source
from serving.step_cost import MACHINES, Machine

DEFAULT_WORKLOAD = "mixed"
DEFAULT_MACHINE = "a100-llama3-8b"
DEFAULT_LIVE_WINDOW_S = 240.0
DEFAULT_STEP_TOKENS = 2048
DEFAULT_LOADS = "0.7,1.0,1.5,2.0"
ENGINES = ("sim", "vllm")
_SEEDS = re.compile(r"\s*(\d{1,10})(?:-(\d{1,10}))?\s*")
CHART_SUFFIXES = (".png", ".svg", ".pdf")


def source_of(workload: str | None, traces: Sequence[Path]) -> Source:
    """The source of programs: a generator or a trace file.

    Raises:
        BadInput: both are given, or several traces.
        InvalidWorkload, TraceMissing, BadTrace: no such generator, or no readable trace.
    """
    if not traces:
        return Source.generator(DEFAULT_WORKLOAD if workload is None else workload)
    if len(traces) > 1:
        names = ", ".join(map(str, traces))
        raise BadInput(f"--trace {names}: give one trace file per comparison")
    [trace] = traces
    if workload is not None:
        raise BadInput(f"give either the generator {workload} or --trace {trace}, not both")
    return Source.file(trace)


def policies_of(written: Sequence[str]) -> tuple[PolicySpec, ...]:
    """The policies of the command line, or the default ones; raises as `policy_of`."""
    texts = list(written) or list(dict.fromkeys(["fcfs", DEFAULT_POLICY]))
    return tuple(map(policy_of, texts))


def policy_of(written: str) -> PolicySpec:
    """`name`, or `name:key=value,key=value`; `name` may be a user's own `FILE.py:FUNCTION`.

    Raises:
        BadInput: the text does not have this form.
        InvalidEngineConfig: there is no such policy, or it has no such parameter or value.
    """
    name, _, rest = written.rpartition(":")
    if "=" not in rest and is_reference(written) and name not in POLICIES:
        return PolicySpec(written.strip())
    return PolicySpec(*name_and_params("--policy", written))


def name_and_params(option: str, written: str) -> tuple[str, dict[str, Parameter]]:
    """The parts of `name` or `name:key=value,key=value`; raises BadInput for another form.

    A name may have colons itself if parameters follow.
    """
    name, colon, rest = written.rpartition(":")
    if not colon:
        return written.strip(), {}
    params: dict[str, Parameter] = {}
    for part in rest.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value) or key in params:
            form = "write NAME:KEY=VALUE,KEY=VALUE with each key once"
            raise BadInput(f"{option} {written!r}: {form}")
        params[key] = _value(value)
    return name.strip(), params


def _value(written: str) -> Parameter:
    if written in ("true", "false"):
        return written == "true"
    for kind in (int, float):
        try:
            return kind(written)
        except ValueError:
            continue
    return written


def loads_of(written: str | None) -> tuple[float, ...]:
    """The loads of a comma-separated list, ascending, or the default ones.

    Raises:
        BadInput: one is not a number.
    """
    written = DEFAULT_LOADS if written is None else written
    try:
        return tuple(sorted(float(part) for part in written.split(",") if part.strip()))
    except ValueError:
        form = "write numbers separated by commas, such as 0.7,1.5"
        raise BadInput(f"--loads {written!r}: {form}") from None


def replicas_of(
    capacity: float | None, written: str | None, *, given: Mapping[str, bool]
) -> tuple[int, ...]:
    """The numbers of machines of which the capacity is asked for.

    Args:
        capacity, written: the options --capacity and --replicas.
        given: options that do not go with --capacity -> whether they were given.
    Raises:
        BadInput: an option has no effect, or the list is not one of whole numbers.
        InvalidWorkload: a value is out of range.
    """
    if capacity is None:
        if written is not None:
            raise BadInput(f"--replicas {written}: add --capacity, or leave it out")
        return (1,)
    check_kept_share(capacity)
    for option, is_given in given.items():
        if is_given:
            raise BadInput(f"leave out {option}: --capacity searches simulated loads by itself")
    parts = [part.strip() for part in ("1" if written is None else written).split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise BadInput(f"--replicas {written!r}: write whole numbers separated by commas: 1,2,4")
    numbers = tuple(map(int, parts))
    check_replicas(numbers)
    return numbers


def seeds_of(written: str) -> tuple[int, ...]:
    """`3` for seeds 0 to 2, or seeds and ranges such as `10-11` or `10,12`, in this order.

    Raises:
        BadInput: the text does not have this form.
        InvalidWorkload: there is no seed, there are too many, or one is given twice.
    """
    parts = [_SEEDS.fullmatch(part) for part in written.split(",")]
    seeds: list[int] = []
    for match in parts:
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            form = "write a number of seeds such as 3, or seeds such as 10-11 or 10,12"
            raise BadInput(f"--seeds {written!r}: {form}")
        named = range(int(match[1]), int(match[2] or match[1]) + 1)
        is_count = len(parts) == 1 and not match[2]
        seeds += (range(int(match[1])) if is_count else named)[: MAX_SEEDS + 1]
    check_seeds(seeds)
    return tuple(seeds)


def machine_of(name: str | None, *, live: bool) -> Machine:
    """A machine by name; raises BadInput if it is unknown, or if the engine is not simulated."""
    if live and name is not None:
        raise BadInput("leave out --machine: --engine vllm measures this machine")
    if (name or DEFAULT_MACHINE) not in MACHINES:
        raise BadInput(f"unknown machine {name!r}; known: {', '.join(MACHINES)}")
    return MACHINES[name or DEFAULT_MACHINE]


def window_of(window_s: float | None, *, live: bool) -> float:
    """The length of the measured window, in seconds; by default shorter in real time."""
    if window_s is not None:
        return window_s
    return DEFAULT_LIVE_WINDOW_S if live else DEFAULT_WINDOW_S


def first_period_of(
    predictions: str, num_runs: int | None, learn_from: Path | None, *, live: bool
) -> FirstPeriod | None:
    """What is learned from before each run; None unless predictions are learned.

    Raises:
        BadInput: an option has no effect, or the engine is not simulated.
        InvalidWorkload, TraceMissing, BadTrace: num_runs is out of range, or no readable trace.
    """
    if predictions != "learned":
        for option, value in (("--learned-runs", num_runs), ("--learn-from", learn_from)):
            if value is not None:
                raise BadInput(f"{option} {value}: add --predictions learned, or leave it out")
        return None
    if live:
        raise BadInput("--predictions learned: leave out --engine vllm, or use --predictions noisy")
    from orchestrator.learning.simulated_learning import SimulatedLearning

    return FirstPeriod(
        learning=SimulatedLearning(),
        num_runs=FIRST_PERIOD_RUNS if num_runs is None else num_runs,
        source=None if learn_from is None else Source.file(learn_from),
    )


def step_tokens_of(step_tokens: int | None, *, slots: int) -> int:
    """Maximum tokens of a simulated step; raises BadInput if there are fewer than slots."""
    if step_tokens is None:
        return DEFAULT_STEP_TOKENS
    if step_tokens < slots:
        raise BadInput(f"--step-tokens {step_tokens}: must be at least --slots ({slots})")
    return step_tokens


def live_of(
    engine: str, *, slots: int, step_tokens: int | None, prefix_caching: bool
) -> LiveSettings | None:
    """The real engine's settings; None for a simulation. Raises BadInput, InvalidWorkload."""
    if engine not in ENGINES:
        raise BadInput(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    if engine == "sim":
        return None
    if prefix_caching:
        raise BadInput("leave out --prefix-caching: with --engine vllm it is not supported")
    model = os.environ.get("ORCHESTRATE_MODEL") or RANDOM_MODEL
    if model != RANDOM_MODEL:
        warn(f"ORCHESTRATE_MODEL={model} is ignored: bench measures the model with random weights")
    if step_tokens is None:
        return LiveSettings(slots=slots)
    return LiveSettings(slots=slots, step_tokens=step_tokens)


def check_plot(path: Path | None) -> None:
    """Check before the comparison that a chart can be written; raises BadInput.

    An existing file is not changed.
    """
    if path is None:
        return
    if path.suffix.lower() not in CHART_SUFFIXES:
        raise BadInput(f"--plot {path}: its name must end with one of {', '.join(CHART_SUFFIXES)}")
    target = Path(os.path.realpath(path))  # the target of a link, which may not exist yet
    try:
        if path.is_dir():
            raise BadInput(f"--plot {path}: this is a folder; give a file name")
        is_new = not target.exists()
        with target.open("ab"):
            pass
        if is_new:
            target.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(
            f"--plot {path}: {reason}; give a writable file in an existing folder"
        ) from error
