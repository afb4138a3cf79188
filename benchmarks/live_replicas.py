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
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.command import exit_code, positive, say
from benchmarks.gateway import started, until_healthy
from benchmarks.http_engine import HttpEngine, ReplicaAddress
from benchmarks.live import GOODPUTS, core_wait_s, drained_by_fcfs
from benchmarks.replicas import ENVIRONMENT, router_of
from cli.errors import BadInput
from cli.work.bench_request import policy_of
from serving.gateway.gateway import gateway_router
from serving.policies.table import PolicySpec
from serving.router.table import RouterSpec
from serving.sim.compare.experiment_config import ExperimentConfig, Scaling
from serving.sim.compare.experiments import Experiment, report_of
from serving.sim.drive.driver import VirtualTime
from serving.sim.drive.fleet import run_fleet
from serving.sim.drive.live_driver import replay_live
from serving.sim.drive.live_machine import measured_machine
from serving.sim.drive.live_scale import LiveSettings, scale_of
from serving.sim.drive.replica import Replica, TypicalStep
from serving.sim.metrics.metrics import Report
from serving.sim.workloads.load_generator import GeneratedLoad, Source
from serving.sim.workloads.workloads import WORKLOADS
from serving.step_cost import Machine, fit

ROUTERS = (
    "round_robin",
    "least_loaded",
    "power_of_k:late=false",
    "power_of_k:late=true",
    "slos_serve",
)
"""In turn; by work; by snapshots; by dummies; sequential."""

NO_PREFIXES = {"power_of_k": {"affinity": 0.0, "stay": False}}
"""Parameters of routers for replicas without a prefix cache."""

SETTINGS = LiveSettings(
    slots=32, step_tokens=256, kv_tokens=16_384, length_scale=0.2, most_call_tokens=1638
)
"""Small replicas, so that their steps cost more than to send their tokens by HTTP. A TTFT is that
of several busy steps, as on the machine that the workload's SLOs are meant for."""

MAX_ERROR = 0.15
"""How far the simulation may be off."""


class Measured(NamedTuple):
    """A run on real replicas.

    Attributes:
        machine: fitted to its steps.
        busiest: share of the calls that the busiest replica got.
        waited: seconds without a core, per second; None where the system does not tell.
    """

    report: Report
    machine: Machine
    busiest: float
    waited: float | None


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
        machine = _calibrate(replicas, options.calibration_s)
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
        measured = {
            (written, each.seed): _measure(each, spec, written, replicas)
            for each in experiments
            for written, spec in routers.items()
        }
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
            "window_s": options.window_s,
            "fit": options.fit,
            "is_ok": is_ok(runs),
            "rows": [_row(run) for run in runs],
        }
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")


def spec_of(written: str) -> RouterSpec:
    """`name` or `name:key=value,...` as the gateway runs it before replicas without prefix caches.

    Raises:
        BadInput, InvalidEngineConfig: unknown, or a parameter or value that it does not take.
    """
    given = router_of(written)
    return gateway_router(given.name, NO_PREFIXES.get(given.name, {}) | dict(given.params))


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


@contextlib.contextmanager
def replicas_of(policy: PolicySpec, num_replicas: int) -> Iterator[list[ReplicaAddress]]:
    """Replicas with this policy, healthy and idle; they end with the block."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        say(f"starting {num_replicas} replicas")
        replicas = []
        for number in range(num_replicas):
            file = folder / f"{number}.json"
            arguments = {
                "--policy": json.dumps(policy.to_json()),
                "--settings": json.dumps(asdict(SETTINGS)),
                "--measurements": str(file),
            }
            flags = [part for each in arguments.items() for part in each]
            url = stack.enter_context(started("benchmarks.recording_replica", *flags))
            replicas.append(ReplicaAddress(url, file))
        for each in replicas:
            asyncio.run(until_healthy(each.url))
        yield replicas


@contextlib.contextmanager
def gateway_to(replicas: Sequence[ReplicaAddress], router: RouterSpec) -> Iterator[str]:
    """The address of a gateway with this router; it ends with the block."""
    urls = [each.url for each in replicas]
    params = [f"--router-param={key}={json.dumps(value)}" for key, value in router.params.items()]
    with started("cli", "gateway", *urls, "--router", router.name, *params) as url:
        asyncio.run(until_healthy(url))
        yield url


def _calibrate(replicas: Sequence[ReplicaAddress], calibration_s: float) -> Machine:
    """The machine that each of the replicas is while all of them are loaded."""

    async def measure(url: str) -> Machine:
        async with HttpEngine(url, replicas, SETTINGS) as engine:
            return await measured_machine(
                engine, SETTINGS, calibration_s=calibration_s, num_replicas=len(replicas)
            )

    say("measuring the replicas' steps")
    with gateway_to(replicas, spec_of(ROUTERS[0])) as url:
        machine = asyncio.run(measure(url))
    say(f"{machine.step_cost}")
    return machine


def _measure(
    experiment: Experiment,
    router: RouterSpec,
    written: str,
    replicas: Sequence[ReplicaAddress],
) -> Measured:
    config, load = experiment.config, load_of(experiment)

    async def measure(url: str) -> Measured:
        async with HttpEngine(url, replicas, SETTINGS) as engine:
            before_s = _core_wait_s()
            replayed = await replay_live(
                load.programs,
                engine,
                policy=experiment.policy,
                predictions=config.predictions_of(experiment.seed),
                until_s=load.decided_s,
            )
            after_s = _core_wait_s()
            cost = fit(await engine.samples(), name=config.machine.step_cost.name)
            page = await engine.page("/metrics")
        waited = None
        if before_s is not None and after_s is not None:
            waited = (after_s - before_s) / replayed.ended_s
        return Measured(
            report_of(load, replayed),
            replace(config.machine, step_cost=cost),
            busiest_share(page),
            waited,
        )

    with gateway_to(replicas, router) as url:
        measured = asyncio.run(measure(url))
    wait_text = "" if measured.waited is None else f"; waited {measured.waited:.2f}"
    line = _line(written, experiment.seed, measured.report, measured.busiest)
    say(f"measured  {line}{wait_text}; {measured.machine.step_cost.uncertainty}")
    return measured


def busiest_share(page: str) -> float:
    """The share of a gateway's attempts that went to the busiest replica, from its metrics."""
    attempts: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "orchestrate_gateway_attempts_total":
                replica = sample.labels["replica"]
                attempts[replica] = attempts.get(replica, 0.0) + sample.value
    return max(attempts.values()) / sum(attempts.values())


