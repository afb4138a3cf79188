"""Zhang et al. (2025), Tempo: its scheduler (lsdf) against vLLM in service gain and SLO goodput."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.claims_lab import Cell, Lab, mean, quotient
from benchmarks.claims_runs import NEVER_S, Conditions
from benchmarks.claims_table import Change, Claim, Measured, PaperResult, Span
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.workloads.load_generator import Source

PAPER = "Zhang"
CAPACITY_PROGRAMS_S = 5.65
"""Load 1.0 of `chat`: what fcfs drains with 256 slots."""

OURS, VLLM = PolicySpec("lsdf"), PolicySpec("fcfs")


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting of section 6.1: chatbot, 3:1:1, Poisson arrivals.

    Attributes:
        load: multiple of CAPACITY_PROGRAMS_S. The paper gives no rate for one machine.
        slots: the batch size, which the paper varies without numbers (figure 10).
        window_s: of arrivals that count, after as many seconds of warm-up. The paper has an hour.
    """

    load: float
    slots: int
    window_s: float = 60.0


SETTINGS = (
    Setting(0.7, 64),
    Setting(1.0, 64),
    Setting(1.3, 64),
    Setting(1.0, 256),
    Setting(1.3, 256),
    Setting(1.3, 256, window_s=120.0),
)


def cell_of(setting: Setting, policy: PolicySpec) -> Cell:
    """One policy in one setting."""
    config = ExperimentConfig(
        source=Source.generator("chat"),
        slots=setting.slots,
        window_s=setting.window_s,
        warmup_s=setting.window_s,
    )
    return Cell(config, Conditions(waiting_s=NEVER_S), policy, setting.load * CAPACITY_PROGRAMS_S)


def measure(lab: Lab) -> PaperResult:
    """Both goodputs of lsdf / those of fcfs in every setting."""
    cells = [cell_of(setting, policy) for setting in SETTINGS for policy in (OURS, VLLM)]
    documents = lab.documents(PAPER, cells)
    changes = []
    for index, setting in enumerate(SETTINGS):
        ours, vllm = documents[2 * index : 2 * index + 2]
        ratios = {
            name: quotient(mean(ours, name), mean(vllm, name))
            for name in ("service_gain", "requests")
        }
        label = f"load {setting.load:g}, batch {setting.slots}, {2 * setting.window_s:g} s"
        changes.append(Change(PAPER, label, ratios))
    spans = [
        Span.of([each.values[name] for each in changes]) for name in ("service_gain", "requests")
    ]
    claims = [Measured(claim, span) for claim, span in zip(CLAIMS, spans, strict=True)]
    return PaperResult(claims, changes)


_SETTING = "chatbot, 3:1:1, Poisson, loads 0.7 to 1.3, batches 64 and 256"
CLAIMS = (
    Claim(
        PAPER,
        "service gain, ours / vLLM",
        _SETTING,
        "6.2, figure 9",
        Span(1.3, 8.3),
        "Late work keeps most of its gain, so that vLLM, which serves it, has more where steps "
        "are long (batch 256) and less where its queue grows (batch 64).",
    ),
    Claim(
        PAPER,
        "requests, ours / vLLM",
        _SETTING,
        "6.2, figure 10",
        Span(4.0, 10.3),
        "There is no upper limit: while the overload lasts vLLM's queue grows until it keeps no "
        "SLO, so that the ratio hangs on the load and on how long it lasts.",
    ),
)
