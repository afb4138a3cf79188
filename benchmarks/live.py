"""The real engine beside its simulation: the same programs, measured and predicted.

    python -m benchmarks.live --policy fcfs --policy calm --loads 0.6,2.0 --seeds 3 --json out.json

Starts vLLM with the demo model, fits a simulated machine to it, scales the workload to its speed,
and runs every policy at every load and seed on both. Loads are multiples of what fcfs drains on
the fitted machine. Let nothing else run meanwhile: the steps are measured. "waited" is the time
for which this process's threads were ready and had no core, per second; well above 0.05, the
figures are those of a disturbed machine. The simulated machine's steps are fitted to those of the
very run that is foretold, planning included: policies differ in what they take to plan and in which
steps they make, and a machine's speed drifts. With --fit calibration they are fitted to those of
the calibration before all runs, which is a forecast without any of that.
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

from benchmarks.comparing import exit_code, loads
from cli.work.bench_request import policies_of
from serving.sim.compare.capacity import CAPACITY_SEEDS, CapacityExperiment, capacity_of
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
    """What came of a case on the real engine."""

    report: Report
    machine: Machine
    waited: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; results to stdout, progress to stderr; the exit code."""
    return exit_code(partial(measure, _parser().parse_args(arguments)))


def measure(options: argparse.Namespace) -> None:
    """Measure, simulate and print."""
    plan, settings = _plan(options), LiveSettings()
    with replaying_engine(settings) as engine:
        _say("measuring the engine's steps")
        machine = measure_machine(engine, settings)
        scale = scale_of(machine, settings)
        setting = replace(plan.setting, machine=machine, scaling=Scaling(settings, scale))
        capacity = drained_by_fcfs(setting)
        _say(f"{machine.step_cost}")
        _say(
            f"scale {scale.tokens:g} in tokens, {scale.step:.3f} in steps;"
            f" fcfs drains {capacity:.2f} programs/s (simulated)"
        )
        cases = [
            Experiment(
                setting=setting, policy=policy, load=load, rate_per_s=load * capacity, seed=seed
            )
            for seed in range(plan.num_seeds)
            for load in plan.loads
            for policy in plan.policies
        ]
        measured = [_measured(case, engine) for case in cases]
    runs = [
        Run(
            label_of(case.policy),
            case.load,
            case.seed,
            one.report,
            one.waited,
            _simulated(case, machine if options.fit == "calibration" else one.machine),
        )
        for case, one in zip(cases, measured, strict=True)
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


def drained_by_fcfs(setting: ExperimentConfig) -> float:
    """Programs a second that are load 1.0: the mean over seeds, as `orchestrate bench` has it."""
    cases = [CapacityExperiment(setting=setting, seed=seed) for seed in CAPACITY_SEEDS]
    return capacity_of([case.run() for case in cases])


def _plan(options: argparse.Namespace) -> Plan:
    """What is compared, but for the machine; raises BadInput, InvalidEngineConfig,
    InvalidWorkload."""
    settings = LiveSettings()
    return Plan(
        setting=ExperimentConfig(
            source=Source.generator(options.workload),
            warmup_s=options.warmup_s,
            window_s=options.window_s,
            slots=settings.slots,
            step_tokens=settings.step_tokens,
        ),
        policies=policies_of(options.policy or ["fcfs", "calm_published"]),
        loads=loads(options),
        num_seeds=options.seeds,
        with_bound=False,
        live=settings,
    )


def table(runs: Sequence[Run]) -> str:
    """Means over the seeds: measured, simulated, and how far the simulation is off."""
    lines = [
        f"{'policy':<16}{'load':>5}  {'goodput':<16}{'measured':>10}{'simulated':>11}{'off by':>8}"
        f"{'to ' + runs[0].policy:>10}"
    ]
    for load in sorted({run.load for run in runs}):
        for name in GOODPUTS:
            first = None
            for policy in dict.fromkeys(run.policy for run in runs):
                same = [run for run in runs if run.policy == policy and run.load == load]
                measured = fmean(getattr(run.measured, name) for run in same)
                simulated = fmean(getattr(run.simulated, name) for run in same)
                first = measured if first is None else first
                off = simulated / measured - 1 if measured else float("nan")
                ratio = measured / first if first else float("nan")
                lines.append(
                    f"{policy:<16}{load:>5.2f}  {name:<16}{measured:>10.2f}{simulated:>11.2f}"
                    f"{off:>+8.1%}{ratio:>10.2f}"
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


def _measured(case: Experiment, engine: LiveEngine) -> Measured:
    offered = case.setting.generated_load(rate_per_s=case.rate_per_s, seed=case.seed)
    before_s = core_wait_s()
    replayed = run_live(
        offered.programs,
        engine,
        policy=case.policy,
        predictions=case.setting.predictions_of(case.seed),
        until_s=offered.decided_s,
    )
    after_s = core_wait_s()
    waited = None
    if before_s is not None and after_s is not None:
        waited = (after_s - before_s) / replayed.ended_s
    report = report_of(offered, replayed)
    told = "" if waited is None else f"; waited {waited:.2f}"
    _say(f"measured  {_line(case, report)}{told}")
    return Measured(report, _refitted(case.setting.machine, asyncio.run(engine.samples())), waited)


def core_wait_s() -> float | None:
    """Seconds for which this process's threads were ready to run and waited for a core, so far;
    None where the system does not tell (it is in Linux's /proc)."""
    try:
        tasks = [path.read_text() for path in Path("/proc/self/task").glob("*/schedstat")]
    except OSError:
        return None
    return sum(int(task.split()[1]) for task in tasks) / 1e9 if tasks else None


def _refitted(machine: Machine, samples: Sequence[StepSample]) -> Machine:
    """The machine with the cost of these steps."""
    return replace(machine, step_cost=fit(samples, name=machine.step_cost.name))


def _simulated(case: Experiment, machine: Machine) -> Report:
    """On this machine; the programs stay as they were scaled before."""
    case = replace(case, setting=replace(case.setting, machine=machine))
    offered = case.setting.generated_load(rate_per_s=case.rate_per_s, seed=case.seed)
    report = report_of(offered, case.replay(offered))
    _say(f"simulated {_line(case, report)}")
    return report


def _line(case: Experiment, report: Report) -> str:
    kept = " ".join(
        "-" if share is None else f"{share:.2f}" for share in report.attainment.values()
    )
    counters, counts = report.counters, report.counts
    return (
        f"{label_of(case.policy)} at {case.load:g}, seed {case.seed}:"
        f" {report.token_goodput:.0f} tokens/s, {report.request_goodput:.2f} programs/s in time;"
        f" throughput {report.throughput_tokens_s:.0f}; kept {kept}; {counts.dropped} dropped of"
        f" {counts.arrived}; {counters.preemptions} preemptions; {counters.steps} steps"
    )


def _say(told: str) -> None:
    print(told, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
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
