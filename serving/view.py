"""The contract between policies and the engine: a policy turns a StepView into a Plan.

Times are absolute seconds on the engine's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from serving.requests import Floats, Ints, Requests


class StepModel(NamedTuple):
    """The duration of a step, linear in its composition; fitted by the engine while it runs.

    Attributes, all in seconds and at least 0:
        base_s: fixed cost of a step.
        token_s: for each new token, prefilled or decoded.
        sequence_s: for each decode, in addition to its token.
        context_s: for each token in the contexts of the decodes.
        pair_s: for each pair of a prompt token and a token before it in the prompt (attention). A
            chunk of c prompt tokens after b others has c * (b + c / 2) pairs.
    """

    base_s: float = 0.02
    token_s: float = 0.0
    sequence_s: float = 0.0
    context_s: float = 0.0
    pair_s: float = 0.0

    def seconds(
        self,
        *,
        new_tokens: float,
        num_decodes: float,
        decode_context_tokens: float,
        prompt_pairs: float = 0.0,
    ) -> float:
        """Duration of one step with these counts."""
        return (
            self.base_s
            + self.token_s * new_tokens
            + self.sequence_s * num_decodes
            + self.context_s * decode_context_tokens
            + self.pair_s * prompt_pairs
        )

    def prompt_s(self, tokens: Floats | Ints, before: Floats | Ints | float = 0.0) -> Floats:
        """Seconds that the prefill of each prompt, or of the rest of it, adds to steps: (n,).

        Args:
            tokens: prompt tokens to compute, (n,).
            before: tokens of the same prompt that are computed already, (n,).
        """
        prefill_s: Floats = np.multiply(tokens, 0.5 * self.pair_s)
        prefill_s += np.multiply(before, self.pair_s) + self.token_s
        prefill_s *= tokens
        return prefill_s


class StepView(NamedTuple):
    """Everything a policy knows when it plans.

    Attributes:
        slots: largest number of requests that hold a slot of the model runner at once.
        step_tokens: the engine's token budget for one step.
        token_s: measured seconds of one decode step.
        prefill_token_s: measured seconds that one more token of a typical prompt adds to a step.
        mean_step_s: measured mean duration of all steps.
        model: the fitted duration of a step as a function of its composition.
        kv_tokens, free_kv_tokens: size of the KV cache, and the free part of it.
        arrivals: the first call of each program that arrived recently, ended ones included, in its
            state at arrival; only the statistics of its user are current. The window is
            `arrivals_s` seconds long, and longer for programs with a distant deadline.
        arrival_counts: weight of each arrival, (k,): `arrivals_s` divided by the length of its
            window; 1 in the shortest window.
    """

    now_s: float
    requests: Requests
    slots: int
    step_tokens: int
    token_s: float
    prefill_token_s: float
    mean_step_s: float
    model: StepModel = StepModel()
    kv_tokens: int = 1 << 40
    free_kv_tokens: int = 1 << 40
    arrivals: Requests = Requests.of(())
    arrivals_s: float = 1.0
    arrival_counts: Floats | float = 1.0


class Plan(NamedTuple):
    """A policy's decisions, limited to those that the engine's scheduler can carry out.

    A waiting request outside `run` is not admitted. A running one is paused and keeps its KV cache
    and its slot until a request in `run` needs them: then the last paused request in `order` is
    evicted.

    vLLM ignores `chunk_tokens` while the engine has a single request.
    """

    order: tuple[str, ...]  # every request of the view exactly once, best first
    run: frozenset[str]  # requests that may be computed until the next plan
    preempt: frozenset[str] = frozenset()  # running, not in run: evicted at once
    drop: tuple[tuple[str, str], ...] = ()  # (request id, reason): ended with RequestDropped
    step_tokens: int | None = None  # token budget of a step; None: the engine's own
    chunk_tokens: int | None = None  # limit on one prompt's tokens in a step; None: the engine's
    steps: int = 50  # validity of the plan in steps, if nothing arrives or ends
    until_s: float = math.inf  # the plan expires at this time, if that is earlier
    least_steps: int = 1  # no new plan before so many steps, while a request is computed


Policy = Callable[[StepView], Plan]


def plan_faults(view: StepView, plan: Plan) -> list[str]:
    """Breaches of the contract in a plan, as messages; empty for a valid plan."""
    known = set(plan.order)
    dropped = [request_id for request_id, _ in plan.drop]
    faults = []
    ids = view.requests.request_id.tolist()
    if not len(plan.order) == len(known) == len(ids) or not known.issuperset(ids):
        faults.append("order must name every request exactly once")
        known = set(ids)
    if not plan.run <= known:
        faults.append("run names unknown requests")
    if not known.issuperset(dropped) or len(set(dropped)) != len(dropped):
        faults.append("drop names unknown or repeated requests")
    if plan.run & set(dropped) or plan.run & plan.preempt:
        faults.append("a request cannot both run and be preempted or dropped")
    if not plan.run and known.difference(dropped):
        faults.append("run must not be empty while there are requests that are not dropped")
    if plan.step_tokens is not None and not 0 < plan.step_tokens <= view.step_tokens:
        faults.append("step_tokens must be within the engine's own budget")
    if plan.chunk_tokens is not None and plan.chunk_tokens < 1:
        faults.append("chunk_tokens must be at least 1")
    if plan.steps < 1 or plan.least_steps < 1:
        faults.append("steps and least_steps must be at least one step")
    return faults
