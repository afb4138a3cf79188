"""Goodput of N replicas / N times the goodput of one, by router: simulated, not measured.

    python -m benchmarks.replicas [--policy edf:batch=96] [--router power_of_k:k=4] [--json]

Every replica runs the production scheduler class in virtual time, at the same load per replica.
The single replica has the same policy and no router. Its programs are different, and fewer, than
those of several replicas: a ratio is a mean over --seeds / a mean over --singles. Programs that
arrive after the warm-up and within the window count; others keep arriving until all counted ones
have met or missed their SLO. --slow 2 doubles the duration of every second replica's steps, and
counts it as half a replica.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from statistics import fmean
from typing import NamedTuple

from benchmarks.command import exit_code, parser_of, positive, print_result, say
from benchmarks.comparing import format_ratio, ratio
from cli.work.bench_request import name_and_params, policy_of
from serving.router.table import RouterSpec
from serving.sim.compare.experiments import report_of
from serving.sim.drive.driver import VirtualTime
from serving.sim.drive.fleet import FleetReplay, run_fleet
from serving.sim.drive.replica import Replica
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.workloads.load_generator import GeneratedLoad, Source, generate_load
from serving.sim.workloads.workloads import WORKLOADS
from serving.step_cost import MACHINES, StepCost

MACHINE = MACHINES["a100-llama3-8b"]
FULL_RATE_PER_S = 2.01
"""Capacity of one replica: programs of the mixed workload per second that it drains with fcfs."""

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


class ReplicaConfig(NamedTuple):
    """The configuration that all cells of a comparison share.

    Attributes:
        rate_per_s: programs per second of one replica of full speed at load 1.
        slow: factor on the step durations of every second replica.
    """

    workload: str
    rate_per_s: float
    warmup_s: float
    window_s: float
    slots: int
    slow: float


class Cell(NamedTuple):
    """The parameters of one run; a run with one replica is a baseline and needs no router."""

    policy: str
    load: float
    replicas: int
    router: str
    seed: int


class Figures(NamedTuple):
    """The metrics of one run: goodput in tokens and programs per second, attainment by kind.

    Attributes:
        latency, deadline, compound: attainment; None without programs of the kind.
        busiest_share: share of the calls that the busiest replica ran.
        demoted, withdrawn: calls served as best effort, and withdrawn copies, per call.
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
    """A router's cells, averaged over the seeds.

    Attributes:
        token_ratio, request_ratio: goodput / (capacity * goodput of one replica); None if the
            latter is 0.
    """

    policy: str
    load: float
    replicas: int
    router: str
    token_ratio: float | None
    request_ratio: float | None
    figures: Figures


def router_of(written: str) -> RouterSpec:
    """`name`, or `name:key=value,key=value`; raises BadInput, InvalidEngineConfig."""
    return RouterSpec(*name_and_params("--router", written))


def capacity(num_replicas: int, slow: float) -> float:
    """Capacity in replicas of full speed: every second replica is slow."""
    return (num_replicas + 1) // 2 + num_replicas // 2 / slow


def slowed(cost: StepCost, factor: float) -> StepCost:
    """The cost with all durations multiplied by a factor."""
    seconds = {name: getattr(cost, name) for name in cost.__slots__ if name.endswith("_s")}
    return replace(cost, **{name: factor * value for name, value in seconds.items()})


def load_of(config: ReplicaConfig, cell: Cell) -> GeneratedLoad:
    """The load of one cell: the cell's load on each replica."""
    capacity_per_s = config.rate_per_s * capacity(cell.replicas, config.slow)
    return generate_load(
        Source.generator(config.workload),
        rate_per_s=cell.load * capacity_per_s,
        seed=cell.seed,
        warmup_s=config.warmup_s,
        window_s=config.window_s,
    )


