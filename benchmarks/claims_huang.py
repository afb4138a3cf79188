"""Huang et al. (2025): simulated annealing of the order against arrival order and all orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from statistics import fmean
from typing import NamedTuple

import numpy as np

from benchmarks.claims_lab import Lab, quotient
from benchmarks.claims_runs import NEVER_S
from benchmarks.claims_table import Change, Claim, Measured, PaperResult, Span
from benchmarks.command import say
from serving.goodput import ProgramOutcome, met
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.baselines.annealing import annealed
from serving.policies.baselines.annealing_predictor import BatchPrediction
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import virtual_engine
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.lengths import LengthPair, Lengths
from serving.sim.programs.programs import Call, Program, Stage, StageCall
from serving.sim.workloads.load_generator import Source
from serving.slo import Slo, SloKind
from serving.step_cost import MACHINES, StepCost

PAPER = "Huang"
COST = StepCost(
    name="2 x V100, Qwen2.5-7B",
    source="Huang et al. (2025), table 2",
    uncertainty="a step of prompts and of decodes is one step here; their bases are not added",
    fixed_s=15.85e-3,
    large_token_s=0.1e-3,
    decode_sequence_s=0.275e-3,
    decode_context_s=0.0002e-3,
    chunk_base_s=(43.67 - 15.85 + 5.7) * 1e-3,
)
CHAT = LengthPair(Lengths(90, 1.1, 1_000), Lengths(200, 1.0, 1_000))
CODE = LengthPair(Lengths(60, 0.7, 1_000), Lengths(160, 0.6, 1_000))
"""Assumed: lognormal, below 2,000 tokens together; a code request takes 3 s in the mean."""

TTFT_S, TPOT_S, CODE_DEADLINE_S = 10.0, 0.05, 30.0
"""Section 5.1."""

SEQUENCES = 6_300
"""What the paper tries: 100 at each temperature from 500 down to 20 in steps of 5%."""

ANNEALING_SEED = 0
SIZES, BATCHES = (4, 6, 10, 40), (1, 2, 4)
QUEUES = {4: 2, 6: 2, 10: 2}
"""Number of requests -> queues of each seed; 1 for other numbers."""

ALL_ORDERS = 6
"""Up to so many requests all orders are tried: 720."""


class Request(NamedTuple):
    """One request and its predicted length, in tokens."""

    is_code: bool
    call: Call
    predicted_tokens: float


@dataclass(frozen=True, slots=True)
class Setting:
    """The queue of section 5.1: so many requests at once, half chat, half code.

    Attributes:
        length_error: None: a length is predicted by a draw from its task's normal distribution
            (section 5.1); else the truth times at most 1 +- this (section 5.3).
    """

    num_requests: int
    batch: int
    length_error: float | None = None


class Score(NamedTuple):
    """Met SLOs, and the sum of the latencies, in seconds; G is their ratio."""

    num_met: int
    latency_s: float

    @property
    def gain(self) -> float:
        """G, met SLOs per second of latency."""
        return self.num_met / self.latency_s


def requests_of(setting: Setting, seed: int) -> list[Request]:
    """The queue in the order of arrival."""
    rng = np.random.default_rng([seed, setting.num_requests, setting.batch])
    kinds = rng.permutation(setting.num_requests) % 2 == 0
    requests = []
    for is_code in kinds.tolist():
        pair = CODE if is_code else CHAT
        call = Call(pair.prompt.sample(rng), pair.output.sample(rng))
        if setting.length_error is None:
            spread = pair.output.mean * math.sqrt(math.expm1(pair.output.sigma**2))
            predicted = max(rng.normal(pair.output.mean, spread), 1.0)
        else:
            error = rng.uniform(-setting.length_error, setting.length_error)
            predicted = call.output_tokens * (1.0 + error)
        requests.append(Request(is_code, call, predicted))
    return requests


def queues_of(setting: Setting, seeds: Sequence[int]) -> list[list[Request]]:
    """The queues of all seeds."""
    count = QUEUES.get(setting.num_requests, 1)
    return [requests_of(setting, 100 * seed + each) for seed in seeds for each in range(count)]


def program_of(request: Request, index: int) -> Program:
    """A request that arrives at time 0; the chat's metrics are TTFT and TPOT, the code's E2EL."""
    return Program(
        id=f"request-{index:03d}",
        application="code" if request.is_code else "chat",
        kind=SloKind.DEADLINE if request.is_code else SloKind.LATENCY,
        arrival_s=0.0,
        stages=(Stage((request.call,)),),
        ttft_s=TTFT_S,
        tbt_s=TPOT_S,
        deadline_s=CODE_DEADLINE_S if request.is_code else None,
    )


@dataclass(frozen=True, slots=True)
class GivenLengths:
    """Predicts each program's length as a point: a Predictor."""

    tokens: dict[str, float]
    predictions: Predictions

    @property
    def max_tokens(self) -> int:
        """The limit of every call."""
        return self.predictions.max_tokens

    def slo_of(self, program: Program, call: StageCall, now_s: float) -> Slo:
        """The SLO of one call."""
        sketch = LengthSketch((self.tokens[program.id],) * len(LENGTH_LEVELS))
        slo = self.predictions.slo_of(program, call, now_s)
        return replace(slo, length=sketch, waiting_s=NEVER_S)

    def call_ended(
        self, program: Program, call: StageCall, *, began_s: float, now_s: float
    ) -> None:
        """Nothing is learned."""


