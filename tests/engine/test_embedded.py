"""EmbeddedEngine with the demo model: answers, errors, cancellation, concurrency."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest

from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.engine.setup.config import EngineConfig
from serving.errors import (
    EngineBusy,
    EngineClosed,
    InvalidRequest,
    PromptTooLong,
    RequestDropped,
    RequestFailed,
    ServingError,
)
from serving.generation import Chunk, Completion, GenerationRequest, Message
from serving.slo import OnLate, Slo, SloKind

STORY = "The engine read the plan and"


def call(request_id: str = "r", **changes: Any) -> GenerationRequest:
    settings = {"prompt": STORY, "max_tokens": 16, "temperature": 0.0} | changes
    return GenerationRequest(request_id=request_id, **settings)


def token_count(text: str) -> Any:
    return lambda llm: len(llm.get_tokenizer().encode(text, add_special_tokens=False))


def state(llm: Any) -> tuple[int, int, int]:
    """The current step, the number of requests in the scheduler, and of free KV blocks."""
    scheduler: Any = scheduler_of(llm)
    free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return scheduler.current_step, len(scheduler.requests), free_blocks


async def test_the_engine_s_info_describes_it(engine: EmbeddedEngine) -> None:
    await engine.start()
    info = engine.info
    assert (info.name, info.model, info.random_weights) == ("embedded", "random", True)
    assert (info.scheduler, info.policy) == ("SloScheduler", "fcfs")
    assert info.max_model_tokens == 2048


async def test_a_seeded_answer_does_not_depend_on_how_the_prompt_is_chunked(
    engine: EmbeddedEngine,
) -> None:
    """The second time the prompt is cached, and computed in one step; other requests run too."""

    def limit(llm: Any, tokens: int) -> int:
        scheduler: Any = scheduler_of(llm)
        before: int = scheduler._engine_step_tokens
        scheduler._engine_step_tokens, scheduler.planner.plan_due = tokens, True
        return before

    prompt = "A prompt with a seed. " * 40
    seeded = {"prompt": prompt, "seed": 7, "temperature": 1.0}
    step_tokens = await engine.call(lambda llm: limit(llm, 64))
    try:
        chunked, other = await asyncio.gather(
            engine.generate(call("chunked", **seeded)), engine.generate(call("other", seed=3))
        )
        whole = await engine.generate(call("whole", **seeded))
        another = await engine.generate(call("another", **seeded | {"seed": 8}))
    finally:
        await engine.call(lambda llm: limit(llm, step_tokens))
    assert chunked.usage.prompt_tokens > 3 * 64
    assert whole.usage.cached_tokens > chunked.usage.prompt_tokens - 64
    assert chunked.text == whole.text != another.text
    assert other.finish_reason == "length"


async def test_a_completion_counts_its_input_and_output_tokens(engine: EmbeddedEngine) -> None:
    completion = await engine.generate(call("mine"))
    assert completion.request_id == "mine"
    assert completion.finish_reason == "length"
    assert completion.usage.prompt_tokens == await engine.call(token_count(STORY))
    assert completion.usage.output_tokens == 16
    assert 0 < completion.ttft_s <= completion.e2el_s


async def test_a_repeated_prompt_is_found_in_the_cache(engine: EmbeddedEngine) -> None:
    long = STORY * 60
    first = await engine.generate(call(prompt=long, max_tokens=2))
    second = await engine.generate(call(prompt=long, max_tokens=2))
    assert first.usage.cached_tokens == 0
    assert 0 < second.usage.cached_tokens < second.usage.prompt_tokens
    assert second.text == first.text


async def test_the_chunks_join_to_the_completion_s_text(engine: EmbeddedEngine) -> None:
    chunks = [chunk async for chunk in engine.stream(call(max_tokens=40))]
    *growing, last = chunks
    assert last.completion is not None
    assert all(chunk.completion is None for chunk in growing)
    assert "".join(chunk.text for chunk in chunks) == last.completion.text
    assert len(growing) > 10
    assert last.completion.text == (await engine.generate(call(max_tokens=40))).text


async def test_the_same_seed_gives_the_same_text(engine: EmbeddedEngine) -> None:
    texts = [(await engine.generate(call(temperature=1.0, seed=seed))).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


async def test_a_stop_string_ends_the_answer_before_it(engine: EmbeddedEngine) -> None:
    whole = (await engine.generate(call(max_tokens=30))).text
    stop = whole[len(whole) // 2 :][:4]
    cut = await engine.generate(call(max_tokens=30, stop=(stop,)))
    assert cut.finish_reason == "stop"
    assert cut.text == whole[: whole.index(stop)]


async def test_a_chat_is_formatted_by_the_model_s_template(engine: EmbeddedEngine) -> None:
    turns = (Message("system", "Be brief."), Message("user", "Why?"))
    completion = await engine.generate(call(prompt=turns))
    text = "<|system|>\nBe brief.<|end|>\n<|user|>\nWhy?<|end|>\n<|assistant|>\n"
    assert completion.usage.prompt_tokens == await engine.call(token_count(text))
    assert completion.text == (await engine.generate(call(prompt=text))).text


SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 20},
        "kind": {"enum": ["map", "reduce"]},
        "scores": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "done": {"type": "boolean"},
    },
    "required": ["title", "kind", "scores", "done"],
    "additionalProperties": False,
}


async def test_forty_answers_satisfy_their_schema(engine: EmbeddedEngine) -> None:
    completions = await asyncio.gather(
        *(
            engine.generate(
                call(str(seed), schema=SCHEMA, max_tokens=300, temperature=1.0, seed=seed)
            )
            for seed in range(40)
        )
    )
    kinds = set()
    for completion in completions:
        document = completion.parsed()
        assert set(document) == {"title", "kind", "scores", "done"}
        assert isinstance(document["title"], str)
        assert len(document["title"]) <= 20
        assert all(isinstance(score, int) for score in document["scores"])
        assert len(document["scores"]) <= 3
        assert isinstance(document["done"], bool)
        kinds.add(document["kind"])
    assert kinds == {"map", "reduce"}


class BlockingJob:
    """A job that blocks the engine's thread between two steps until it is released."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._released = threading.Event()

    def __call__(self, llm: Any) -> int:
        self._started.set()
        assert self._released.wait(60)
        return state(llm)[0]

    async def started(self) -> None:
        assert await asyncio.to_thread(self._started.wait, 60)

    def release(self) -> None:
        self._released.set()


