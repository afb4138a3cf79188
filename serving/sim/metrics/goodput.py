"""What counts as useful service: from what happened to a program to what it earned.

A definition of goodput is a pure function of one program's outcome; GOODPUTS names them. A
program that was not done when the observation ended earns what it had earned by then.

Source: Wu (2025), SLO-aware optimization and stateful orchestration for LLM systems, chapter 3
(definitions) and section 6.1 (metrics); Zhang et al. (2025), Tempo, section 3.1 (service gain).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType

from serving.slo import DEFAULT_TBT_S, DEFAULT_TTFT_S, SloKind

CLOCK_TOLERANCE_S = 1e-9  # what adding up step times in floating point may cost: still on time

# The thesis does not say when a stream as a whole has met its SLO. Tempo (section 3.1) holds that
# a few late tokens do not spoil a response; where the line is drawn is our choice.
STREAM_SHARE_IN_TIME = Fraction(9, 10)

INPUT_WEIGHT = 1.0  # Tempo, section 3.1: input to output 1:2, as commonly priced
OUTPUT_WEIGHT = 2.0
DECAY_EXPONENT = 1.0  # Tempo's alpha; infinity: whatever is late is worth nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """One LLM call as far as it was observed. Times: absolute seconds on the simulator's clock.

    Attributes:
        submitted_s: when its program asked for it.
        output_tokens: its whole length, at least 1, also where fewer were delivered.
        token_times_s: when each output token was delivered, ascending; recomputing after a
            preemption delivers nothing anew. Shorter than output_tokens while it has not ended.
        ended: all its output was delivered.
        dropped: the engine gave it up.
    """

    submitted_s: float
    prompt_tokens: int
    output_tokens: int
    token_times_s: Sequence[float]
    ended: bool
    dropped: bool = False

    def __post_init__(self) -> None:
        times = self.token_times_s
        assert self.prompt_tokens >= 0, "a prompt has no negative length"
        assert self.output_tokens >= 1, "an engine answers with one token at least"
        assert not (self.ended and self.dropped), "a dropped call has no end"
        assert len(times) <= self.output_tokens, "more tokens were delivered than there are"
        assert not self.ended or len(times) == self.output_tokens, "ended, yet tokens are missing"
        assert not times or self.submitted_s <= times[0], "a token came before its call"
        assert all(one <= next_one for one, next_one in pairwise(times)), "times must ascend"

    def seen_until(self, until_s: float) -> CallOutcome:
        """The same call to an observer who left at until_s, that instant included."""
        num_seen = bisect_right(self.token_times_s, until_s)
        if num_seen == len(self.token_times_s):
            return self
        return replace(self, token_times_s=self.token_times_s[:num_seen], ended=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutcome:
    """One user's request: a single call, or the calls of a whole run by stage.

    Attributes:
        arrival_s: absolute; every promise counts from here.
        ttft_s, tbt_s: promised to a latency program; seconds from arrival, seconds per token.
        deadline_s: promised end to end, seconds from arrival. Needed by deadline and compound.
            On best effort it is the default deadline by which a provider counts such work;
            None: it is never counted.
        weight: what one token is worth to the "weighted" definition.
        ended_s: when its last call (or what followed it) ended, absolute; None: it has not.
    """

    program_id: str
    kind: SloKind
    arrival_s: float
    calls: tuple[tuple[CallOutcome, ...], ...]
    ended_s: float | None
    ttft_s: float = DEFAULT_TTFT_S
    tbt_s: float = DEFAULT_TBT_S
    deadline_s: float | None = None
    application: str = ""
    user: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        needs_deadline = self.kind in (SloKind.DEADLINE, SloKind.COMPOUND)
        assert not needs_deadline or self.deadline_s is not None, "this kind needs a deadline"
        assert self.ended_s is None or self.ended_s >= self.arrival_s, "ended before it arrived"
        for call in self.each_call():
            assert call.submitted_s >= self.arrival_s, "a call came before its program"
            end_s = math.inf if self.ended_s is None else self.ended_s
            last_s = call.token_times_s[-1] if call.token_times_s else self.arrival_s
            assert last_s <= end_s + CLOCK_TOLERANCE_S, "a token came after its program's end"

    def each_call(self) -> Iterator[CallOutcome]:
        """All calls, stage by stage."""
        for stage in self.calls:
            yield from stage

    @property
    def dropped(self) -> bool:
        """Whether the engine gave up any of its calls."""
        return any(call.dropped for call in self.each_call())

    @property
    def finished(self) -> bool:
        """Whether it came to its own end, in time or not."""
        return self.ended_s is not None and not self.dropped

    @property
    def promised(self) -> bool:
        """Whether it can earn anything: best effort without a default deadline cannot."""
        return self.kind is not SloKind.BEST_EFFORT or self.deadline_s is not None

    @property
    def e2el_s(self) -> float | None:
        """Seconds from arrival to end; None unless finished."""
        if self.ended_s is None or self.dropped:
            return None
        return self.ended_s - self.arrival_s

    def seen_until(self, until_s: float) -> ProgramOutcome:
        """The same program to an observer who left at until_s, that instant included."""
        if self.ended_s is not None and self.ended_s <= until_s:
            return self
        stages = (
            tuple(call.seen_until(until_s) for call in stage if call.submitted_s <= until_s)
            for stage in self.calls
        )
        return replace(self, calls=tuple(stage for stage in stages if stage), ended_s=None)


Goodput = Callable[[ProgramOutcome], float]


def tokens(program: ProgramOutcome) -> float:
    """Tokens that met their SLO. Source: Wu (2025), chapter 3, design space, items 1 to 3.

    Latency: output token i = 0, 1, ... counts if delivered by start + TTFT + i * TBT, so the
    first token is due by TTFT itself. What counts is what was delivered, so the input does not,
    and what was streamed in time before a drop does. The start is the program's arrival, for a
    call of a later stage its submission.
    Deadline and compound: all input and output tokens of all calls that ended, if the program
    ended by arrival + deadline; else 0.
    Best effort: 0, for it has no SLO to meet (section 6.1), unless its provider gave it a default
    deadline: then as the deadline kind. The thesis uses that device against starvation only.

    On time to the instant counts. Returns a count of tokens.
    """
    if program.kind is SloKind.LATENCY:
        return float(
            sum(_tokens_in_time(program, call, start_s) for call, start_s in _streams(program))
        )
    if not _in_time(program):
        return 0.0
    return float(
        sum(call.prompt_tokens + call.output_tokens for call in program.each_call() if call.ended)
    )


def met(program: ProgramOutcome) -> bool:
    """Whether the program as a whole met its SLO; False while it is undecided.

    Latency: in every call the first token and at least STREAM_SHARE_IN_TIME of the output were on
    the timeline of `tokens`, and the call ended by `stream_end_s`, late tokens included: else it
    would depend on how long one looks whether a stream that pauses before its last token met its
    SLO. All others: it ended by its deadline.
    """
    if program.kind is not SloKind.LATENCY:
        return _in_time(program)
    return program.finished and all(
        _stream_met(program, call, start_s) for call, start_s in _streams(program)
    )


def stream_end_s(*, start_s: float, ttft_s: float, tbt_s: float, output_tokens: int) -> float:
    """By when a stream must have ended to meet its SLO, absolute: a TBT after its last due.

    It follows from the promise and the true length alone, and is the same for every scheduler.
    """
    return start_s + ttft_s + tbt_s * output_tokens


def requests(program: ProgramOutcome) -> float:
    """1 for a program that met its SLO, else 0. Source: Wu (2025), section 6.1, request level."""
    return float(met(program))


def weighted(program: ProgramOutcome) -> float:
    """Tokens that met their SLO, times the program's weight."""
    return program.weight * tokens(program)


