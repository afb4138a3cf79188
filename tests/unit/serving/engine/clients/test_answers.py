"""Caller: what vLLM puts out becomes chunks, a completion or a named error."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.clients.answers import LEAST_S, Caller, finish_reason, refusal, tags_left
from serving.errors import (
    InvalidRequest,
    InvalidSlo,
    RequestDropped,
    RequestFailed,
    dropped_stop_reason,
    rejected_stop_reason,
)
from serving.generation import Chunk, GenerationRequest
from serving.slo import DEFAULT_TTFT_S, Slo, SloKind, from_tags, to_tags
from tests.strategies import law


@dataclass
class Part:
    """vLLM's CompletionOutput in delta form."""

    text: str
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class Output:
    """vLLM's RequestOutput."""

    outputs: list[Part]
    finished: bool = False
    prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None


def caller(loop: asyncio.AbstractEventLoop) -> Caller:
    request = GenerationRequest(request_id="r", prompt="p")
    return Caller(request, loop, submitted_s=time.monotonic())


@pytest.fixture
def loop() -> asyncio.AbstractEventLoop:
    """A loop that is never run: what it is handed stays with it."""
    return NeverRun()


class NeverRun(asyncio.AbstractEventLoop):
    """An event loop that only keeps what it is handed."""

    def __init__(self) -> None:
        self.handed: list[object] = []

    def call_soon_threadsafe(self, callback, *args, context=None):  # type: ignore[no-untyped-def]
        self.handed.append(args)


@law
@given(
    st.lists(st.tuples(st.text(), st.lists(st.integers(0, 9), max_size=3)), min_size=1),
    st.sampled_from(["stop", "length", "repetition"]),
)
def test_the_chunks_join_to_the_completion(parts: list[tuple[str, list[int]]], reason: str) -> None:
    one = caller(NeverRun())
    outputs = [Output([Part(text, tokens)]) for text, tokens in parts]
    outputs[-1].finished = True
    outputs[-1].outputs[0].finish_reason = reason
    outputs[-1].prompt_token_ids = [1, 2, 3]
    outputs[-1].num_cached_tokens = 2
    chunks = [one.take(output) for output in outputs]  # type: ignore[arg-type]
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    *growing, last = chunks
    assert all(chunk.completion is None for chunk in growing)
    completion = last.completion
    assert completion.text == "".join(chunk.text for chunk in chunks)
    assert completion.usage.output_tokens == sum(len(tokens) for _, tokens in parts)
    assert (completion.usage.prompt_tokens, completion.usage.cached_tokens) == (3, 2)
    assert 0 <= completion.ttft_s <= completion.e2el_s


def last(loop: asyncio.AbstractEventLoop, part: Part) -> object:
    return caller(loop).take(Output([part], finished=True))  # type: ignore[arg-type]


def test_a_dropped_request_is_request_dropped(loop: asyncio.AbstractEventLoop) -> None:
    stop_reason = dropped_stop_reason("unscheduled for 5.00 s")
    answer = last(loop, Part("", finish_reason="abort", stop_reason=stop_reason))
    assert isinstance(answer, RequestDropped)
    assert answer.args == ("r", "unscheduled for 5.00 s")


def test_a_malformed_tag_is_invalid_slo(loop: asyncio.AbstractEventLoop) -> None:
    stop_reason = rejected_stop_reason(InvalidSlo("slo_weight", -1, "must be above 0"))
    answer = last(loop, Part("", finish_reason="abort", stop_reason=stop_reason))
    assert isinstance(answer, InvalidSlo)
    assert "slo_weight=-1: must be above 0" in str(answer)


@pytest.mark.parametrize("stop_reason", [None, 17, "</s>"])
@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_any_other_end_without_an_answer_is_request_failed(
    reason: str | None, stop_reason: int | str | None, loop: asyncio.AbstractEventLoop
) -> None:
    answer = last(loop, Part("half an answ", finish_reason=reason, stop_reason=stop_reason))
    assert isinstance(answer, RequestFailed)