async def test_a_cancelled_call_frees_its_blocks_before_the_next_step(
    engine: EmbeddedEngine,
) -> None:
    *_, free_blocks = await engine.call(state)
    has_text = asyncio.Event()

    async def listen() -> None:
        async for _ in engine.stream(call(max_tokens=1500)):
            has_text.set()

    task = asyncio.create_task(listen())
    await has_text.wait()
    job = BlockingJob()
    blocking = asyncio.create_task(engine.call(job))
    await job.started()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    job.release()
    step = await blocking
    assert await engine.call(state) == (step, 0, free_blocks)


async def test_closing_a_stream_early_aborts_its_request(engine: EmbeddedEngine) -> None:
    stream = engine.stream(call(max_tokens=1500))
    assert isinstance(stream, AsyncGenerator)
    async with aclosing(stream) as chunks:
        assert isinstance(await anext(chunks), Chunk)
    _, requests, _ = await engine.call(state)
    assert requests == 0


async def test_cancelling_a_call_during_its_submission_leaves_nothing_behind(
    engine: EmbeddedEngine,
) -> None:
    for pause in range(5):
        task = asyncio.create_task(engine.generate(call(max_tokens=500)))
        for _ in range(pause):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await engine.generate(call(max_tokens=4))).usage.output_tokens == 4


async def test_twenty_calls_in_two_threads_get_their_own_answers(
    engine: EmbeddedEngine,
) -> None:
    """There are two event loops, and both use the same request ids."""

    async def ten_calls(thread: int) -> list[Completion]:
        return await asyncio.gather(
            *(
                engine.generate(call(str(index), prompt=f"{STORY} {thread} {index}"))
                for index in range(10)
            )
        )

    expected = [await ten_calls(0), await ten_calls(1)]
    with ThreadPoolExecutor(2) as threads:
        loop = asyncio.get_running_loop()
        concurrent = await asyncio.gather(
            *(loop.run_in_executor(threads, asyncio.run, ten_calls(thread)) for thread in range(2))
        )
    for answers, alone in zip(concurrent, expected, strict=True):
        assert [each.request_id for each in answers] == [str(index) for index in range(10)]
        assert [each.text for each in answers] == [each.text for each in alone]
    assert expected[0][3].text != expected[1][3].text


async def test_a_prompt_that_can_never_fit_raises_prompt_too_long(engine: EmbeddedEngine) -> None:
    with pytest.raises(PromptTooLong) as caught:
        await engine.generate(call("big", prompt="plan " * 3000))
    request_id, prompt_tokens, limit = caught.value.args
    assert (request_id, limit) == ("big", 2047)
    assert prompt_tokens > limit