def service_gain(
    program: ProgramOutcome,
    *,
    input_weight: float = INPUT_WEIGHT,
    output_weight: float = OUTPUT_WEIGHT,
    exponent: float = DECAY_EXPONENT,
) -> float:
    """Tempo's service gain: lateness divides what a token is worth, instead of voiding it.

    f(promised, taken) = min(1, (promised / taken) ** exponent).
    Deadline and compound (equation 2): (w_i * input + w_o * output) * f(deadline, E2EL) once it
    has ended. Latency (equation 3): w_i * input * f(TTFT) once the first token is there, and
    w_o * f for each delivered token.

    Equation 3 writes f(TBT) for a token, and its prose compares the output's progress with the
    progress that TBT promises. So a token's f here compares when it was promised (TTFT + i * TBT,
    the timeline of `tokens`) with when it came. Measured from the real first token instead, a
    quicker first token would lower the gain. With an infinite exponent and weights (0, 1) the
    gain of a stream is its token goodput, as the paper says of the limit.

    Args:
        input_weight, output_weight: worth of one token on time.
        exponent: Tempo's alpha, above 0; may be infinite.
    Returns:
        weighted tokens. 0 where nothing is promised: best effort without a default deadline.
    Source: Zhang et al. (2025), Tempo, section 3.1.
    """
    if program.kind is SloKind.LATENCY:
        gain = 0.0
        for call, start_s in _streams(program):
            for index, time_s in enumerate(call.token_times_s):
                promised_s = program.ttft_s + index * program.tbt_s
                worth = _decay(promised_s, time_s - start_s, exponent)
                gain += output_weight * worth
                if index == 0:
                    gain += input_weight * call.prompt_tokens * worth
        return gain
    if program.e2el_s is None or program.deadline_s is None:
        return 0.0
    worth = _decay(program.deadline_s, program.e2el_s, exponent)
    return worth * sum(
        input_weight * call.prompt_tokens + output_weight * call.output_tokens
        for call in program.each_call()
        if call.ended
    )