def simulated(requests: Sequence[Request], policy: PolicySpec) -> Score:
    """The queue on the production scheduler with the cost of table 2."""
    machine = replace(MACHINES["a100-llama3-8b"], step_cost=COST)
    config = ExperimentConfig(source=Source.generator("mixed"), machine=machine)
    programs = [program_of(request, index) for index, request in enumerate(requests)]
    lengths = [request.predicted_tokens for request in requests]
    clock = VirtualTime()
    replayed = replay(
        programs,
        virtual_engine(config, policy, programs, clock),
        clock,
        COST,
        predictor=GivenLengths(
            {program.id: tokens for program, tokens in zip(programs, lengths, strict=True)},
            config.no_predictions,
        ),
        until_s=math.inf,
    )
    return Score(sum(map(met, replayed.programs)), sum(map(_latency_s, replayed.programs)))


def _latency_s(program: ProgramOutcome) -> float:
    assert program.e2el_s is not None, "nothing is dropped, and the run lasts until all have ended"
    return program.e2el_s


def policies_of(setting: Setting) -> tuple[PolicySpec, PolicySpec]:
    """Annealing with the paper's number of sequences over the whole queue, and vLLM."""
    annealing = {
        "batch": setting.batch,
        "window": setting.num_requests,
        "iterations": SEQUENCES,
        "seed": ANNEALING_SEED,
    }
    return PolicySpec("annealing", annealing), PolicySpec("fcfs", {"batch": setting.batch})


def prediction_of(setting: Setting, requests: Sequence[Request]) -> BatchPrediction:
    """The paper's predictor (equations 14 to 19, table 2) for a queue without running requests."""
    batch = setting.batch
    prompts = np.array([each.call.prompt_tokens for each in requests], dtype=np.float64)
    outputs = np.array([each.predicted_tokens for each in requests])
    prefill_s = 1e-3 * (0.1 * batch * prompts + 5.7 * batch + 0.01 * prompts + 43.67)
    context = prompts + (outputs + 1.0) / 2.0
    token_s = 1e-3 * (0.0002 * batch * context + 0.275 * batch + 0.00088 * context + 15.85)
    exec_s = prefill_s + outputs * token_s
    is_code = np.array([each.is_code for each in requests])
    first_s = np.where(token_s <= TPOT_S, TTFT_S - prefill_s, -np.inf)
    return BatchPrediction(
        exec_s=exec_s,
        slack_s=np.where(is_code, CODE_DEADLINE_S - exec_s, first_s),
        slots=batch,
        num_held=0,
        held_s=0.0,
        rest_met=0,
        rest_s=0.0,
    )


