"""The real engine against its simulation: the same programs, measured and simulated.

    python -m benchmarks.live --policy fcfs --policy calm --loads 0.6,2.0 --seeds 3 --json out.json

Starts vLLM with the random model, fits a simulated machine to it, scales the workload to its speed,
and runs every policy at every load and seed on both. Loads are multiples of the rate that fcfs
drains on the fitted machine. Run nothing else at the same time: the steps are measured. "waited" is
the time for which this process's threads were ready and had no core, per second; well above 0.05
the machine was disturbed. The step cost of a simulated run is fitted to the steps of the measured
run itself, planning included: policies differ in their planning time and in the composition of
their steps, and a machine's speed drifts. With --fit calibration it is fitted to the calibration
before all runs: a true prediction, without these effects.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.command import exit_code, say
from benchmarks.comparing import loads
from cli.work.bench_request import policies_of
from serving.sim.compare.capacity import capacity_of, measurements_of
from serving.sim.compare.compare import Plan, label_of
from serving.sim.compare.experiment_config import ExperimentConfig, Scaling
from serving.sim.compare.experiments import Experiment, report_of
from serving.sim.drive.live import measure_machine, replaying_engine, run_live
from serving.sim.drive.live_driver import LiveEngine
from serving.sim.drive.live_scale import LiveSettings, scale_of
from serving.sim.metrics.metrics import Report
from serving.sim.workloads.load_generator import Source
from serving.step_cost import Machine, StepSample, fit

GOODPUTS = ("token_goodput", "request_goodput")


class Run(NamedTuple):
    """One policy at one load and seed."""

    policy: str
    load: float
    seed: int
    measured: Report
    waited: float | None
    simulated: Report


class Measured(NamedTuple):
    """An experiment on the real engine: its metrics, and the machine fitted to its steps."""

    report: Report
    machine: Machine
    waited: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; results to stdout, progress to stderr; returns the exit code."""
    return exit_code(partial(measure, _parser().parse_args(arguments)))


def measure(options: argparse.Namespace) -> None:
    """Measure, simulate and print."""
    plan, settings = _plan(options), LiveSettings()
    with replaying_engine(settings) as engine:
        say("measuring the engine's steps")
        machine = measure_machine(engine, settings)
        scale = scale_of(machine, settings)
        config = replace(plan.config, machine=machine, scaling=Scaling(settings, scale))
        capacity = drained_by_fcfs(config)
        say(f"{machine.step_cost}")
        say(
            f"scale {scale.tokens:g} in tokens, {scale.step:.3f} in steps;"
            f" fcfs drains {capacity:.2f} programs/s (simulated)"
        )
        experiments = [
            Experiment(
                config=config, policy=policy, load=load, rate_per_s=load * capacity, seed=seed
            )
            for seed in plan.seeds
            for load in plan.loads
            for policy in plan.policies
        ]
        measurements = [_measure(experiment, engine) for experiment in experiments]
    runs = [
        Run(
            label_of(experiment.policy),
            experiment.load,
            experiment.seed,
            measured.report,
            measured.waited,
            _simulate(experiment, machine if options.fit == "calibration" else measured.machine),
        )
        for experiment, measured in zip(experiments, measurements, strict=True)
    ]
    print(table(runs))
    if options.json:
        document = {
            "machine": asdict(machine),
            "settings": asdict(settings),
            "scale": scale._asdict(),
            "capacity_programs_s": capacity,
            "window_s": options.window_s,
            "rows": [_row(run) for run in runs],
        }
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")


def drained_by_fcfs(config: ExperimentConfig) -> float:
    """The rate of load 1.0, in programs per second: the mean over seeds, as `orchestrate bench`."""
    experiments = measurements_of(config)
    return capacity_of([experiment.run() for experiment in experiments])


def _plan(options: argparse.Namespace) -> Plan:
    """The comparison, without the machine.

    Raises:
        BadInput, InvalidEngineConfig, InvalidWorkload: an option is invalid.
    """
    settings = LiveSettings()
    return Plan(
        config=ExperimentConfig(
            source=Source.generator(options.workload),
            warmup_s=options.warmup_s,
            window_s=options.window_s,
            slots=settings.slots,
            step_tokens=settings.step_tokens,
        ),
        policies=policies_of(options.policy or ["fcfs", "calm_published"]),
        loads=loads(options),
        seeds=tuple(range(options.seeds)),
        with_bound=False,
        live=settings,
    )