GOODPUTS: Mapping[str, Goodput] = MappingProxyType(
    {
        "tokens": tokens,
        "requests": requests,
        "weighted": weighted,
        "service_gain": service_gain,
    }
)


def _streams(program: ProgramOutcome) -> Iterator[tuple[CallOutcome, float]]:
    """Each call of a latency program, and when its timeline starts."""
    for index, stage in enumerate(program.calls):
        for call in stage:
            yield call, call.submitted_s if index else program.arrival_s


def _tokens_in_time(program: ProgramOutcome, call: CallOutcome, start_s: float) -> int:
    first_due_s = start_s + program.ttft_s + CLOCK_TOLERANCE_S
    return sum(
        time_s <= first_due_s + index * program.tbt_s
        for index, time_s in enumerate(call.token_times_s)
    )


def _stream_met(program: ProgramOutcome, call: CallOutcome, start_s: float) -> bool:
    if not call.ended:
        return False
    first_in_time = call.token_times_s[0] <= start_s + program.ttft_s + CLOCK_TOLERANCE_S
    enough = _tokens_in_time(program, call, start_s) >= STREAM_SHARE_IN_TIME * call.output_tokens
    end_s = stream_end_s(
        start_s=start_s,
        ttft_s=program.ttft_s,
        tbt_s=program.tbt_s,
        output_tokens=call.output_tokens,
    )
    return first_in_time and enough and call.token_times_s[-1] <= end_s + CLOCK_TOLERANCE_S


def _in_time(program: ProgramOutcome) -> bool:
    if program.e2el_s is None or program.deadline_s is None:
        return False
    return program.e2el_s <= program.deadline_s + CLOCK_TOLERANCE_S


def _decay(promised_s: float, taken_s: float, exponent: float) -> float:
    if taken_s <= promised_s + CLOCK_TOLERANCE_S:
        return 1.0
    return float((promised_s / taken_s) ** exponent)
