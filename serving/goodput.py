"""Definitions of goodput: the outcome of a program -> what it earns.

Each definition is a pure function of one program's outcome; GOODPUTS lists them by name. A program
that had not ended when the observation ended earns what it had earned by then.

Source: Wu (2025), SLO-aware optimization and stateful orchestration for LLM systems, chapter 3
(definitions) and section 6.1 (metrics); Zhang et al. (2025), Tempo, section 3.1 (service gain).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import NamedTuple

from serving.slo import DEFAULT_TBT_S, DEFAULT_TTFT_S, SloKind

CLOCK_TOLERANCE_S = 1e-9  # rounding error of summed step times: still on time

# The thesis does not say when a stream as a whole has met its SLO. By Tempo (section 3.1) a few
# late tokens do not spoil a response; the threshold of 9 in 10 is our choice.
STREAM_SHARE_IN_TIME = Fraction(9, 10)

INPUT_WEIGHT = 1.0  # Tempo, section 3.1: input to output 1:2, as commonly priced
OUTPUT_WEIGHT = 2.0
DECAY_EXPONENT = 1.0  # Tempo's alpha; infinity: late service has no value


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """One LLM call as far as it was observed. Times: absolute seconds on the simulator's clock.

    Attributes:
        submitted_s: when its program submitted it.
        output_tokens: its full length, at least 1, even if fewer tokens were delivered.
        token_times_s: when each output token was delivered, ascending; a recomputation after a
            preemption delivers no token again. Shorter than output_tokens until the call ends.
        ended: all its output was delivered.
        dropped: the engine dropped it.
        then_from: number of the first output token that is paced by `ProgramOutcome.then_tbt_s`;
            None: none is.
    """

    submitted_s: float
    prompt_tokens: int
    output_tokens: int
    token_times_s: Sequence[float]
    ended: bool
    dropped: bool = False
    then_from: int | None = None

    def __post_init__(self) -> None:
        times = self.token_times_s
        assert self.prompt_tokens >= 0, "a prompt length is not negative"
        assert self.output_tokens >= 1, "an answer has at least one token"
        assert not (self.ended and self.dropped), "a dropped call does not end"
        assert len(times) <= self.output_tokens, "more tokens were delivered than there are"
        assert not self.ended or len(times) == self.output_tokens, "ended, yet tokens are missing"
        assert not times or self.submitted_s <= times[0], "a token before its call's submission"
        assert all(time <= later for time, later in pairwise(times)), "times must ascend"

    def seen_until(self, until_s: float) -> CallOutcome:
        """The same call, observed only up to until_s, inclusive."""
        num_seen = bisect_right(self.token_times_s, until_s)
        if num_seen == len(self.token_times_s):
            return self
        return replace(self, token_times_s=self.token_times_s[:num_seen], ended=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutcome:
    """The outcome of one program: a single call, or the calls of a whole run by stage.

    Attributes:
        arrival_s: absolute; the SLO counts from here.
        ttft_s, tbt_s: SLO of a latency program; seconds from arrival, seconds per token.
        deadline_s: end to end, seconds from arrival. Required for deadline and compound programs.
            For best effort it is an optional default deadline by which a provider counts such
            work; None: it never counts.
        weight: value of one token in the "weighted" definition.
        ended_s: when its last call (or the tool after it) ended, absolute; None: it has not.
        then_tbt_s: TBT of the second part of an answer, which is a stream (`Slo.then_tbt_s`).
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
    then_tbt_s: float | None = None

    def __post_init__(self) -> None:
        needs_deadline = self.kind in (SloKind.DEADLINE, SloKind.COMPOUND)
        assert not needs_deadline or self.deadline_s is not None, "this kind needs a deadline"
        assert self.ended_s is None or self.ended_s >= self.arrival_s, "ended before it arrived"
        for call in self.each_call():
            assert call.submitted_s >= self.arrival_s, "a call before its program's arrival"
            end_s = math.inf if self.ended_s is None else self.ended_s
            last_s = call.token_times_s[-1] if call.token_times_s else self.arrival_s
            assert last_s <= end_s + CLOCK_TOLERANCE_S, "a token after its program's end"

    def each_call(self) -> Iterator[CallOutcome]:
        """All calls, stage by stage."""
        for stage in self.calls:
            yield from stage

    @property
    def dropped(self) -> bool:
        """Whether the engine dropped any of its calls."""
        return any(call.dropped for call in self.each_call())

    @property
    def finished(self) -> bool:
        """Whether all its calls completed, in time or not."""
        return self.ended_s is not None and not self.dropped

    @property
    def has_slo(self) -> bool:
        """Whether it can earn goodput: best effort without a default deadline cannot."""
        return self.kind is not SloKind.BEST_EFFORT or self.deadline_s is not None

    @property
    def e2el_s(self) -> float | None:
        """Seconds from arrival to end; None unless finished."""
        if self.ended_s is None or self.dropped:
            return None
        return self.ended_s - self.arrival_s

    def seen_until(self, until_s: float) -> ProgramOutcome:
        """The same program, observed only up to until_s, inclusive."""
        if self.ended_s is not None and self.ended_s <= until_s:
            return self
        stages = (
            tuple(call.seen_until(until_s) for call in stage if call.submitted_s <= until_s)
            for stage in self.calls
        )
        return replace(self, calls=tuple(stage for stage in stages if stage), ended_s=None)


