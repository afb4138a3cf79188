"""What became of each promise, as its client saw it: Prometheus counters of the API server.

Seconds count from the call of the engine to the tokens that leave it, so a promise that is kept
here was kept for the client, but for the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from serving.goodput import CallOutcome, ProgramOutcome, end_due_s, met, tokens
from serving.slo import Slo, SloKind

NUM_USERS = 200
"""Users with counters of their own; a name costs memory here and in Prometheus for ever."""

OTHER_USERS = "(others)"
"""The label of the users after NUM_USERS."""

SLACK_BUCKETS_S = (-60, -30, -10, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 30, 60, 300)
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 4, 10)


class Answer(Protocol):
    """One answer of a request, as vLLM gives it out."""

    @property
    def index(self) -> int:
        """Its number among the answers to the request."""
        ...

    @property
    def token_ids(self) -> Sequence[int]:
        """Its tokens, all so far or the new ones."""
        ...


class Stats(Protocol):
    """The times of a request as vLLM measures them, in seconds of the engine's own clock.

    A time that has not come is 0. The first time that it is scheduled counts.
    """

    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float
    num_generation_tokens: int
    num_preemptions: int


class Output(Protocol):
    """What vLLM gives out for a request at one time."""

    @property
    def metrics(self) -> Stats | None:
        """None if vLLM keeps none (--disable-log-stats)."""
        ...

    @property
    def prompt_token_ids(self) -> Sequence[int] | None:
        """The tokens of the prompt."""
        ...

    @property
    def outputs(self) -> Sequence[Answer]:
        """Its answers."""
        ...


class Promise:
    """One request from its arrival to its end.

    Args:
        clock: seconds, from any origin.
    Attributes:
        ended: "completed", "dropped", "cancelled" or "failed"; "" before its end.
        stats: None before the engine has given anything out, or if vLLM keeps none.
    """

    def __init__(self, slo: Slo, clock: Callable[[], float]) -> None:
        self.slo = slo
        self.ended = ""
        self.stats: Stats | None = None
        self._clock = clock
        self._arrival_s = self._end_s = clock()
        self._prompt_tokens = 0
        # By answer: a request may ask for several.
        self._token_times_s: dict[int, list[float]] = {}
        self._then_from: dict[int, int] = {}

    @property
    def _is_stream(self) -> bool:
        """Whether all of its answer is a stream, though it has a deadline."""
        return self.slo.then_tbt_s is not None and self.slo.then_token is None

    @property
    def is_complete(self) -> bool:
        """Whether all its answers are complete."""
        return self.ended == "completed"

    def observe(self, output: Output, *, is_delta: bool) -> None:
        """Tokens leave the engine.

        Args:
            is_delta: whether an output holds only what is new in it, else all so far.
        """
        self.stats = output.metrics
        now_s = self._clock()
        self._prompt_tokens = len(output.prompt_token_ids or ())
        for answer in output.outputs:
            times_s = self._token_times_s.setdefault(answer.index, [])
            new_tokens = list(answer.token_ids[0 if is_delta else len(times_s) :])
            if (end := self.slo.then_token) is not None and end in new_tokens:
                then_from = len(times_s) + new_tokens.index(end) + 1
                self._then_from.setdefault(answer.index, then_from)
            times_s.extend([now_s] * len(new_tokens))

    def end(self, ended: str) -> None:
        """It ends; the first end counts."""
        if not self.ended:
            self.ended, self._end_s = ended, self._clock()

    def outcome(self) -> ProgramOutcome:
        """What has become of it."""
        calls = tuple(
            CallOutcome(
                submitted_s=self._arrival_s,
                prompt_tokens=0 if number else self._prompt_tokens,  # the answers share the prompt
                output_tokens=max(len(times_s), 1),
                # An answer without a token, of a stop at once, ends like one of a single token.
                token_times_s=times_s or ([self._end_s] if self.is_complete else []),
                ended=self.is_complete,
                then_from=0 if self._is_stream else self._then_from.get(answer),
            )
            for number, (answer, times_s) in enumerate(self._token_times_s.items())
        )
        return ProgramOutcome(
            program_id=self.slo.program,
            kind=self.slo.kind,
            arrival_s=self._arrival_s,
            calls=(calls,),
            ended_s=self._end_s if self.is_complete else None,
            ttft_s=self.slo.ttft_s,
            tbt_s=self.slo.tbt_s,
            deadline_s=self.slo.final_s or self.slo.deadline_s,
            then_tbt_s=self.slo.then_tbt_s,
        )

    def slack_s(self) -> float:
        """Seconds that were left at its end; negative if it was late."""
        return end_due_s(self.outcome()) - self._end_s

    def length_ratios(self) -> list[float]:
        """The predicted median of each answer over its length; empty without a prediction.

        Of an answer in two parts, of its first.
        """
        if self.slo.length is None:
            return []
        median = self.slo.length.upper(0.5)
        lengths = {answer: len(times_s) for answer, times_s in self._token_times_s.items()}
        return [median / max(each, 1) for each in (lengths | self._then_from).values()]

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens of its prompt; 0 before the first output."""
        return self._prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        """The tokens of all its answers so far."""
        return sum(self._output_tokens)

    @property
    def _output_tokens(self) -> list[int]:
        return [len(times_s) for times_s in self._token_times_s.values()]


