"""What a policy sees and what it may decide: the contract between policies and the engine.

Times are absolute seconds on the engine's clock. NamedTuples, because a view of thousands of
requests is built in the scheduler's hot loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from serving.slo import Slo


class RequestState(IntEnum):
    """Where a request stands in the engine."""

    WAITING = 0  # holds no KV cache: never scheduled, or preempted
    RUNNING = 1  # holds KV cache and is computed in each step
    PAUSED = 2  # holds KV cache and a slot, and is left out of the steps


class RequestView(NamedTuple):
    """One request as it stands when the plan is made."""

    request_id: str
    arrival_s: float
    slo: Slo
    prompt_tokens: int
    max_tokens: int
    priority: int  # as its caller asked; lower is earlier, vLLM's convention
    state: RequestState
    computed_tokens: int  # tokens whose keys and values are in the cache
    output_tokens: int
    unscheduled_s: float  # since when it has not been computed; its arrival, if it never was

    @property
    def deadline_s(self) -> float:
        """When this request, or its stage, must end; infinity where nothing is promised."""
        if self.slo.deadline_s is None:
            return math.inf
        return self.arrival_s + self.slo.deadline_s

    @property
    def final_s(self) -> float:
        """When the whole program must end; the request's own deadline if it is no program."""
        if self.slo.final_s is None:
            return self.deadline_s
        return self.arrival_s + self.slo.final_s

    def remaining_tokens(self, level: float = 0.9) -> float:
        """Upper bound on the output tokens still to come, at least 1.

        Conditioned on what has been generated; without a sketch, what max_tokens leaves.
        """
        limit = max(self.max_tokens - self.output_tokens, 1)
        if self.slo.length is None:
            return float(limit)
        bound = self.slo.length.upper(level, generated=self.output_tokens)
        return min(bound - self.output_tokens, limit)


class StepView(NamedTuple):
    """Everything a policy knows when it plans."""

    now_s: float
    requests: tuple[RequestView, ...]
    slots: int  # how many requests may hold a slot of the model runner at once
    step_tokens: int  # most tokens that one step may compute
    token_s: float  # measured seconds of one decode step
    prefill_token_s: float  # measured seconds to prefill one token


class Plan(NamedTuple):
    """What the adapter can honour, and nothing else.

    Requests outside `run` are held if they wait, and paused with their KV cache kept if they
    run. A pause lasts while nobody in `run` needs its slot or its memory: then the last of the
    paused in `order` gives them up.
    """

    order: tuple[str, ...]  # every request of the view exactly once, best first
    run: frozenset[str]  # who may be computed until the next plan
    preempt: frozenset[str] = frozenset()  # running, not in run: gives up its KV cache at once
    drop: tuple[tuple[str, str], ...] = ()  # (request id, reason): ends at its caller
    step_tokens: int | None = None  # token budget of a step; None: the engine's own
    steps: int = 50  # how many steps the plan holds, if nothing arrives or ends
    until_s: float = math.inf  # when it stops being right, if that is earlier


Policy = Callable[[StepView], Plan]


def plan_faults(view: StepView, plan: Plan) -> list[str]:
    """How a plan breaks the contract; empty for a sound one."""
    known = {request.request_id for request in view.requests}
    dropped = [request_id for request_id, _ in plan.drop]
    faults = []
    if len(plan.order) != len(known) or set(plan.order) != known:
        faults.append("order must name every request exactly once")
    if not plan.run <= known:
        faults.append("run names unknown requests")
    if not known.issuperset(dropped) or len(set(dropped)) != len(dropped):
        faults.append("drop names unknown or repeated requests")
    if plan.run & set(dropped) or plan.run & plan.preempt:
        faults.append("a request cannot both run and be preempted or dropped")
    if known.difference(dropped) and not plan.run:
        faults.append("somebody must run while there is work")
    if plan.step_tokens is not None and not 0 < plan.step_tokens <= view.step_tokens:
        faults.append("step_tokens must be within the engine's own budget")
    if plan.steps < 1:
        faults.append("a plan holds for at least one step")
    return faults
