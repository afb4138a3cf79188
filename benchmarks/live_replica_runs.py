"""Runs of `benchmarks.live_replicas`: on real replicas behind a gateway, and on simulated ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import psutil
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.command import say
from benchmarks.gateway import started, until_healthy
from benchmarks.http_engine import HttpEngine, ReplicaAddress
from benchmarks.live import core_wait_s
from benchmarks.replicas import router_of
from serving.gateway.gateway import gateway_router
from serving.policies.table import PolicySpec
from serving.router.table import RouterSpec
from serving.sim.compare.experiments import Experiment, report_of
from serving.sim.drive.driver import VirtualTime
from serving.sim.drive.fleet import run_fleet
from serving.sim.drive.live_driver import replay_live
from serving.sim.drive.live_machine import measured_machine
from serving.sim.drive.live_scale import LiveSettings
from serving.sim.drive.replica import Replica, TypicalStep
from serving.sim.metrics.metrics import Report
from serving.sim.workloads.load_generator import GeneratedLoad
from serving.step_cost import Machine, fit

NO_PREFIXES = {"power_of_k": {"affinity": 0.0, "stay": False}}
"""Parameters of routers for replicas without a prefix cache."""

SETTINGS = LiveSettings(
    slots=32, step_tokens=256, kv_tokens=12_288, length_scale=0.15, most_call_tokens=1228
)
"""Small replicas, so that their steps cost more than to send their tokens by HTTP. A TTFT is that
of several busy steps, as on the machine that the workload's SLOs are meant for."""


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


def spec_of(written: str) -> RouterSpec:
    """`name` or `name:key=value,...` as the gateway runs it before replicas without prefix caches.

    Raises:
        BadInput, InvalidEngineConfig: unknown, or a parameter or value that it does not take.
    """
    given = router_of(written)
    return gateway_router(given.name, NO_PREFIXES.get(given.name, {}) | dict(given.params))


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


def calibrate(replicas: Sequence[ReplicaAddress], calibration_s: float) -> Machine:
    """The machine that each of the replicas is while all of them are loaded.

    Raises:
        StepFitFailed: the measured steps do not determine a step cost.
    """

    async def measured(url: str) -> Machine:
        async with HttpEngine(url, replicas, SETTINGS) as engine:
            return await measured_machine(
                engine, SETTINGS, calibration_s=calibration_s, num_replicas=len(replicas)
            )

    with gateway_to(replicas, spec_of("round_robin")) as url:
        return uvloop.run(measured(url))


def measure(
    experiment: Experiment, router: RouterSpec, replicas: Sequence[ReplicaAddress]
) -> Measured:
    """Run an experiment on idle replicas behind a gateway with this router.

    Raises:
        ServingError, CommandError: a replica or the gateway failed.
    """
    config, load = experiment.config, load_of(experiment)

    async def measured(url: str) -> Measured:
        async with HttpEngine(url, replicas, SETTINGS) as engine:
            before_s = _core_wait_s()
            replayed = await replay_live(
                load.programs,
                engine,
                policy=experiment.policy,
                predictor=config.predictions_of(experiment.seed),
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
        return uvloop.run(measured(url))


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
        predictor=config.predictions_of(experiment.seed),
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
