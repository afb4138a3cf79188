"""Real replicas behind the gateway against their simulation: goodput by router.

    python -m benchmarks.live_replicas [--router round_robin ...] [--seeds 3] [--load 1.5]
        [--policy calm] [--json FILE]

Starts two replicas (`benchmarks.recording_replica`), fits a simulated machine to them while both
are loaded, scales the workload to its speed, and replays the same programs through
`orchestrate gateway` with each router; then in virtual time on two simulated replicas with the same
router. The load is a multiple of the rate that fcfs drains on the fitted machine, times the number
of replicas. The gateway is another process for each run; the replicas stay, and forget between two
runs what they measured and learned. They cache no prefixes, so `power_of_k` runs without `affinity`
and `stay` unless they are given.

The step cost of a simulated run is fitted to the steps of the measured run, as in
`benchmarks.live`; with --fit calibration to the calibration before all runs. Replicas, their API
servers, the gateway and the clients share the machine's cores. "waited" is the time for which the
threads of all of them were ready and had no core, per second. A step that waits is longer, which
the fit contains in the mean; the way of a token through server, gateway and client is not
simulated. Run nothing else at the same time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.command import exit_code, positive, say
from benchmarks.live import GOODPUTS, drained_by_fcfs, summary_line
from benchmarks.live_replica_runs import (
    SETTINGS,
    Measured,
    calibrate,
    measure,
    replicas_of,
    simulate,
    spec_of,
)
from benchmarks.replicas import ENVIRONMENT
from cli.errors import BadInput
from cli.work.bench_request import policy_of
from serving.sim.compare.experiment_config import ExperimentConfig, Scaling
from serving.sim.compare.experiments import Experiment
from serving.sim.drive.live_scale import scale_of
from serving.sim.metrics.metrics import Report
from serving.sim.workloads.load_generator import Source
from serving.sim.workloads.workloads import WORKLOADS

ROUTERS = (
    "round_robin",
    "least_loaded",
    "power_of_k:late=false",
    "power_of_k:late=true",
    "slos_serve",
)
"""In turn; by work; by snapshots; by dummies; sequential."""

MAX_ERROR = 0.15
"""How far the simulation may be off."""


class Run(NamedTuple):
    """One router at one seed.

    Attributes:
        simulated_busiest: as Measured.busiest.
    """

    router: str
    seed: int
    measured: Measured
    simulated: Report
    simulated_busiest: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and simulate; results to stdout, progress to stderr; returns the exit code."""
    return exit_code(partial(run, _parser().parse_args(arguments)))


def run(options: argparse.Namespace) -> None:
    """Measure, simulate and print."""
    os.environ.update(ENVIRONMENT)
    policy = policy_of(options.policy)
    routers = {written: spec_of(written) for written in options.router or ROUTERS}
    config = _config(options)
    with replicas_of(policy, options.replicas) as replicas:
        say("measuring the replicas' steps")
        machine = calibrate(replicas, options.calibration_s)
        say(f"{machine.step_cost}")
        scale = scale_of(machine, SETTINGS)
        config = replace(config, machine=machine, scaling=Scaling(SETTINGS, scale))
        capacity = options.replicas * drained_by_fcfs(config)
        say(
            f"scale {scale.tokens:g} in tokens, {scale.step:.3f} in steps; fcfs drains"
            f" {capacity:.2f} programs/s of {options.replicas} replicas (simulated)"
        )
        experiments = [
            Experiment(
                config=config,
                policy=policy,
                load=options.load,
                rate_per_s=options.load * capacity,
                seed=seed,
            )
            for seed in range(options.seeds)
        ]
        gc.collect()
        gc.freeze()  # else a collection would walk vLLM's objects, and stop the clients meanwhile
        measured = {}
        for each in experiments:
            for written, spec in routers.items():
                one = measured[written, each.seed] = measure(each, spec, replicas)
                say(_measured_line(written, each.seed, one))
    runs = []
    for each in experiments:
        for written, spec in routers.items():
            one = measured[written, each.seed]
            used = machine if options.fit == "calibration" else one.machine
            report, busiest = simulate(each, spec, used, options.replicas)
            say(f"simulated {_line(written, each.seed, report, busiest)}")
            runs.append(Run(written, each.seed, one, report, busiest))
    print(table(runs))
    if options.json:
        document = {
            "machine": asdict(machine),
            "settings": asdict(SETTINGS),
            "scale": scale._asdict(),
            "replicas": options.replicas,
            "policy": policy.to_json(),
            "load": options.load,
            "capacity_programs_s": capacity,
            "warmup_s": options.warmup_s,
            "window_s": options.window_s,
            "fit": options.fit,
            "is_ok": is_ok(runs),
            "rows": [_row(run) for run in runs],
        }
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")