def test_only_an_end_with_an_answer_has_a_finish_reason() -> None:
    assert finish_reason("stop") == finish_reason("repetition") == "stop"
    assert finish_reason("length") == "length"
    assert finish_reason("abort") is finish_reason("error") is finish_reason(None) is None


def test_an_answer_wakes_its_callers_own_loop(loop: asyncio.AbstractEventLoop) -> None:
    chunk = Chunk("x")
    caller(loop).answer(chunk)
    assert isinstance(loop, NeverRun)
    assert loop.handed == [(chunk,)]


def test_a_caller_whose_loop_is_closed_is_nobody_to_tell() -> None:
    """The engine's thread must survive a caller who left."""
    closed = asyncio.new_event_loop()
    one = caller(closed)
    closed.close()
    one.answer(Chunk("x"))


def test_an_answers_times_count_from_the_submission(loop: asyncio.AbstractEventLoop) -> None:
    request = GenerationRequest(request_id="r", prompt="p")
    one = Caller(request, loop, submitted_s=time.monotonic() - 5.0)
    chunk = one.take(Output([Part("x", [1], "stop")], finished=True))  # type: ignore[arg-type]
    assert isinstance(chunk, Chunk)
    assert chunk.completion is not None
    assert 5.0 <= chunk.completion.ttft_s <= chunk.completion.e2el_s < 60.0


seconds = st.floats(1e-6, 1e6)


@law
@given(own_s=seconds, more_s=st.floats(0.0, 1e6), passed_s=st.floats(0.0, 1e6))
def test_a_promise_shrinks_by_what_has_passed_and_stays_one(
    own_s: float, more_s: float, passed_s: float
) -> None:
    """Sound as the scheduler reads it: above 0, and a stage's never later than its run's."""
    made = Slo(kind=SloKind.COMPOUND, deadline_s=own_s, final_s=own_s + more_s, stage=2)
    left = from_tags(tags_left(made, passed_s))
    assert left.deadline_s is not None
    assert left.final_s is not None
    assert left.deadline_s <= max(own_s - passed_s, LEAST_S)
    assert left.deadline_s >= min(own_s - passed_s, own_s)
    assert left.final_s <= max(own_s + more_s - passed_s, LEAST_S)
    assert (left.stage, left.kind) == (2, SloKind.COMPOUND)


def test_the_first_token_is_promised_as_much_earlier() -> None:
    """The seconds between tokens, and without a slot, begin anew each time."""
    left = from_tags(tags_left(Slo(kind=SloKind.LATENCY, tbt_s=0.1, waiting_s=3.0), 1.5))
    assert (left.ttft_s, left.tbt_s, left.waiting_s) == (DEFAULT_TTFT_S - 1.5, 0.1, 3.0)
    assert from_tags(tags_left(Slo(kind=SloKind.LATENCY), 1e9)).ttft_s == LEAST_S


@pytest.mark.parametrize("slo", [Slo(), Slo(waiting_s=3.0, weight=2.0)])
def test_where_nothing_is_promised_nothing_shrinks(slo: Slo) -> None:
    assert tags_left(slo, 100.0) == to_tags(slo)


def test_a_malformed_promise_is_left_to_be_refused() -> None:
    for value in (-1.0, 0.0, True, "soon", float("nan")):
        slo = Slo(kind=SloKind.DEADLINE, deadline_s=1.0)
        object.__setattr__(slo, "deadline_s", value)
        with pytest.raises(InvalidSlo, match="slo_deadline_s"):
            from_tags(tags_left(slo, 0.5))


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
def test_whatever_vllm_raises_for_a_request_is_named(error: Exception, kind: type) -> None:
    named = refusal("mine", error)
    assert type(named) is kind
    assert named.args[0] == "mine"
    assert named.args[1]