def best_of_all(prediction: BatchPrediction) -> float:
    """The highest predicted G of all orders of the queue."""
    orders = permutations(range(len(prediction.exec_s)))
    return max(prediction.score(np.array(order)) for order in orders)


def annealed_score(prediction: BatchPrediction) -> float:
    """The predicted G of the annealed order; the start is by latency, or by arrival if better."""
    count = len(prediction.exec_s)
    starts = (np.argsort(prediction.exec_s, kind="stable"), np.arange(count))
    start = max(starts, key=prediction.score)
    order = annealed(prediction, start, count, SEQUENCES, 0.01, ANNEALING_SEED)
    return prediction.score(order)


def measure(lab: Lab) -> PaperResult:
    """G of annealing / vLLM over all sizes and batches; of annealing / the best order if small."""
    changes, to_best = [], []
    for num_requests, batch in product(SIZES, BATCHES):
        setting = Setting(num_requests, batch)
        queues = queues_of(setting, lab.seeds)
        say(f"{PAPER}: {num_requests} requests, batch {batch} (simulated)")
        changes.append(_change(setting, queues))
        if num_requests <= ALL_ORDERS:
            predictions = [prediction_of(setting, queue) for queue in queues]
            to_best += [annealed_score(each) / best_of_all(each) for each in predictions]
    drawn = tuple(changes)
    for num_requests, batch in ((10, 1), (40, 4)):
        exact = Setting(num_requests, batch, length_error=0.025)
        changes.append(_change(exact, queues_of(exact, lab.seeds)))
    spans = (
        Span.of([each.values["G"] for each in drawn]),
        Span.of([each.values["met"] for each in drawn]),
        Span.of([each.values["latency"] for each in drawn]),
        Span.of(to_best),
        Span.of([changes[-1].values["G"]]),
    )
    claims = [Measured(claim, span) for claim, span in zip(CLAIMS, spans, strict=True)]
    return PaperResult(claims, changes)


def _change(setting: Setting, queues: Sequence[Sequence[Request]]) -> Change:
    """The ratios of annealing to vLLM, of sums over the queues."""
    policies = policies_of(setting)
    pairs = [[simulated(requests, policy) for policy in policies] for requests in queues]
    gains = [fmean(score.gain for score in column) for column in zip(*pairs, strict=True)]
    nums_met = [sum(score.num_met for score in column) for column in zip(*pairs, strict=True)]
    latencies = [sum(score.latency_s for score in column) for column in zip(*pairs, strict=True)]
    label = f"{setting.num_requests} requests, batch {setting.batch}"
    if setting.length_error is not None:
        label += f", lengths within {setting.length_error:.1%}"
    values = {
        "G": quotient(*gains),
        "met": quotient(*nums_met),
        "latency": latencies[0] / latencies[1],
    }
    return Change(PAPER, label, values)


_SETTING = "4 to 40 requests at once, half chat, half code, batches 1, 2, 4; lengths drawn"
CLAIMS = (
    Claim(PAPER, "G, annealing / vLLM", _SETTING, "5.2, figure 7", Span(1.003, 1.465), "X."),
    Claim(PAPER, "met SLOs, annealing / vLLM", _SETTING, "5.2, figure 7", Span(1.0, 1.334), "X."),
    Claim(PAPER, "latency, annealing / vLLM", _SETTING, "5.2, figure 7", Span(0.837, 1.0), "X."),
    Claim(PAPER, "G, annealing / best order", _SETTING, "5.2, figure 7", Span(0.99, 1.0), "X."),
    Claim(PAPER, "G, lengths within 2.5%", _SETTING, "5.3, figure 9", Span(1.84, 1.84), "X."),
)