Goodput = Callable[[ProgramOutcome], float]


def tokens(program: ProgramOutcome) -> float:
    """Number of tokens that met their SLO.

    Latency: output token i = 0, 1, ... counts if delivered by start + TTFT + i * TBT; the first
    token is due by TTFT itself. Input tokens do not count. Tokens that were delivered in time count
    even if the call is dropped later. The start is the program's arrival; for a call of a later
    stage its submission.
    Deadline and compound: all input and output tokens of all calls that ended, if the program
    ended by arrival + deadline; else 0.
    Best effort: 0 without a default deadline, since it has no SLO (section 6.1); with one as the
    deadline kind. The thesis uses default deadlines only against starvation.
    An answer in two parts (`then_tbt_s`): the tokens of its second part count as those of a stream,
    with a TBT of then_tbt_s. The first of them is due by the program's deadline; if it is in time,
    the tokens before it count too. In a latency program it is due where the first stream had it
    due.

    A time limit is inclusive.
    Source: Wu (2025), chapter 3, design space, items 1 to 3; answers in two parts are ours.
    """
    streamed = float(sum(stream.num_in_time for stream in _streams(program)))
    return streamed + sum(_whole_tokens(program)) if _in_time(program) else streamed


def met(program: ProgramOutcome) -> bool:
    """Whether the program as a whole met its SLO; False while it is undecided.

    Latency: in every call the first token and at least STREAM_SHARE_IN_TIME of the output tokens
    were on time, as in `tokens`, and the call ended, late tokens included, by `stream_end_s`.
    Without that last limit a stream that pauses before its last token would meet its SLO or not
    depending on how long it is observed. All others: the program ended by its deadline; with an
    answer in two parts, its second part is such a stream.
    """
    by_call = groupby(_streams(program), key=lambda stream: id(stream.call))
    streams_met = program.finished and all(_streams_met(list(each)) for _, each in by_call)
    return streams_met and (program.kind is SloKind.LATENCY or _in_time(program))


def stream_end_s(*, start_s: float, ttft_s: float, tbt_s: float, output_tokens: int) -> float:
    """The time by which a stream must end to meet its SLO, absolute: its last due time + TBT.

    It depends on the SLO and the true length only, so it is the same for every scheduler.
    """
    return start_s + ttft_s + tbt_s * output_tokens


def end_due_s(program: ProgramOutcome) -> float:
    """The time by which it must end to meet its SLO, absolute; without an SLO its arrival."""
    whole_due_s = program.arrival_s + (program.deadline_s or 0.0)
    return max((stream.end_s for stream in _streams(program)), default=whole_due_s)


def requests(program: ProgramOutcome) -> float:
    """1 if the program met its SLO, else 0. Source: Wu (2025), section 6.1, request level."""
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
    """Tempo's service gain: lateness lowers the value of a token, instead of voiding it.

    f(limit, actual) = min(1, (limit / actual) ** exponent).
    Deadline and compound (equation 2): (w_i * input + w_o * output) * f(deadline, E2EL) once it
    has ended. Latency (equation 3): w_i * input * f(TTFT) once the first token is delivered, and
    w_o * f for each delivered token.

    Equation 3 writes f(TBT) for a token; the paper's prose compares the output's progress with the
    progress that TBT allows. So f here compares a token's due time (TTFT + i * TBT, as in `tokens`)
    with its delivery. If due times counted from the actual first token, a faster first token would
    lower the gain. With an infinite exponent and weights (0, 1) the gain of a stream is its token
    goodput, as the paper says of the limit.

    Args:
        input_weight, output_weight: value of one token on time.
        exponent: Tempo's alpha, above 0; may be infinite.
    Returns:
        weighted tokens; 0 without an SLO: best effort without a default deadline.
    Source: Zhang et al. (2025), Tempo, section 3.1.
    """
    gain = 0.0
    for stream in _streams(program):
        for index, time_s in enumerate(stream.times_s):
            due_s = stream.due_s + index * stream.tbt_s - stream.start_s
            value = _decay(due_s, time_s - stream.start_s, exponent)
            gain += output_weight * value
            if index == 0 and stream.first == 0 and program.kind is SloKind.LATENCY:
                gain += input_weight * stream.call.prompt_tokens * value
    whole_s = _whole_s(program)
    if program.kind is SloKind.LATENCY or whole_s is None or program.deadline_s is None:
        return gain
    inputs, outputs = _whole_tokens(program)
    value = _decay(program.deadline_s, whole_s, exponent)
    return gain + value * (input_weight * inputs + output_weight * outputs)