class PromiseCounters:
    """Counts promises by kind and user.

    A request without an SLO (best effort) promises nothing and is not counted. Outcomes: "kept" and
    "missed" once it has ended (`serving.goodput.met`; of a call of a program by the program's
    deadline), "dropped" by the scheduler, "cancelled" by its client, "failed" otherwise.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._users: set[str] = set()
        self._made = Counter(
            "orchestrate_promises_made",
            "Requests with an SLO that the engine received.",
            ("kind", "user"),
            registry=registry,
        )
        self._ended = Counter(
            "orchestrate_promises",
            "Requests with an SLO that ended: kept, missed, dropped, cancelled or failed.",
            ("kind", "user", "outcome"),
            registry=registry,
        )
        self._goodput = Counter(
            "orchestrate_goodput_tokens",
            "Tokens that met their SLO.",
            ("kind", "user"),
            registry=registry,
        )
        self._slack = Histogram(
            "orchestrate_slack_seconds",
            "Seconds left when a request with an SLO ended; negative if it was late.",
            ("kind",),
            buckets=SLACK_BUCKETS_S,
            registry=registry,
        )
        self._length_ratio = Histogram(
            "orchestrate_predicted_length_ratio",
            "Predicted median length of an answer over its length.",
            ("kind",),
            buckets=RATIO_BUCKETS,
            registry=registry,
        )

    @contextmanager
    def follow(self, slo: Slo) -> Iterator[Promise]:
        """Count a request from its arrival to the end of the block.

        The block says by `Promise.end` how it ended; without that, an error means "failed", and
        leaving early "cancelled".
        """
        promise = Promise(slo, self._clock)
        is_counted = slo.kind is not SloKind.BEST_EFFORT
        if is_counted:
            self._made.labels(slo.kind, self._label(slo.user)).inc()
        try:
            yield promise
        except Exception:
            promise.end("failed")
            raise
        finally:
            promise.end("cancelled")
            if is_counted:
                self._count(promise)

    def _count(self, promise: Promise) -> None:
        kind, user = promise.slo.kind, self._label(promise.slo.user)
        outcome = promise.outcome()
        ended = promise.ended
        if promise.is_complete:
            ended = "kept" if met(outcome) else "missed"
            self._slack.labels(kind).observe(promise.slack_s())
            for ratio in promise.length_ratios():
                self._length_ratio.labels(kind).observe(ratio)
        self._ended.labels(kind, user, ended).inc()
        self._goodput.labels(kind, user).inc(tokens(outcome))

    def _label(self, user: str) -> str:
        if user not in self._users:
            if len(self._users) >= NUM_USERS:
                return OTHER_USERS
            self._users.add(user)
        return user
