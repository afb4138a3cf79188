"""What N replicas keep of N times one replica's goodput, by router: simulated, not measured.

    python -m benchmarks.replicas [--policy edf:batch=96] [--router power_of_k:k=4] [--json]

Every replica runs the production scheduler class in virtual time, at the same load per replica.
The single replica has the same policy and no choice. Its programs are others than those of several
replicas, and fewer: their ratios are of means over --seeds to means over --singles. Programs that
arrive after the warm-up and within the window count; others go on arriving until it is decided of
all of them whether they kept their promise. --slow 2 gives every second replica steps of twice the
length, and counts it as half a replica.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from statistics import fmean
from typing import NamedTuple, TypeVar

from benchmarks.comparing import exit_code, positive, ratio, shown
from serving.errors import InvalidEngineConfig
from serving.policies.table import PolicySpec
from serving.router.table import RouterSpec
from serving.sim.compare.experiments import report_of
from serving.sim.drive.driver import VirtualTime
from serving.sim.drive.fleet import FleetReplay, run_fleet
from serving.sim.drive.replica import Replica
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.promises import Predictions
from serving.sim.workloads.load_generator import GeneratedLoad, Source, generate_load
from serving.sim.workloads.workloads import WORKLOADS
from serving.step_cost import MACHINES, StepCost

MACHINE = MACHINES["a100-llama3-8b"]
FULL_RATE_PER_S = 2.01
"""Programs of the mixed workload that one replica drains in a second, first come first served."""

ROUTERS = (
    "round_robin",
    "least_loaded",
    "slos_serve",
    "power_of_k:k=2",
    "power_of_k:k=0",
    "power_of_k:k=2,late=false",
)
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}

S = TypeVar("S", PolicySpec, RouterSpec)


class Setting(NamedTuple):
    """What all cells of one comparison share."""

    workload: str
    rate_per_s: float
    warmup_s: float
    window_s: float
    slots: int
    slow: float


class Cell(NamedTuple):
    """One run; with one replica, what the others are compared with, any router is the same."""

    policy: str
    load: float
    replicas: int
    router: str
    seed: int


class Figures(NamedTuple):
    """One run in numbers: goodput in tokens and programs a second, attainment by kind.

    Attributes:
        latency, deadline, compound: None where no program is of the kind.
    """

    token_goodput: float
    request_goodput: float
    latency: float | None
    deadline: float | None
    compound: float | None
    busiest_share: float
    demoted: float
    withdrawn: float
    schedule_ms_per_step: float


class Row(NamedTuple):
    """A router's cells, seeds averaged; ratios to as many single replicas, if these had any."""

    policy: str
    load: float
    replicas: int
    router: str
    token_ratio: float | None
    request_ratio: float | None
    figures: Figures


def spec_of(kind: type[S], text: str) -> S:
    """Read `name` or `name:key=value,...`; values as in JSON, or plain words.

    Raises:
        InvalidEngineConfig: what the spec does not take, or a parameter without a value.
    """
    name, _, rest = text.partition(":")
    params: dict[str, bool | int | float | str] = {}
    for each in filter(None, rest.split(",")):
        key, equals, value = each.partition("=")
        if not equals:
            raise InvalidEngineConfig("parameter", each, f"write {key}=VALUE")
        try:
            params[key] = json.loads(value)
        except ValueError:
            params[key] = value
    return kind(name, params)


def capacity(num_replicas: int, slow: float) -> float:
    """How many replicas of full speed they amount to: every second one is slow."""
    return (num_replicas + 1) // 2 + num_replicas // 2 / slow


def slowed(cost: StepCost, factor: float) -> StepCost:
    """Steps that take so many times as long."""
    seconds = {name: getattr(cost, name) for name in cost.__slots__ if name.endswith("_s")}
    return replace(cost, **{name: factor * value for name, value in seconds.items()})