def simulate(config: ReplicaConfig, cell: Cell) -> Figures:
    """Run one cell in virtual time."""
    from serving.sim.drive.steady_engine import VirtualReplica  # imports vLLM
    from serving.sim.drive.virtual_engine import VirtualConfig

    engine_config = VirtualConfig(
        policy=policy_of(cell.policy),
        slots=config.slots,
        kv_blocks=MACHINE.kv_blocks,
    )
    replicas = []
    for number in range(cell.replicas):
        clock = VirtualTime()
        cost = slowed(MACHINE.step_cost, config.slow if number % 2 else 1.0)
        engine = VirtualReplica(engine_config, clock)
        replicas.append(Replica(f"{number:02d}", engine, clock, cost))
    load = load_of(config, cell)
    predictions = Predictions(
        lengths=LengthErrors(seed=cell.seed),
        futures=FutureErrors(seed=cell.seed),
        max_tokens=Source.generator(config.workload).max_tokens,
    )
    router = router_of(cell.router if cell.replicas > 1 else ROUTERS[0]).build()
    result = run_fleet(
        load.programs, replicas, router, predictor=predictions, until_s=load.decided_s
    )
    return _figures(load, result)


def _figures(load: GeneratedLoad, result: FleetReplay) -> Figures:
    report = report_of(load, result.replay)
    calls = list(result.calls.values())
    attainment = report.attainment
    return Figures(
        token_goodput=report.token_goodput,
        request_goodput=report.request_goodput,
        latency=attainment["latency"],
        deadline=attainment["deadline"],
        compound=attainment["compound"],
        busiest_share=max(calls) / sum(calls),
        demoted=result.demoted / sum(calls),
        withdrawn=result.withdrawn / sum(calls),
        schedule_ms_per_step=report.counters.schedule_ms_per_step or 0.0,
    )


def rows(results: Mapping[Cell, Figures], slow: float) -> list[Row]:
    """The means over the seeds, and their ratios to the same capacity of single replicas."""
    by_row: dict[Cell, list[Figures]] = {}
    for cell, figures in results.items():
        by_row.setdefault(cell._replace(seed=0), []).append(figures)
    means = {cell: _mean(each) for cell, each in by_row.items()}
    singles = {(cell.policy, cell.load): each for cell, each in means.items() if cell.replicas == 1}
    result = []
    for cell, figures in means.items():
        single = singles[cell.policy, cell.load]
        num_full = capacity(cell.replicas, slow)
        result.append(
            Row(
                *cell[:4],
                ratio(figures.token_goodput, num_full * single.token_goodput),
                ratio(figures.request_goodput, num_full * single.request_goodput),
                figures,
            )
        )
    return result


def cells(arguments: argparse.Namespace) -> list[Cell]:
    """All cells, the longest runs first; a single replica needs no router."""
    result = []
    several = [count for count in arguments.replicas if count > 1]
    for policy, load in product(arguments.policy, arguments.loads):
        result += [Cell(policy, load, 1, "none", seed) for seed in range(arguments.singles)]
        for replicas, router, seed in product(several, arguments.router, range(arguments.seeds)):
            result.append(Cell(policy, load, replicas, router, seed))
    return sorted(result, key=lambda cell: -cell.replicas)


def run(config: ReplicaConfig, cells: Sequence[Cell], jobs: int) -> dict[Cell, Figures]:
    """Run all cells in parallel processes; prints progress to stderr."""
    os.environ.update(ENVIRONMENT)
    results = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {cell: pool.submit(simulate, config, cell) for cell in cells}
        for number, (cell, future) in enumerate(futures.items(), start=1):
            results[cell] = future.result()
            say(f"{number}/{len(cells)} {' '.join(map(str, cell))}")
    return dict(sorted(results.items()))


