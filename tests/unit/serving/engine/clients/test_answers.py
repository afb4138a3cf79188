"""PendingCall: vLLM's outputs become chunks, a completion or a named error."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.clients.answers import (
    MIN_TAG_S,
    PendingCall,
    finish_reason,
    named_error,
    remaining_tags,
)
from serving.errors import (
    InvalidRequest,
    InvalidSlo,
    RequestDropped,
    RequestFailed,
    dropped_stop_reason,
    rejected_stop_reason,
)
from serving.generation import Chunk, Completion, GenerationRequest, Token
from serving.slo import DEFAULT_TTFT_S, Slo, SloKind, from_tags, to_tags
from tests.strategies import law


@dataclass
class Logprob:
    """Stands for vLLM's."""

    logprob: float
    decoded_token: str | None


@dataclass
class Part:
    """Stands for vLLM's CompletionOutput, in delta form."""

    text: str
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, Logprob]] | None = None


@dataclass
class Output:
    """Stands for vLLM's RequestOutput."""

    outputs: list[Part]
    finished: bool = False
    prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None


def pending_call(loop: asyncio.AbstractEventLoop, logprobs: int | None = None) -> PendingCall:
    request = GenerationRequest(request_id="r", prompt="p", logprobs=logprobs)
    return PendingCall(request, loop, submitted_s=time.monotonic())


@pytest.fixture
def loop() -> asyncio.AbstractEventLoop:
    """An event loop that never runs."""
    return StoppedLoop()


class StoppedLoop(asyncio.AbstractEventLoop):
    """An event loop that only keeps the arguments of scheduled callbacks."""

    def __init__(self) -> None:
        self.scheduled: list[object] = []

    def call_soon_threadsafe(self, callback, *args, context=None):  # type: ignore[no-untyped-def]
        self.scheduled.append(args)


@law
@given(
    st.lists(st.tuples(st.text(), st.lists(st.integers(0, 9), max_size=3)), min_size=1),
    st.sampled_from(["stop", "length", "repetition"]),
)
def test_the_chunks_join_to_the_completion(parts: list[tuple[str, list[int]]], reason: str) -> None:
    call = pending_call(StoppedLoop())
    outputs = [Output([Part(text, tokens)]) for text, tokens in parts]
    outputs[-1].finished = True
    outputs[-1].outputs[0].finish_reason = reason
    outputs[-1].prompt_token_ids = [1, 2, 3]
    outputs[-1].num_cached_tokens = 2
    chunks = [call.take(output) for output in outputs]  # type: ignore[arg-type]
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    *growing, last = chunks
    assert all(chunk.completion is None for chunk in growing)
    completion = last.completion
    assert completion.text == "".join(chunk.text for chunk in chunks)
    assert completion.usage.output_tokens == sum(len(tokens) for _, tokens in parts)
    assert (completion.usage.prompt_tokens, completion.usage.cached_tokens) == (3, 2)
    assert 0 <= completion.ttft_s <= completion.e2el_s


def last(loop: asyncio.AbstractEventLoop, part: Part) -> object:
    return pending_call(loop).take(Output([part], finished=True))  # type: ignore[arg-type]


def test_a_dropped_request_gets_request_dropped(loop: asyncio.AbstractEventLoop) -> None:
    stop_reason = dropped_stop_reason("unscheduled for 5.00 s")
    answer = last(loop, Part("", finish_reason="abort", stop_reason=stop_reason))
    assert isinstance(answer, RequestDropped)
    assert answer.args == ("r", "unscheduled for 5.00 s")


def test_a_request_with_a_malformed_tag_gets_invalid_slo(loop: asyncio.AbstractEventLoop) -> None:
    stop_reason = rejected_stop_reason(InvalidSlo("slo_weight", -1, "must be above 0"))
    answer = last(loop, Part("", finish_reason="abort", stop_reason=stop_reason))
    assert isinstance(answer, InvalidSlo)
    assert "slo_weight=-1: must be above 0" in str(answer)


@pytest.mark.parametrize("stop_reason", [None, 17, "</s>"])
@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_any_other_end_without_an_answer_gets_request_failed(
    reason: str | None, stop_reason: int | str | None, loop: asyncio.AbstractEventLoop
) -> None:
    answer = last(loop, Part("half an answ", finish_reason=reason, stop_reason=stop_reason))
    assert isinstance(answer, RequestFailed)


def test_only_an_end_with_an_answer_has_a_finish_reason() -> None:
    assert finish_reason("stop") == finish_reason("repetition") == "stop"
    assert finish_reason("length") == "length"
    assert finish_reason("abort") is finish_reason("error") is finish_reason(None) is None


def test_an_answer_is_scheduled_on_its_caller_s_loop(loop: asyncio.AbstractEventLoop) -> None:
    chunk = Chunk("x")
    pending_call(loop).deliver(chunk)
    assert isinstance(loop, StoppedLoop)
    assert loop.scheduled == [(chunk,)]


def test_an_answer_for_a_closed_loop_is_ignored() -> None:
    """The engine's thread must survive it."""
    closed = asyncio.new_event_loop()
    call = pending_call(closed)
    closed.close()
    call.deliver(Chunk("x"))