GOODPUTS: Mapping[str, Goodput] = MappingProxyType(
    {
        "tokens": tokens,
        "requests": requests,
        "weighted": weighted,
        "service_gain": service_gain,
    }
)


class _Stream(NamedTuple):
    """The tokens of a call from one on, each due one TBT after the one before.

    Attributes:
        first, last: numbers of its first token, and of the one after its last; last is above first.
        start_s: from when its SLO counts, absolute.
        due_s: when its first token is due, absolute.
    """

    call: CallOutcome
    first: int
    last: int
    start_s: float
    due_s: float
    tbt_s: float

    @property
    def times_s(self) -> Sequence[float]:
        """When its tokens were delivered."""
        return self.call.token_times_s[self.first : self.last]

    @property
    def num_in_time(self) -> int:
        """How many of its tokens were delivered in time."""
        first_due_s = self.due_s + CLOCK_TOLERANCE_S
        return sum(time_s <= first_due_s + i * self.tbt_s for i, time_s in enumerate(self.times_s))

    @property
    def end_s(self) -> float:
        """When the token after its last would be due."""
        return self.due_s + (self.last - self.first) * self.tbt_s


def _streams(program: ProgramOutcome) -> Iterator[_Stream]:
    """The parts of answers that are paced token by token, call by call."""
    for index, stage in enumerate(program.calls):
        for call in stage:
            if program.kind is not SloKind.LATENCY:
                if call.then_from is not None:
                    due_s = program.arrival_s + (program.deadline_s or 0.0)
                    yield from _second_part(program, call, program.arrival_s, due_s)
                continue
            start_s = call.submitted_s if index else program.arrival_s
            due_s = start_s + program.ttft_s
            last = call.output_tokens if call.then_from is None else call.then_from
            if last:
                yield _Stream(call, 0, last, start_s, due_s, program.tbt_s)
            yield from _second_part(program, call, start_s, due_s + last * program.tbt_s)


def _second_part(
    program: ProgramOutcome, call: CallOutcome, start_s: float, due_s: float
) -> Iterator[_Stream]:
    """The stream in the second part of an answer, if there is one."""
    if call.then_from is not None and call.then_from < call.output_tokens:
        assert program.then_tbt_s is not None, "the second part has a TBT"
        yield _Stream(call, call.then_from, call.output_tokens, start_s, due_s, program.then_tbt_s)


def _streams_met(streams: Sequence[_Stream]) -> bool:
    """Whether the streams of one call, in their order, met their SLO together."""
    first, last = streams[0], streams[-1]
    first_in_time = first.times_s[0] <= first.due_s + CLOCK_TOLERANCE_S
    in_time = sum(stream.num_in_time for stream in streams)
    enough = in_time >= STREAM_SHARE_IN_TIME * (last.last - first.first)
    return first_in_time and enough and last.times_s[-1] <= last.end_s + CLOCK_TOLERANCE_S


def _whole_tokens(program: ProgramOutcome) -> tuple[int, int]:
    """Input and output tokens that count together, by the program's deadline: none of a stream."""
    if program.kind is SloKind.LATENCY:
        return 0, 0
    inputs = outputs = 0
    for call in program.each_call():
        if call.ended or call.then_from is not None:
            inputs += call.prompt_tokens
            outputs += call.output_tokens if call.then_from is None else call.then_from
    return inputs, outputs


def _whole_s(program: ProgramOutcome) -> float | None:
    """Seconds until what counts together was complete; None: it is not.

    It is complete when the program has ended, or when the second part of its answers begins.
    """
    streams = list(_streams(program))
    if not streams:
        return program.e2el_s
    if not all(stream.times_s for stream in streams):
        return None
    return max(stream.times_s[0] for stream in streams) - program.arrival_s


def _in_time(program: ProgramOutcome) -> bool:
    """Whether what counts together was complete by the deadline."""
    if program.deadline_s is None:
        return False
    whole_s = _whole_s(program)
    return whole_s is not None and whole_s <= program.deadline_s + CLOCK_TOLERANCE_S


def _decay(limit_s: float, actual_s: float, exponent: float) -> float:
    if actual_s <= limit_s + CLOCK_TOLERANCE_S:
        return 1.0
    return float((limit_s / actual_s) ** exponent)
