"""What a policy sees and what it may decide: the contract between policies and the engine.

Times are absolute seconds on the engine's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from serving.requests import Floats, Ints, Requests


class StepModel(NamedTuple):
    """What a step costs, linear in what it is made of; measured by the engine while it runs.

    Attributes: seconds of a step, of each new token, of each decode, of each token in the contexts
    of the decodes, of each pair of a prompt's token and one before it; none below 0. So many tokens
    of a prompt after so many make tokens * (before + tokens / 2) pairs.
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
        """Seconds of one step."""
        return (
            self.base_s
            + self.token_s * new_tokens
            + self.sequence_s * num_decodes
            + self.context_s * decode_context_tokens
            + self.pair_s * prompt_pairs
        )

    def prompt_s(self, tokens: Floats | Ints, before: Floats | Ints | float = 0.0) -> Floats:
        """Seconds that reading a prompt, or the rest of it, adds to steps: (n,).

        Args:
            tokens: to be read, (n,).
            before: those of the same prompt that are read already, (n,).
        """
        read_s: Floats = np.multiply(tokens, 0.5 * self.pair_s)
        read_s += np.multiply(before, self.pair_s) + self.token_s
        read_s *= tokens
        return read_s


class StepView(NamedTuple):
    """Everything a policy knows when it plans.

    Attributes:
        slots: how many requests may hold a slot of the model runner at once.
        step_tokens: most tokens that one step may compute.
        token_s: measured seconds of one decode step.
        prefill_token_s: measured seconds that one more token of a usual prompt adds to a step.
        mean_step_s: measured seconds of a step on average, whatever it computes.
        model: the same and more, as a function of what a step is made of.
        kv_tokens, free_kv_tokens: room of the KV cache, in all and now.
        arrivals: the first calls of the programs that arrived in the last `arrivals_s` seconds,
            as they were when they arrived, ended ones too; but what is known of users is of now.
            Those that may take long are told of for longer.
        arrival_counts: of how many that came in `arrivals_s` each of them tells: 1, or less of
            those told of for longer, (k,).
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
    """What the adapter can honour, and nothing else.

    Requests outside `run` are held if they wait, and paused with their KV cache kept if they
    run. A pause lasts while nobody in `run` needs its slot or its memory: then the last of the
    paused in `order` gives them up.

    While a single request is in the engine, vLLM ignores `chunk_tokens`: nobody waits behind it.
    """

    order: tuple[str, ...]  # every request of the view exactly once, best first
    run: frozenset[str]  # who may be computed until the next plan
    preempt: frozenset[str] = frozenset()  # running, not in run: gives up its KV cache at once
    drop: tuple[tuple[str, str], ...] = ()  # (request id, reason): ends at its caller
    step_tokens: int | None = None  # token budget of a step; None: the engine's own
    chunk_tokens: int | None = None  # most tokens of one prompt in a step; None: the engine's own
    steps: int = 50  # how many steps the plan holds, if nothing arrives or ends
    until_s: float = math.inf  # when it stops being right, if that is earlier
    least_steps: int = 1  # what changes within so many is gathered, while somebody is computed


Policy = Callable[[StepView], Plan]


def plan_faults(view: StepView, plan: Plan) -> list[str]:
    """How a plan breaks the contract; empty for a sound one."""
    known = set(plan.order)
    dropped = [request_id for request_id, _ in plan.drop]
    faults = []
    names = view.requests.request_id.tolist()
    if not len(plan.order) == len(known) == len(names) or not known.issuperset(names):
        faults.append("order must name every request exactly once")
        known = set(names)
    if not plan.run <= known:
        faults.append("run names unknown requests")
    if not known.issuperset(dropped) or len(set(dropped)) != len(dropped):
        faults.append("drop names unknown or repeated requests")
    if plan.run & set(dropped) or plan.run & plan.preempt:
        faults.append("a request cannot both run and be preempted or dropped")
    if not plan.run and known.difference(dropped):
        faults.append("somebody must run while there is work")
    if plan.step_tokens is not None and not 0 < plan.step_tokens <= view.step_tokens:
        faults.append("step_tokens must be within the engine's own budget")
    if plan.chunk_tokens is not None and plan.chunk_tokens < 1:
        faults.append("chunk_tokens must be at least 1")
    if plan.steps < 1 or plan.least_steps < 1:
        faults.append("a plan holds for at least one step")
    return faults
