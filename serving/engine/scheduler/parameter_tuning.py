"""A policy whose parameter is found online: what the engine earns decides, epoch by epoch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from serving.policies.baselines.parameter_search import TUNED_PARAMETERS, ParameterSearch
from serving.policies.table import PolicySpec
from serving.slo import Slo, SloKind
from serving.view import Policy

EPOCH_S = 20.0
"""How long a value is tried: about as long as an answer takes, so that most of what an epoch earns
was decided within it."""


@dataclass(slots=True)
class _Promise:
    """A request under way.

    Attributes:
        due_s: absolute; of the next token if it is a stream, else of its end.
        tbt_s: of a stream; None for the others, which count as a whole.
        tokens: of a stream, those counted so far, in time or not; else the prompt's.
    """

    due_s: float
    tbt_s: float | None
    tokens: int


class TunedPolicy:
    """Counts the tokens that were in time, and gives each epoch's policy.

    Counted, as `serving.sim.metrics.goodput.tokens` does from outside: a stream's tokens that were
    delivered on its timeline; prompt and answer of a request that ended by its own, and its
    program's, deadline. A program is counted call by call, as calls end, for an epoch is over
    before a program is. Work without a promise counts nothing.
    """

    def __init__(self, spec: PolicySpec) -> None:
        adapted = TUNED_PARAMETERS[spec.name]
        self._build = spec.build()
        self._parameter = adapted.parameter
        self._search = ParameterSearch.of(adapted.values)
        self._promises: dict[str, _Promise] = {}
        self._began_s: float | None = None
        self._earned = 0

    @classmethod
    def of(cls, spec: PolicySpec) -> TunedPolicy | None:
        """None where nothing is adapted, or the parameter was fixed by hand."""
        adapted = TUNED_PARAMETERS.get(spec.name)
        return None if adapted is None or adapted.parameter in spec.params else cls(spec)

    @property
    def search(self) -> ParameterSearch:
        """What is known of each value."""
        return self._search

    @property
    def policy(self) -> Policy:
        """With this epoch's value."""
        return partial(self._build, **{self._parameter: self._search.value})

    def idle(self) -> None:
        """The engine ran dry: what passes until the next step says nothing of any value."""
        self._began_s = None

    def begin(self, request_id: str, slo: Slo, now_s: float, *, prompt_tokens: int) -> None:
        """A request arrives."""
        if slo.kind is SloKind.LATENCY:
            self._promises[request_id] = _Promise(now_s + slo.ttft_s, slo.tbt_s, 0)
        elif slo.deadline_s is not None:
            within_s = slo.deadline_s if slo.final_s is None else slo.final_s
            self._promises[request_id] = _Promise(now_s + within_s, None, prompt_tokens)

    def deliver(self, request_id: str, num_tokens: int, now_s: float) -> None:
        """A request's next tokens leave the engine."""
        promise = self._promises.get(request_id)
        if promise is None or promise.tbt_s is None:
            return
        for _ in range(num_tokens):
            self._earned += now_s <= promise.due_s
            promise.due_s += promise.tbt_s
        promise.tokens += num_tokens

    def end(self, request_id: str, output_tokens: int, now_s: float, *, whole: bool) -> None:
        """A request ends.

        Args:
            output_tokens: all of its answer.
            whole: it came to its own end; else it was aborted, or dropped.
        """
        promise = self._promises.get(request_id)
        if promise is None:
            return
        if promise.tbt_s is not None:
            self.deliver(request_id, output_tokens - promise.tokens, now_s)
        elif whole and now_s <= promise.due_s:
            self._earned += promise.tokens + output_tokens
        del self._promises[request_id]

    def turn(self, now_s: float) -> bool:
        """Whether an epoch has ended here, so that `policy` may be another one."""
        if self._began_s is None:
            self._began_s, self._earned = now_s, 0
        passed_s = now_s - self._began_s
        if passed_s < EPOCH_S:
            return False
        self._search = self._search.observe(self._earned / passed_s)
        self._began_s, self._earned = now_s, 0
        return True