def table(runs: Sequence[Run]) -> str:
    """A text table of means over the seeds: measured, simulated, and the simulation's error."""
    lines = [
        f"{'policy':<16}{'load':>5}  {'goodput':<16}{'measured':>10}{'simulated':>11}{'off by':>8}"
        f"{'to ' + runs[0].policy:>10}"
    ]
    for load in sorted({run.load for run in runs}):
        for name in GOODPUTS:
            first = None
            for policy in dict.fromkeys(run.policy for run in runs):
                seeds = [run for run in runs if run.policy == policy and run.load == load]
                measured = fmean(getattr(run.measured, name) for run in seeds)
                simulated = fmean(getattr(run.simulated, name) for run in seeds)
                first = measured if first is None else first
                error = simulated / measured - 1 if measured else float("nan")
                ratio = measured / first if first else float("nan")
                lines.append(
                    f"{policy:<16}{load:>5.2f}  {name:<16}{measured:>10.2f}{simulated:>11.2f}"
                    f"{error:>+8.1%}{ratio:>10.2f}"
                )
    return "\n".join(lines)


def _row(run: Run) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "load": run.load,
        "seed": run.seed,
        "waited": run.waited,
        "measured": run.measured.to_document(),
        "simulated": run.simulated.to_document(),
    }


def _measure(experiment: Experiment, engine: LiveEngine) -> Measured:
    config = experiment.config
    load = config.generate_load(rate_per_s=experiment.rate_per_s, seed=experiment.seed)
    before_s = core_wait_s()
    replayed = run_live(
        load.programs,
        engine,
        policy=experiment.policy,
        predictor=config.predictions_of(experiment.seed),
        until_s=load.decided_s,
    )
    after_s = core_wait_s()
    waited = None
    if before_s is not None and after_s is not None:
        waited = (after_s - before_s) / replayed.ended_s
    report = report_of(load, replayed)
    wait_text = "" if waited is None else f"; waited {waited:.2f}"
    say(f"measured  {_line(experiment, report)}{wait_text}")
    return Measured(report, _refitted(config.machine, asyncio.run(engine.samples())), waited)


def core_wait_s(process: str = "self") -> float | None:
    """Total seconds for which a process's threads were runnable and waited for a core.

    Args:
        process: its id; without one, this process.
    Returns:
        None if the system does not report it (Linux has it in /proc).
    """
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    except OSError:
        return None
    return sum(int(task.split()[1]) for task in tasks) / 1e9 if tasks else None


def _refitted(machine: Machine, samples: Sequence[StepSample]) -> Machine:
    """The machine with a step cost fitted to these steps."""
    return replace(machine, step_cost=fit(samples, name=machine.step_cost.name))


def _simulate(experiment: Experiment, machine: Machine) -> Report:
    """Simulate an experiment on this machine; the scale of its programs does not change."""
    experiment = replace(experiment, config=replace(experiment.config, machine=machine))
    config = experiment.config
    load = config.generate_load(rate_per_s=experiment.rate_per_s, seed=experiment.seed)
    report = report_of(load, experiment.replay(load))
    say(f"simulated {_line(experiment, report)}")
    return report


def _line(experiment: Experiment, report: Report) -> str:
    name = label_of(experiment.policy)
    return f"{name} at {experiment.load:g}, seed {experiment.seed}: {summary_line(report)}"


def summary_line(report: Report) -> str:
    """A run's main metrics, for progress messages."""
    attainment = " ".join(
        "-" if share is None else f"{share:.2f}" for share in report.attainment.values()
    )
    counters, counts = report.counters, report.counts
    return (
        f"{report.token_goodput:.0f} tokens/s, {report.request_goodput:.2f} programs/s in time;"
        f" throughput {report.throughput_tokens_s:.0f}; attainment {attainment};"
        f" {counts.dropped} dropped of {counts.arrived}; {counters.preemptions} preemptions;"
        f" {counters.steps} steps"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", default="mixed")
    parser.add_argument("--policy", action="append")
    parser.add_argument("--loads", default="0.6,2.0")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--warmup-s", type=float, default=15.0)
    parser.add_argument("--window-s", type=float, default=40.0)
    parser.add_argument("--fit", choices=("runs", "calibration"), default="runs")
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