def table(rows: Iterable[Row], *, seeds: int, singles: int) -> str:
    """The rows as a text table.

    Args:
        seeds, singles: number of seeds of several replicas and of a single one.
    """
    lines = [
        "simulated                                      tokens      requests    kept by kind    "
        "busiest  demoted  withdrawn  ms",
        "policy           load  N  router                /s   ratio  /s   ratio  lat  ddl  comp "
        "share    calls    copies     a step",
    ]
    for row in rows:
        figures = row.figures
        lines.append(
            f"{row.policy:16} {row.load:4.2g} {row.replicas:2}  {row.router:26}"
            f"{figures.token_goodput:8.0f} {format_ratio(row.token_ratio):>5}"
            f" {figures.request_goodput:6.2f} {format_ratio(row.request_ratio):>5}"
            f"  {format_ratio(figures.latency):>4} {format_ratio(figures.deadline):>4}"
            f" {format_ratio(figures.compound):>4}"
            f"  {figures.busiest_share:5.2f} {figures.demoted:7.2f} {figures.withdrawn:8.2f}"
            f"  {figures.schedule_ms_per_step:6.2f}"
        )
    lines.append(
        f"ratio: the mean of N replicas over --seeds {seeds}, to N times that of one replica over "
        f"--singles {singles}. Other programs arrive there: small differences to 1 are chance"
    )
    return "\n".join(lines)


def _mean(seeds: Sequence[Figures]) -> Figures:
    """The mean of each figure over the seeds that have it."""
    columns = [[each for each in column if each is not None] for column in zip(*seeds, strict=True)]
    return Figures(*[fmean(column) if column else None for column in columns])


def _above_zero(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def _numbers(parse: Callable[[str], float]) -> Callable[[str], list[float]]:
    def numbers(text: str) -> list[float]:
        return [parse(each) for each in text.split(",")]

    return numbers


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--workload", choices=list(WORKLOADS), default="mixed")
    parser.add_argument("--policy", action="append", help="name or name:key=value,...")
    parser.add_argument("--router", action="append", help="name or name:key=value,...")
    parser.add_argument("--loads", type=_numbers(_above_zero), default=[1.0])
    parser.add_argument("--replicas", type=_numbers(positive), default=[2, 4, 8])
    parser.add_argument("--seeds", type=positive, default=1, help="number of seeds")
    parser.add_argument("--singles", type=positive, default=6, help="seeds of the single replica")
    parser.add_argument(
        "--rate", type=_above_zero, default=FULL_RATE_PER_S, help="per replica at load 1"
    )
    parser.add_argument("--window", type=float, default=60.0, help="measured window, seconds")
    parser.add_argument("--warm-up", type=float, default=10.0, help="warm-up, seconds")
    parser.add_argument("--slots", type=positive, default=256)
    parser.add_argument("--slow", type=_above_zero, default=1.0)
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1)
    arguments = parser.parse_args(given)
    arguments.policy = arguments.policy or ["edf"]
    arguments.router = arguments.router or list(ROUTERS)
    return arguments


def print_figures(arguments: argparse.Namespace) -> None:
    """Simulate and print."""
    for policy in arguments.policy:  # reject invalid specs before any run
        policy_of(policy)
    for router in arguments.router:
        router_of(router)
    config = ReplicaConfig(
        workload=arguments.workload,
        rate_per_s=arguments.rate,
        warmup_s=arguments.warm_up,
        window_s=arguments.window,
        slots=arguments.slots,
        slow=arguments.slow,
    )
    results = rows(run(config, cells(arguments), arguments.jobs), arguments.slow)
    documents = [{**row._asdict(), "figures": row.figures._asdict()} for row in results]
    document = {
        "simulated": True,
        "setting": config._asdict(),
        "seeds": arguments.seeds,
        "singles": arguments.singles,
        "rows": documents,
    }
    printed = table(results, seeds=arguments.seeds, singles=arguments.singles)
    print_result(document, printed, as_json=arguments.json)


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; returns the exit code."""
    return exit_code(partial(print_figures, _arguments(given)))


if __name__ == "__main__":
    sys.exit(main())