async def test_an_answer_ends_at_the_latest_at_the_end_of_the_context(
    engine: EmbeddedEngine,
) -> None:
    long = "plan " * 1000
    available_tokens = 2048 - await engine.call(token_count(long))
    assert available_tokens > 0
    for max_tokens in (None, 10_000):
        completion = await engine.generate(call(prompt=long, max_tokens=max_tokens))
        assert completion.finish_reason in ("length", "stop")
        assert completion.usage.output_tokens <= available_tokens


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": {"type": "nonsense"}},
        {"schema": {"type": object}},
        {"temperature": -1.0},
        {"top_p": 2.0},
        {"max_tokens": 0},
        {"max_tokens": -3},
        {"prompt": ""},
        {"prompt": ()},
        {"prompt": "a lone surrogate \ud800"},
        {"stop": ("",)},
        {"stop": (b"a",)},
        {"stop": ("a", 1)},
        {"seed": 2**64},
        {"seed": -(2**63) - 1},
        {"seed": 1.5},
        {"seed": "7"},
        {"seed": True},
        {"temperature": float("nan")},
        {"temperature": 10**400},
        {"top_p": "1"},
        {"max_tokens": 1.5},
        {"priority": "1"},
        {"schema": {"enum": {1}}},
        {"schema": [1]},
        {"slo": None},
        {"logprobs": 21},
        {"logprobs": "1"},
    ],
    ids=lambda wrong: repr(wrong)[:60],
)
async def test_a_request_that_vllm_rejects_raises_invalid_request(
    engine: EmbeddedEngine, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await engine.generate(call("mine", **wrong))
    assert caught.value.args[0] == "mine"
    assert (await engine.generate(call(max_tokens=3))).usage.output_tokens == 3


@pytest.mark.parametrize("place", ["output_processor", "engine_core"])
async def test_an_error_of_vllm_for_one_request_does_not_affect_others(
    engine: EmbeddedEngine, place: str
) -> None:
    """Also if part of vLLM has the request already; nothing of it is left in vLLM."""

    def sabotage(llm: Any) -> Any:
        part, add_request = getattr(llm, place), getattr(llm, place).add_request

        def failing(request: Any, *more: Any) -> Any:
            if request.external_req_id.startswith("mine"):
                raise KeyError("lost")
            return add_request(request, *more)

        part.add_request = failing
        return lambda llm: setattr(part, "add_request", add_request)

    async def outcome(request: GenerationRequest) -> Completion | ServingError:
        try:
            return await engine.generate(request)
        except ServingError as error:
            return error

    restore = await engine.call(sabotage)
    try:
        names = ("before", "mine", "after")
        before, mine, after = await asyncio.gather(*(outcome(call(name)) for name in names))
    finally:
        await engine.call(restore)
    assert isinstance(before, Completion)
    assert isinstance(after, Completion)
    assert isinstance(mine, RequestFailed)
    assert mine.args[0] == "mine"
    assert not await engine.call(lambda llm: llm.has_unfinished_requests())


async def test_a_huge_prompt_is_refused_by_its_length_and_delays_no_other_call(
    engine: EmbeddedEngine,
) -> None:
    """Tokenizing it would take half a minute."""
    huge = asyncio.create_task(engine.generate(call("huge", prompt="plan engine " * 750_000)))
    await asyncio.sleep(0)
    small = await engine.generate(call(max_tokens=2))
    assert small.e2el_s < 10
    began_s = time.monotonic()
    with pytest.raises(PromptTooLong) as raised:
        await huge
    assert time.monotonic() - began_s < 10
    assert raised.value.args[1] > 1_000_000


async def test_an_slo_counts_from_the_submission(engine: EmbeddedEngine) -> None:
    """The time for which the engine's thread is busy counts too."""
    slo = Slo(kind=SloKind.COMPOUND, deadline_s=50.0, final_s=100.0)
    in_time = Slo(kind=SloKind.LATENCY, ttft_s=0.1, waiting_s=60.0)
    expired = Slo(kind=SloKind.DEADLINE, deadline_s=0.1, on_late=OnLate.DROP)
    job = BlockingJob()
    blocking = asyncio.create_task(engine.call(job))
    await job.started()
    tasks = [
        asyncio.create_task(engine.generate(call(name, slo=each, max_tokens=300)))
        for name, each in (("run", slo), ("chat", in_time), ("late", expired))
    ]
    await asyncio.sleep(0.3)
    tags_job = asyncio.create_task(engine.call(tags_in_engine))
    await asyncio.sleep(0.01)  # so that this job precedes the step that drops the late request
    job.release()
    await blocking
    tags = await tags_job
    assert 99.0 < tags["run"]["slo_final_s"] <= 99.7
    assert 49.0 < tags["run"]["slo_deadline_s"] <= 49.7
    assert 0 < tags["chat"]["slo_ttft_s"] < 0.01
    assert 0 < tags["late"]["slo_deadline_s"] < 0.01
    run, chat, late = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(run, Completion)
    assert isinstance(chat, Completion)
    assert isinstance(late, RequestDropped)
    assert 0.3 <= run.ttft_s < run.e2el_s


def tags_in_engine(llm: Any) -> dict[str, dict[str, Any]]:
    """The tags of each request in the scheduler, by the caller's request id."""
    scheduler: Any = scheduler_of(llm)
    return {
        request_id.split(".")[0]: request.sampling_params.extra_args
        for request_id, request in scheduler.requests.items()
    }


async def test_a_second_engine_in_the_process_raises_engine_busy(engine: EmbeddedEngine) -> None:
    second = EmbeddedEngine(EngineConfig())
    for _ in range(2):
        with pytest.raises(EngineBusy):
            await second.generate(call())
    await second.close()
    assert (await engine.generate(call(max_tokens=3))).usage.output_tokens == 3


async def test_an_engine_that_is_closed_before_it_starts_stays_closed() -> None:
    never_started = EmbeddedEngine(EngineConfig())
    await never_started.close()
    await never_started.close()
    with pytest.raises(EngineClosed):
        await never_started.start()
    with pytest.raises(EngineClosed):
        await never_started.generate(call())


async def test_an_error_of_a_job_is_raised_in_its_caller_only(engine: EmbeddedEngine) -> None:
    with pytest.raises(ZeroDivisionError):
        await engine.call(lambda llm: 1 // 0)
    assert (await engine.generate(call(max_tokens=3))).usage.output_tokens == 3


async def test_a_choice_is_one_token_with_the_log_probability_of_each(
    engine: EmbeddedEngine,
) -> None:
    choices = ("A", "B", "C")
    request = GenerationRequest(request_id="r", prompt="Which?", choices=choices, temperature=0.0)
    completion = await engine.generate(request)
    assert completion.text in choices
    assert completion.usage.output_tokens == 1
    assert len(completion.choice_logprobs) == len(choices)
    best = max(range(len(choices)), key=completion.choice_logprobs.__getitem__)
    assert completion.text == choices[best]


async def test_choices_that_begin_with_the_same_token_are_refused(engine: EmbeddedEngine) -> None:
    request = GenerationRequest(request_id="r", prompt="Which?", choices=("A", "A "))
    with pytest.raises(InvalidRequest, match="same token"):
        await engine.generate(request)


@pytest.mark.parametrize("logprobs", [0, 3, 20])
async def test_each_token_of_a_greedy_answer_is_the_most_probable_one(
    engine: EmbeddedEngine, logprobs: int
) -> None:
    completion = await engine.generate(call(logprobs=logprobs))
    tokens = completion.tokens
    assert len(tokens) == completion.usage.output_tokens
    assert {len(token.top) for token in tokens} == {logprobs}
    for token in tokens:
        assert token.logprob < 0
        values = [value for _, value in token.top]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1.0 + 1e-6
        assert not values or token.logprob == values[0]
    without = await engine.generate(call())
    assert (without.text, without.tokens) == (completion.text, ())


async def test_the_tokens_join_to_the_text(engine: EmbeddedEngine) -> None:
    """But for bytes that are no character, which the random model writes."""
    completion = await engine.generate(call(temperature=1.0, seed=4, max_tokens=60, logprobs=0))
    joined = "".join(token.text for token in completion.tokens)
    assert len(completion.text) > 60
    assert joined.startswith(completion.text.replace("\ufffd", ""))


async def test_log_probabilities_are_those_before_the_temperature(engine: EmbeddedEngine) -> None:
    firsts = []
    for temperature in (0.0, 0.5, 1.5):
        request = call(temperature=temperature, seed=1, max_tokens=1, logprobs=5)
        [token] = (await engine.generate(request)).tokens
        firsts.append(dict(token.top))
    assert firsts[0] == pytest.approx(firsts[1])
    assert firsts[0] == pytest.approx(firsts[2])


async def test_with_a_schema_the_alternatives_are_those_that_it_allows(
    engine: EmbeddedEngine,
) -> None:
    schema = {"type": "string", "enum": ["yes", "no"]}
    completion = await engine.generate(call(schema=schema, max_tokens=40, logprobs=20))
    assert completion.parsed() in ("yes", "no")
    assert len(completion.tokens) == completion.usage.output_tokens
    first = completion.tokens[0]
    assert {text[:1] for text, _ in first.top} == {'"'}
    assert len(first.top) < 20
    assert sum(math.exp(value) for _, value in first.top) == pytest.approx(1.0, abs=1e-4)