def _config(options: argparse.Namespace) -> ExperimentConfig:
    """The comparison, without the machine.

    Raises:
        BadInput, InvalidWorkload: an option is invalid.
    """
    if not 0 < options.load < float("inf"):
        raise BadInput(f"--load {options.load:g}: must be above 0")
    return ExperimentConfig(
        source=Source.generator(options.workload),
        warmup_s=options.warmup_s,
        window_s=options.window_s,
        slots=SETTINGS.slots,
        step_tokens=SETTINGS.step_tokens,
    )


def errors(runs: Sequence[Run], router: str, name: str) -> tuple[float, float, float]:
    """A goodput's means over a router's seeds: measured, simulated, and simulated / measured - 1.

    Without any measured goodput the error is not a number.
    """
    seeds = [run for run in runs if run.router == router]
    measured = fmean(getattr(run.measured.report, name) for run in seeds)
    simulated = fmean(getattr(run.simulated, name) for run in seeds)
    return measured, simulated, simulated / measured - 1 if measured else float("nan")


def is_ok(runs: Sequence[Run]) -> bool:
    """Whether the simulation of each router is within MAX_ERROR."""
    routers = dict.fromkeys(run.router for run in runs)
    return all(
        abs(errors(runs, router, name)[2]) <= MAX_ERROR for router in routers for name in GOODPUTS
    )


def table(runs: Sequence[Run]) -> str:
    """A text table of means over the seeds: measured, simulated, and the simulation's error."""
    first_router = runs[0].router
    lines = [
        f"{'router':<24}{'goodput':<16}{'measured':>10}{'simulated':>11}{'off by':>8}"
        f"{'to ' + first_router:>16}{'simulated':>11}"
    ]
    for name in GOODPUTS:
        first = errors(runs, first_router, name)
        for router in dict.fromkeys(run.router for run in runs):
            measured, simulated, error = errors(runs, router, name)
            ratio = measured / first[0] if first[0] else float("nan")
            simulated_ratio = simulated / first[1] if first[1] else float("nan")
            lines.append(
                f"{router:<24}{name:<16}{measured:>10.2f}{simulated:>11.2f}{error:>+8.1%}"
                f"{ratio:>16.2f}{simulated_ratio:>11.2f}"
            )
    verdict = "ok" if is_ok(runs) else "NOT ok"
    lines.append(f"the simulation is to be within {MAX_ERROR:.0%} of the measurement: {verdict}")
    return "\n".join(lines)


def _row(run: Run) -> dict[str, Any]:
    return {
        "router": run.router,
        "seed": run.seed,
        "waited": run.measured.waited,
        "step_cost": asdict(run.measured.machine.step_cost),
        "busiest_share": run.measured.busiest,
        "simulated_busiest_share": run.simulated_busiest,
        "measured": run.measured.report.to_document(),
        "simulated": run.simulated.to_document(),
    }


def _measured_line(router: str, seed: int, measured: Measured) -> str:
    line = f"measured  {_line(router, seed, measured.report, measured.busiest)}"
    if measured.waited is not None:
        line += f"; waited {measured.waited:.2f}"
    return f"{line}; {measured.machine.step_cost.uncertainty}"


def _line(router: str, seed: int, report: Report, busiest: float) -> str:
    return f"{router}, seed {seed}: {summary_line(report)}; busiest {busiest:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--router", action="append", help="name or name:key=value,...")
    parser.add_argument("--policy", default="calm", help="name or name:key=value,...")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="mixed")
    parser.add_argument("--replicas", type=positive, default=2)
    parser.add_argument("--load", type=float, default=1.5)
    parser.add_argument("--seeds", type=positive, default=3, help="number of seeds")
    parser.add_argument("--warmup-s", type=float, default=5.0)
    parser.add_argument("--window-s", type=float, default=35.0)
    parser.add_argument("--calibration-s", type=float, default=30.0)
    parser.add_argument("--fit", choices=("runs", "calibration"), default="runs")
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