def offered_to(setting: Setting, cell: Cell) -> GeneratedLoad:
    """The programs of one cell, so many that each replica has its load."""
    full_s = setting.rate_per_s * capacity(cell.replicas, setting.slow)
    return generate_load(
        Source.generator(setting.workload),
        rate_per_s=cell.load * full_s,
        seed=cell.seed,
        warmup_s=setting.warmup_s,
        window_s=setting.window_s,
    )


def simulate(setting: Setting, cell: Cell) -> Figures:
    """Run one cell in virtual time."""
    from serving.sim.drive.virtual_engine import VirtualConfig
    from serving.sim.drive.virtual_replica import VirtualReplica  # imports vLLM

    config = VirtualConfig(
        policy=spec_of(PolicySpec, cell.policy),
        slots=setting.slots,
        kv_blocks=MACHINE.kv_blocks,
    )
    replicas = []
    for number in range(cell.replicas):
        clock = VirtualTime()
        cost = slowed(MACHINE.step_cost, setting.slow if number % 2 else 1.0)
        replicas.append(Replica(f"{number:02d}", VirtualReplica(config, clock), clock, cost))
    offered = offered_to(setting, cell)
    told = Predictions(
        lengths=LengthErrors(seed=cell.seed),
        futures=FutureErrors(seed=cell.seed),
        max_tokens=Source.generator(setting.workload).max_tokens,
    )
    router = spec_of(RouterSpec, cell.router if cell.replicas > 1 else ROUTERS[0]).build()
    found = run_fleet(
        offered.programs, replicas, router, predictions=told, until_s=offered.decided_s
    )
    return _figures(offered, found)


def _figures(offered: GeneratedLoad, found: FleetReplay) -> Figures:
    report = report_of(offered, found.replay)
    calls = list(found.calls.values())
    kept = report.attainment
    return Figures(
        token_goodput=report.token_goodput,
        request_goodput=report.request_goodput,
        latency=kept["latency"],
        deadline=kept["deadline"],
        compound=kept["compound"],
        busiest_share=max(calls) / sum(calls),
        demoted=found.demoted / sum(calls),
        withdrawn=found.withdrawn / sum(calls),
        schedule_ms_per_step=report.counters.schedule_ms_per_step or 0.0,
    )


def rows(results: Mapping[Cell, Figures], slow: float) -> list[Row]:
    """Average the seeds and divide by as many single replicas."""
    by_row: dict[Cell, list[Figures]] = {}
    for cell, figures in results.items():
        by_row.setdefault(cell._replace(seed=0), []).append(figures)
    means = {cell: _mean(each) for cell, each in by_row.items()}
    singles = {(cell.policy, cell.load): each for cell, each in means.items() if cell.replicas == 1}
    found = []
    for cell, figures in means.items():
        single = singles[cell.policy, cell.load]
        times = capacity(cell.replicas, slow)
        found.append(
            Row(
                *cell[:4],
                ratio(figures.token_goodput, times * single.token_goodput),
                ratio(figures.request_goodput, times * single.request_goodput),
                figures,
            )
        )
    return found


def cells(arguments: argparse.Namespace) -> list[Cell]:
    """All runs, the longest first; a single replica needs no router."""
    found = []
    several = [count for count in arguments.replicas if count > 1]
    for policy, load in product(arguments.policy, arguments.loads):
        found += [Cell(policy, load, 1, "none", seed) for seed in range(arguments.singles)]
        for replicas, router, seed in product(several, arguments.router, range(arguments.seeds)):
            found.append(Cell(policy, load, replicas, router, seed))
    return sorted(found, key=lambda cell: -cell.replicas)


def run(setting: Setting, todo: Sequence[Cell], jobs: int) -> dict[Cell, Figures]:
    """Run all cells, spread over processes; tells on stderr how far it is."""
    os.environ.update(ENVIRONMENT)
    found = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        under_way = {cell: pool.submit(simulate, setting, cell) for cell in todo}
        for number, (cell, future) in enumerate(under_way.items(), start=1):
            found[cell] = future.result()
            print(f"{number}/{len(todo)} {' '.join(map(str, cell))}", file=sys.stderr)
    return dict(sorted(found.items()))


