"""An engine with a random schedule, within its machine's limits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from serving.sim.drive.stepped import Ended, Progress
from serving.slo import Slo
from serving.step_cost import Composition


@dataclass(slots=True)
class _Request:
    prompt_tokens: int
    output_tokens: int
    rank: tuple[float, ...]
    computed: int = 0
    delivered: int = 0


@dataclass(slots=True)
class RandomEngine:
    """A given order; which requests run, are cut into chunks, or lose their KV cache is random.

    Attributes:
        order: by which requests are served: "any" (random), "first", "short" or "urgent".
        disruption: probability that a request is left out of a step, and of a shortened chunk; one
            in five of those left out loses its KV cache.
    """

    seed: int
    order: str
    disruption: float
    slots: int
    step_tokens: int
    kv_tokens: int
    preemptions: int = 0
    recomputed_tokens: int = 0
    _requests: dict[str, _Request] = field(default_factory=dict)
    _step: dict[str, int] = field(default_factory=dict)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def submit(
        self,
        request_id: str,
        *,
        prompt: list[int],
        output_tokens: int,
        slo: Slo,
        max_tokens: int,
        whole_tokens: int | None = None,
    ) -> None:
        rank = {
            "any": self._random.random(),
            "first": float(len(self._requests)),
            "short": float(output_tokens + len(prompt)),
            "urgent": slo.final_s or slo.deadline_s or slo.ttft_s,
        }[self.order]
        self._requests[request_id] = _Request(len(prompt), output_tokens, (rank, self.seed))

    def abort(self, request_id: str) -> None:
        del self._requests[request_id]

    def plan_step(self) -> Composition:
        budget, free_tokens, decodes, contexts, chunks = self.step_tokens, self.kv_tokens, 0, 0, []
        for request_id, request in sorted(self._requests.items(), key=lambda item: item[1].rank):
            if self._random.random() < self.disruption:
                request.computed *= self._random.random() < 0.8
                continue
            tokens = min(request.prompt_tokens + request.delivered - request.computed, budget)
            if self._random.random() < self.disruption:
                tokens = self._random.randint(min(tokens, 1), tokens)
            if (
                not tokens
                or request.computed + tokens > free_tokens
                or len(self._step) == self.slots
            ):
                request.computed = 0
                continue
            budget -= tokens
            free_tokens -= request.computed + tokens
            if tokens == 1 and request.computed >= request.prompt_tokens:
                decodes, contexts = decodes + 1, contexts + request.computed
            else:
                chunks.append((tokens, request.computed))
            self._step[request_id] = tokens
        return Composition(self.step_tokens - budget, decodes, contexts, tuple(chunks))

    def finish_step(self) -> Progress:
        tokens, ended = [], []
        for request_id, computed in self._step.items():
            request = self._requests[request_id]
            request.computed += computed
            if request.computed == request.prompt_tokens + request.delivered:
                tokens.append(request_id)
                request.delivered += 1
                if request.delivered == request.output_tokens:
                    del self._requests[request_id]
                    ended.append(Ended(request_id, "stop", None))
        self._step.clear()
        return Progress(tuple(tokens), tuple(ended))
