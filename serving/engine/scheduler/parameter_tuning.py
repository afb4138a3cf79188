"""Online tuning of a policy's parameter: each epoch tries a value and measures its goodput."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from serving.policies.baselines.parameter_search import TUNED_PARAMETERS, ParameterSearch
from serving.policies.table import PolicySpec
from serving.slo import Slo, SloKind
from serving.view import Policy

EPOCH_S = 20.0
"""Length of an epoch in seconds: about the time of an answer, so that most of an epoch's goodput
results from plans made within it."""


@dataclass(slots=True)
class _OpenRequest:
    """A request with an SLO that has not ended.

    Attributes:
        due_s: absolute time; of a stream's next token, otherwise of the end.
        tbt_s: of a stream; None for the other kinds, which count as a whole.
        tokens: of a stream, tokens delivered so far; otherwise prompt tokens.
    """

    due_s: float
    tbt_s: float | None
    tokens: int


class TunedPolicy:
    """Measures the goodput of each epoch, and gives the policy with the epoch's parameter.

    Goodput is counted in tokens, as `serving.goodput.tokens` does: a stream's tokens
    that are delivered in time; the prompt and answer of another request that ends by its own
    deadline and its program's. A program counts call by call, when each ends, because an epoch is
    shorter than most programs. Best-effort requests do not count.
    """

    def __init__(self, spec: PolicySpec) -> None:
        tuned = TUNED_PARAMETERS[spec.name]
        self._build = spec.build()
        self._parameter = tuned.parameter
        self._search = ParameterSearch.of(tuned.values)
        self._open: dict[str, _OpenRequest] = {}
        self._epoch_start_s: float | None = None
        self._goodput_tokens = 0

    @classmethod
    def of(cls, spec: PolicySpec) -> TunedPolicy | None:
        """The tuned policy; None if it has no tuned parameter, or if `spec` sets that parameter."""
        tuned = TUNED_PARAMETERS.get(spec.name)
        return None if tuned is None or tuned.parameter in spec.params else cls(spec)

    @property
    def search(self) -> ParameterSearch:
        """The state of the search: what is known of each value."""
        return self._search

    @property
    def policy(self) -> Policy:
        """The policy with this epoch's value."""
        return partial(self._build, **{self._parameter: self._search.value})

    def idle(self) -> None:
        """The engine has no work: discard the epoch, and start a new one with the next step."""
        self._epoch_start_s = None

    def begin(self, request_id: str, slo: Slo, now_s: float, *, prompt_tokens: int) -> None:
        """A request arrives."""
        if slo.kind is SloKind.LATENCY:
            self._open[request_id] = _OpenRequest(now_s + slo.ttft_s, slo.tbt_s, 0)
        elif slo.deadline_s is not None:
            allowed_s = slo.deadline_s if slo.final_s is None else slo.final_s
            self._open[request_id] = _OpenRequest(now_s + allowed_s, None, prompt_tokens)

    def deliver(self, request_id: str, num_tokens: int, now_s: float) -> None:
        """A request's next tokens leave the engine."""
        request = self._open.get(request_id)
        if request is None or request.tbt_s is None:
            return
        for _ in range(num_tokens):
            self._goodput_tokens += now_s <= request.due_s
            request.due_s += request.tbt_s
        request.tokens += num_tokens

    def end(self, request_id: str, output_tokens: int, now_s: float, *, whole: bool) -> None:
        """A request ends.

        Args:
            output_tokens: tokens of its whole answer.
            whole: whether its answer is complete; false if it was aborted or dropped.
        """
        request = self._open.get(request_id)
        if request is None:
            return
        if request.tbt_s is not None:
            self.deliver(request_id, output_tokens - request.tokens, now_s)
        elif whole and now_s <= request.due_s:
            self._goodput_tokens += request.tokens + output_tokens
        del self._open[request_id]

    def advance(self, now_s: float) -> bool:
        """Start the next epoch if the present one has ended; whether it has.

        If it has, `policy` may have changed.
        """
        if self._epoch_start_s is None:
            self._epoch_start_s, self._goodput_tokens = now_s, 0
        passed_s = now_s - self._epoch_start_s
        if passed_s < EPOCH_S:
            return False
        self._search = self._search.observe(self._goodput_tokens / passed_s)
        self._epoch_start_s, self._goodput_tokens = now_s, 0
        return True
