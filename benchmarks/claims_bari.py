"""Bari et al. (2025), SLAI: the median TTFT, and the rate at which it stays below 0.5 s."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType

from benchmarks.claims_lab import RESOLUTION, Cell, Documents, Lab, quotient
from benchmarks.claims_runs import NEVER_S, Conditions
from benchmarks.claims_table import Change, Claim, Measured, PaperResult, Span
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.workloads.load_generator import Source
from serving.step_cost import MACHINES, Machine, StepCost

PAPER = "Bari"
LIMIT_S, HIGH_S = 0.5, 1.5
"""Section 7: the median TTFT of the capacity, and Sarathi's under high load."""

COEFFICIENTS = tuple(name for name in StepCost.__dataclass_fields__ if name.endswith("_s"))


OBSERVED_S = 15.0
"""A first token that comes later is later than every median here."""

SARATHI, OURS, PROMPT_ORDER = "Sarathi", "SLAI", "no waits"
POLICIES: Mapping[str, PolicySpec] = MappingProxyType(
    {
        SARATHI: PolicySpec("fcfs"),
        OURS: PolicySpec("slai"),
        PROMPT_ORDER: PolicySpec("slai", {"offset": 1e6, "pressed_offset": 1e6}),
    }
)
"""The third is Sarathi with the shortest prompt first: no decode waits, as all are critical."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting of section 7: 5% paying users, Poisson arrivals, 512 tokens, 128 requests.

    Attributes:
        slowness: duration of a step / that on the A100. The paper's machine, an RTX 6000 Ada, has
            0.47 of the A100's memory bandwidth (960 against 2,039 GB/s).
        first_rate_s: programs a second that are tried first.
    """

    slowness: float
    first_rate_s: float


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "a machine like the paper's": Setting(2.0, 0.8),
        "an A100": Setting(1.0, 2.4),
    }
)


def slowed(machine: Machine, slowness: float) -> Machine:
    """A machine with longer steps: every coefficient of its cost times the slowness."""
    cost = machine.step_cost
    changes = {name: getattr(cost, name) * slowness for name in COEFFICIENTS}
    return replace(machine, step_cost=replace(cost, **changes))


def cell_of(name: str, setting: Setting) -> Cell:
    """One policy in one setting; its rate is the first one tried."""
    config = ExperimentConfig(
        source=Source.generator("sharegpt"),
        machine=slowed(MACHINES["a100-llama3-8b"], setting.slowness),
        slots=128,
        step_tokens=512,
        window_s=60.0,
        warmup_s=60.0,
    )
    return Cell(
        config,
        Conditions(waiting_s=NEVER_S, observed_s=OBSERVED_S),
        POLICIES[name],
        setting.first_rate_s,
    )


def rate_within(lab: Lab, name: str, setting: Setting, limit_s: float) -> float | None:
    """The highest rate at which the mean over the seeds of the median TTFT is within a limit.

    None: unknown.
    """

    def is_kept(documents: Documents) -> bool:
        return ttft_s(documents) <= limit_s

    title = f"{PAPER}, {name}, {setting.slowness:g}, {limit_s:g} s"
    return lab.highest_rate(title, cell_of(name, setting), is_kept)


def ttft_s(documents: Documents) -> float:
    """The mean over the seeds of the median TTFT; infinite if that of one run is."""
    return fmean(
        math.inf if each["median_ttft_s"] is None else each["median_ttft_s"] for each in documents
    )


def tail_tbt_s(documents: Documents) -> float | None:
    """The mean over the seeds of the P99 TBT of paying users, which should be at most 0.1 s.

    None: a run has no gap between two tokens of a paying user.
    """
    seconds = [each["p99_tbt_s"].get("paying") for each in documents]
    return None if None in seconds else fmean(seconds)


def change_of(lab: Lab, label: str, setting: Setting) -> Change:
    """The capacities at LIMIT_S, and the TTFT at the rate at which Sarathi's is HIGH_S."""
    capacities = {name: rate_within(lab, name, setting, LIMIT_S) for name in POLICIES}
    high_rate_s = rate_within(lab, SARATHI, setting, HIGH_S)
    documents: dict[str, Documents] = {}
    if high_rate_s is not None:
        cells = [cell_of(name, setting)._replace(rate_per_s=high_rate_s) for name in POLICIES]
        documents = dict(zip(POLICIES, lab.documents(PAPER, cells), strict=True))

    def at_high_rate(name: str, metric: Callable[[Documents], float | None]) -> float | None:
        return metric(documents[name]) if documents else None

    values = {f"{name}, /s": rate for name, rate in capacities.items()}
    values |= {f"{name}, TTFT s": at_high_rate(name, ttft_s) for name in POLICIES}
    values |= {f"{name}, P99 TBT s": at_high_rate(name, tail_tbt_s) for name in (SARATHI, OURS)}
    return Change(PAPER, label, values)


def measure(lab: Lab) -> PaperResult:
    """Both claims, over the machines of SETTINGS."""
    changes = [change_of(lab, label, setting) for label, setting in SETTINGS.items()]
    spans = [
        Span.of([quotient(each.values[ours], each.values[sarathi]) for each in changes])
        for ours, sarathi in (
            (f"{OURS}, TTFT s", f"{SARATHI}, TTFT s"),
            (f"{OURS}, /s", f"{SARATHI}, /s"),
        )
    ]
    claims = [Measured(claim, span) for claim, span in zip(CLAIMS, spans, strict=True)]
    return PaperResult(claims, changes)


_SETTING = "ShareGPT, 5% paying, Poisson, 512 tokens, 128 requests, A100 at half and full speed"
CLAIMS = (
    Claim(
        PAPER,
        "median TTFT, ours / Sarathi",
        _SETTING,
        "7, figure 6c",
        Span(0.47, 0.47),
        "Reproduced between the two machines, since the paper's own is not known and is assumed: "
        "the gain is from the shortest prompt first and from decodes that wait, about half each.",
    ),
    Claim(
        PAPER,
        "capacity, ours / Sarathi",
        _SETTING,
        "7, figure 6c",
        Span(1.26, 1.26),
        "Reproduced within the 10% at which a search ends: it is decodes that wait, as without "
        "them the capacity is within a tenth of Sarathi's.",
        resolution=RESOLUTION,
    ),
)