def test_ttft_and_latency_count_from_the_submission(loop: asyncio.AbstractEventLoop) -> None:
    request = GenerationRequest(request_id="r", prompt="p")
    call = PendingCall(request, loop, submitted_s=time.monotonic() - 5.0)
    chunk = call.take(Output([Part("x", [1], "stop")], finished=True))  # type: ignore[arg-type]
    assert isinstance(chunk, Chunk)
    assert chunk.completion is not None
    assert 5.0 <= chunk.completion.ttft_s <= chunk.completion.e2el_s < 60.0


seconds = st.floats(1e-6, 1e6)


@law
@given(own_s=seconds, more_s=st.floats(0.0, 1e6), passed_s=st.floats(0.0, 1e6))
def test_remaining_deadlines_are_reduced_by_the_passed_time_and_stay_valid(
    own_s: float, more_s: float, passed_s: float
) -> None:
    """Valid: above 0, and the stage's deadline not later than the run's."""
    slo = Slo(kind=SloKind.COMPOUND, deadline_s=own_s, final_s=own_s + more_s, stage=2)
    left = from_tags(remaining_tags(slo, passed_s))
    assert left.deadline_s is not None
    assert left.final_s is not None
    assert left.deadline_s <= max(own_s - passed_s, MIN_TAG_S)
    assert left.deadline_s >= min(own_s - passed_s, own_s)
    assert left.final_s <= max(own_s + more_s - passed_s, MIN_TAG_S)
    assert (left.stage, left.kind) == (2, SloKind.COMPOUND)


def test_only_the_ttft_of_a_stream_is_reduced() -> None:
    """TBT and the time without a slot do not count from submission."""
    left = from_tags(remaining_tags(Slo(kind=SloKind.LATENCY, tbt_s=0.1, waiting_s=3.0), 1.5))
    assert (left.ttft_s, left.tbt_s, left.waiting_s) == (DEFAULT_TTFT_S - 1.5, 0.1, 3.0)
    assert from_tags(remaining_tags(Slo(kind=SloKind.LATENCY), 1e9)).ttft_s == MIN_TAG_S


@pytest.mark.parametrize("slo", [Slo(), Slo(waiting_s=3.0, weight=2.0)])
def test_tags_of_best_effort_requests_are_unchanged(slo: Slo) -> None:
    assert remaining_tags(slo, 100.0) == to_tags(slo)


def test_malformed_deadlines_are_still_rejected() -> None:
    for value in (-1.0, 0.0, True, "soon", float("nan")):
        slo = Slo(kind=SloKind.DEADLINE, deadline_s=1.0)
        object.__setattr__(slo, "deadline_s", value)
        with pytest.raises(InvalidSlo, match="slo_deadline_s"):
            from_tags(remaining_tags(slo, 0.5))


@pytest.mark.usefixtures("imported_vllm")
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no such thing"), InvalidRequest),
        (OverflowError("int too large"), InvalidRequest),
        (KeyError("lost"), RequestFailed),
        (RuntimeError("out of luck"), RequestFailed),
        (AssertionError(), RequestFailed),
    ],
)
def test_every_error_of_vllm_becomes_a_named_error(error: Exception, kind: type) -> None:
    named = named_error("mine", error)
    assert type(named) is kind
    assert named.args[0] == "mine"
    assert named.args[1]


SO, NO, EURO = Logprob(-0.5, "So"), Logprob(-1.0, "No"), Logprob(-3.0, None)


def scored_outputs() -> list[Output]:
    """vLLM lists the token itself first, then the most probable ones."""
    impossible = Logprob(-math.inf, "Oh")
    return [
        Output([Part("No", [2], logprobs=[{2: NO, 1: SO, 4: impossible}])]),
        Output([Part("", [])]),
        Output(
            [Part("So", [3, 1], "stop", logprobs=[{3: EURO, 1: SO, 2: NO}, {1: SO, 2: NO}])],
            finished=True,
        ),
    ]


def completed(call: PendingCall) -> Completion:
    *_, last = [call.take(output) for output in scored_outputs()]  # type: ignore[arg-type]
    assert isinstance(last, Chunk)
    assert last.completion is not None
    return last.completion


def test_every_token_has_its_log_probability_and_the_most_probable_ones(
    loop: asyncio.AbstractEventLoop,
) -> None:
    assert completed(pending_call(loop, logprobs=2)).tokens == (
        Token("No", -1.0, (("So", -0.5), ("No", -1.0))),
        Token("", -3.0, (("So", -0.5), ("No", -1.0))),
        Token("So", -0.5, (("So", -0.5), ("No", -1.0))),
    )


def test_a_token_that_cannot_occur_is_no_alternative(loop: asyncio.AbstractEventLoop) -> None:
    first = completed(pending_call(loop, logprobs=3)).tokens[0]
    assert first.top == (("So", -0.5), ("No", -1.0))


def test_an_answer_has_no_tokens_unless_log_probabilities_were_asked_for(
    loop: asyncio.AbstractEventLoop,
) -> None:
    assert completed(pending_call(loop)).tokens == ()
    assert [token.top for token in completed(pending_call(loop, logprobs=0)).tokens] == [()] * 3


@pytest.mark.parametrize("listed", [None, [], [{2: NO}], [{1: SO}, {1: SO}]])
def test_a_token_without_a_log_probability_fails_its_request_only(
    loop: asyncio.AbstractEventLoop, listed: list[dict[int, Logprob]] | None
) -> None:
    call = pending_call(loop, logprobs=1)
    answer = call.take(Output([Part("So", [1], logprobs=listed)]))  # type: ignore[arg-type]
    assert isinstance(answer, RequestFailed)