def table(found: Iterable[Row], *, seeds: int, singles: int) -> str:
    """For people; `seeds` of several replicas, `singles` of a single one."""
    lines = [
        "simulated                                      tokens      requests    kept by kind    "
        "busiest  demoted  withdrawn  ms",
        "policy           load  N  router                /s   ratio  /s   ratio  lat  ddl  comp "
        "share    calls    copies     a step",
    ]
    for row in found:
        figures = row.figures
        lines.append(
            f"{row.policy:16} {row.load:4.2g} {row.replicas:2}  {row.router:26}"
            f"{figures.token_goodput:8.0f} {shown(row.token_ratio):>5}"
            f" {figures.request_goodput:6.2f} {shown(row.request_ratio):>5}"
            f"  {shown(figures.latency):>4} {shown(figures.deadline):>4}"
            f" {shown(figures.compound):>4}"
            f"  {figures.busiest_share:5.2f} {figures.demoted:7.2f} {figures.withdrawn:8.2f}"
            f"  {figures.schedule_ms_per_step:6.2f}"
        )
    lines.append(
        f"ratio: the mean of N replicas over --seeds {seeds}, to N times that of one replica over "
        f"--singles {singles}. Other programs arrive there: small differences to 1 are chance"
    )
    return "\n".join(lines)


def _mean(seeds: Sequence[Figures]) -> Figures:
    """Of each figure, over the seeds that have it."""
    columns = [[each for each in column if each is not None] for column in zip(*seeds, strict=True)]
    return Figures(*[fmean(column) if column else None for column in columns])


def _above_zero(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def _numbers(read: Callable[[str], float]) -> Callable[[str], list[float]]:
    def numbers(text: str) -> list[float]:
        return [read(each) for each in text.split(",")]

    return numbers


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", choices=list(WORKLOADS), default="mixed")
    parser.add_argument("--policy", action="append", help="name or name:key=value,...")
    parser.add_argument("--router", action="append", help="likewise")
    parser.add_argument("--loads", type=_numbers(_above_zero), default=[1.0])
    parser.add_argument("--replicas", type=_numbers(positive), default=[2, 4, 8])
    parser.add_argument("--seeds", type=positive, default=1, help="how many")
    parser.add_argument("--singles", type=positive, default=6, help="seeds of the single replica")
    parser.add_argument(
        "--rate", type=_above_zero, default=FULL_RATE_PER_S, help="a replica, load 1"
    )
    parser.add_argument("--window", type=float, default=60.0, help="seconds that count")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds of arrivals before")
    parser.add_argument("--slots", type=positive, default=256)
    parser.add_argument("--slow", type=_above_zero, default=1.0)
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(given)
    arguments.policy = arguments.policy or ["edf"]
    arguments.router = arguments.router or list(ROUTERS)
    return arguments


def print_figures(arguments: argparse.Namespace) -> None:
    """Simulate and print."""
    for kind, written in ((PolicySpec, arguments.policy), (RouterSpec, arguments.router)):
        for each in written:
            spec_of(kind, each)  # what is none is told at once
    setting = Setting(
        workload=arguments.workload,
        rate_per_s=arguments.rate,
        warmup_s=arguments.warm_up,
        window_s=arguments.window,
        slots=arguments.slots,
        slow=arguments.slow,
    )
    found = rows(run(setting, cells(arguments), arguments.jobs), arguments.slow)
    if arguments.json:
        document = [{**row._asdict(), "figures": row.figures._asdict()} for row in found]
        seeds = {"seeds": arguments.seeds, "singles": arguments.singles}
        told = {"simulated": True, "setting": setting._asdict(), **seeds, "rows": document}
        print(json.dumps(told))
    else:
        print(table(found, seeds=arguments.seeds, singles=arguments.singles))


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; the exit code."""
    return exit_code(partial(print_figures, _arguments(given)))


if __name__ == "__main__":
    sys.exit(main())