def _core_wait_s() -> float | None:
    """`core_wait_s` of this process and of all that it has started."""
    processes = ["self", *(str(each.pid) for each in psutil.Process().children(recursive=True))]
    seconds = [each for each in map(core_wait_s, processes) if each is not None]
    return sum(seconds) if seconds else None


def load_of(experiment: Experiment) -> GeneratedLoad:
    """The programs of an experiment."""
    return experiment.config.generate_load(rate_per_s=experiment.rate_per_s, seed=experiment.seed)


def simulate(
    experiment: Experiment, router: RouterSpec, machine: Machine, num_replicas: int
) -> tuple[Report, float]:
    """Run an experiment on simulated replicas; the scale of its programs does not change.

    Returns:
        Its metrics, and the share of the calls that the busiest replica ran.
    """
    from serving.sim.drive.steady_engine import VirtualReplica  # imports vLLM
    from serving.sim.drive.virtual_engine import VirtualConfig

    load, config = load_of(experiment), experiment.config
    virtual = VirtualConfig(
        policy=experiment.policy,
        slots=config.slots,
        step_tokens=config.step_tokens,
        kv_blocks=machine.kv_blocks,
        max_model_tokens=SETTINGS.context_tokens,
    )
    replicas = []
    for number in range(num_replicas):
        clock = VirtualTime()
        engine = VirtualReplica(virtual, clock)
        replicas.append(
            Replica(f"{number:02d}", engine, clock, machine.step_cost, typical=typical_step(load))
        )
    result = run_fleet(
        load.programs,
        replicas,
        router.build(),
        predictions=config.predictions_of(experiment.seed),
        until_s=load.decided_s,
    )
    return report_of(load, result.replay), max(result.calls.values()) / sum(result.calls.values())


def typical_step(load: GeneratedLoad) -> TypicalStep:
    """The steps by which replicas tell their speed: full ones, with the mean context of the load.

    A decode's context is, in the mean, its prompt and half of its answer, for as long as it lasts.
    """
    calls = [each.call for program in load.programs for each in program.all_calls()]
    output_tokens = sum(each.output_tokens for each in calls)
    contexts = sum(
        each.output_tokens * (each.prompt_tokens + each.output_tokens / 2) for each in calls
    )
    return TypicalStep(SETTINGS.slots, round(contexts / output_tokens), SETTINGS.step_tokens)


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


def _line(router: str, seed: int, report: Report, busiest: float) -> str:
    attainment = " ".join(
        "-" if share is None else f"{share:.2f}" for share in report.attainment.values()
    )
    return (
        f"{router}, seed {seed}: {report.token_goodput:.0f} tokens/s,"
        f" {report.request_goodput:.2f} programs/s in time;"
        f" throughput {report.throughput_tokens_s:.0f}; attainment {attainment};"
        f" {report.counts.dropped} dropped of {report.counts.arrived};"
        f" {report.counters.preemptions} preemptions; {report.counters.steps} steps;"
        f" busiest {busiest:.2f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--router", action="append", help="name or name:key=value,...")
    parser.add_argument("--policy", default="calm", help="name or name:key=value,...")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="mixed")
    parser.add_argument("--replicas", type=positive, default=2)
    parser.add_argument("--load", type=float, default=1.5)
    parser.add_argument("--seeds", type=positive, default=3, help="number of seeds")
    parser.add_argument("--warmup-s", type=float, default=8.0)
    parser.add_argument("--window-s", type=float, default=25.0)
    parser.add_argument("--calibration-s", type=float, default=30.0)
    parser.add_argument("--fit", choices=("runs", "calibration"), default="runs")
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
