"""EmbeddedEngine as its callers see it."""

from __future__ import annotations

import asyncio
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
    """Step, requests in the scheduler, free KV blocks."""
    scheduler: Any = scheduler_of(llm)
    free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return scheduler.current_step, len(scheduler.requests), free_blocks


async def test_the_engine_says_what_it_is(engine: EmbeddedEngine) -> None:
    await engine.start()
    info = engine.info
    assert (info.name, info.model, info.random_weights) == ("embedded", "demo", True)
    assert (info.scheduler, info.policy) == ("SloScheduler", "fcfs")
    assert info.max_model_tokens == 2048


async def test_a_seed_tells_the_answer_however_the_prompt_is_cut_into_steps(
    engine: EmbeddedEngine,
) -> None:
    """The second time it is found in the cache, and read in one step; others go on beside it."""

    def limit(llm: Any, tokens: int) -> int:
        scheduler: Any = scheduler_of(llm)
        before: int = scheduler._engine_step_tokens
        scheduler._engine_step_tokens, scheduler.planner.plan_due = tokens, True
        return before

    prompt = "A prompt with a seed. " * 40
    seeded = {"prompt": prompt, "seed": 7, "temperature": 1.0}
    usual = await engine.call(lambda llm: limit(llm, 64))
    try:
        cut, other = await asyncio.gather(
            engine.generate(call("cut", **seeded)), engine.generate(call("other", seed=3))
        )
        whole = await engine.generate(call("whole", **seeded))
        another = await engine.generate(call("another", **seeded | {"seed": 8}))
    finally:
        await engine.call(lambda llm: limit(llm, usual))
    assert cut.usage.prompt_tokens > 3 * 64
    assert whole.usage.cached_tokens > cut.usage.prompt_tokens - 64
    assert cut.text == whole.text != another.text
    assert other.finish_reason == "length"


async def test_a_completion_counts_what_went_in_and_out(engine: EmbeddedEngine) -> None:
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


async def test_the_chunks_join_to_the_completions_text(engine: EmbeddedEngine) -> None:
    chunks = [chunk async for chunk in engine.stream(call(max_tokens=40))]
    *growing, last = chunks
    assert last.completion is not None
    assert all(chunk.completion is None for chunk in growing)
    assert "".join(chunk.text for chunk in chunks) == last.completion.text
    assert len(growing) > 10
    assert last.completion.text == (await engine.generate(call(max_tokens=40))).text


async def test_same_seed_same_text(engine: EmbeddedEngine) -> None:
    texts = [(await engine.generate(call(temperature=1.0, seed=seed))).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


async def test_a_stop_string_ends_the_answer_before_it(engine: EmbeddedEngine) -> None:
    whole = (await engine.generate(call(max_tokens=30))).text
    stop = whole[len(whole) // 2 :][:4]
    cut = await engine.generate(call(max_tokens=30, stop=(stop,)))
    assert cut.finish_reason == "stop"
    assert cut.text == whole[: whole.index(stop)]


async def test_a_chat_is_written_as_the_models_template_says(engine: EmbeddedEngine) -> None:
    turns = (Message("system", "Be brief."), Message("user", "Why?"))
    completion = await engine.generate(call(prompt=turns))
    written = "<|system|>\nBe brief.<|end|>\n<|user|>\nWhy?<|end|>\n<|assistant|>\n"
    assert completion.usage.prompt_tokens == await engine.call(token_count(written))
    assert completion.text == (await engine.generate(call(prompt=written))).text


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


async def test_forty_of_forty_answers_satisfy_their_schema(engine: EmbeddedEngine) -> None:
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


class Held:
    """Keeps the engine's thread between two steps until it is let go."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._let_go = threading.Event()

    def __call__(self, llm: Any) -> int:
        self._reached.set()
        assert self._let_go.wait(60)
        return state(llm)[0]

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 60)

    def let_go(self) -> None:
        self._let_go.set()


async def test_a_cancelled_caller_frees_its_place_before_the_next_step(
    engine: EmbeddedEngine,
) -> None:
    *_, free_blocks = await engine.call(state)
    talking = asyncio.Event()

    async def listen() -> None:
        async for _ in engine.stream(call(max_tokens=1500)):
            talking.set()

    task = asyncio.create_task(listen())
    await talking.wait()
    held = Held()
    holding = asyncio.create_task(engine.call(held))
    await held.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.let_go()
    step_when_held = await holding
    assert await engine.call(state) == (step_when_held, 0, free_blocks)


async def test_leaving_a_stream_early_aborts_it(engine: EmbeddedEngine) -> None:
    stream = engine.stream(call(max_tokens=1500))
    assert isinstance(stream, AsyncGenerator)
    async with aclosing(stream) as chunks:
        assert isinstance(await anext(chunks), Chunk)
    _, requests, _ = await engine.call(state)
    assert requests == 0


async def test_cancelling_before_submission_leaves_nothing(engine: EmbeddedEngine) -> None:
    for pause in range(5):
        task = asyncio.create_task(engine.generate(call(max_tokens=500)))
        for _ in range(pause):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await engine.generate(call(max_tokens=4))).usage.output_tokens == 4


async def test_twenty_callers_in_two_threads_each_get_their_own_answer(
    engine: EmbeddedEngine,
) -> None:
    """Two event loops, the same request ids in both: no answer goes astray."""

    async def ten(thread: int) -> list[Completion]:
        return await asyncio.gather(
            *(
                engine.generate(call(str(index), prompt=f"{STORY} {thread} {index}"))
                for index in range(10)
            )
        )

    expected = [await ten(0), await ten(1)]
    with ThreadPoolExecutor(2) as threads:
        loop = asyncio.get_running_loop()
        together = await asyncio.gather(
            *(loop.run_in_executor(threads, asyncio.run, ten(thread)) for thread in range(2))
        )
    for mine, others in zip(together, expected, strict=True):
        assert [each.request_id for each in mine] == [str(index) for index in range(10)]
        assert [each.text for each in mine] == [each.text for each in others]
    assert expected[0][3].text != expected[1][3].text


async def test_a_prompt_that_can_never_fit_says_so(engine: EmbeddedEngine) -> None:
    with pytest.raises(PromptTooLong) as caught:
        await engine.generate(call("big", prompt="plan " * 3000))
    request_id, prompt_tokens, limit = caught.value.args
    assert (request_id, limit) == ("big", 2047)
    assert prompt_tokens > limit


async def test_an_answer_without_a_limit_ends_where_the_context_does(
    engine: EmbeddedEngine,
) -> None:
    long = "plan " * 1000
    room = 2048 - await engine.call(token_count(long))
    assert room > 0
    for max_tokens in (None, 10_000):
        completion = await engine.generate(call(prompt=long, max_tokens=max_tokens))
        assert completion.finish_reason in ("length", "stop")
        assert completion.usage.output_tokens <= room


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
    ],
    ids=lambda wrong: repr(wrong)[:60],
)
async def test_what_the_engine_cannot_take_is_an_invalid_request(
    engine: EmbeddedEngine, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await engine.generate(call("mine", **wrong))
    assert caught.value.args[0] == "mine"
    assert (await engine.generate(call(max_tokens=3))).usage.output_tokens == 3


@pytest.mark.parametrize("place", ["output_processor", "engine_core"])
async def test_whatever_vllm_raises_for_one_request_is_its_callers_alone(
    engine: EmbeddedEngine, place: str
) -> None:
    """Before vLLM has any of it, and once half of vLLM has it; nothing is left of it there."""

    def sabotage(llm: Any) -> Any:
        part, real = getattr(llm, place), getattr(llm, place).add_request

        def broken(request: Any, *more: Any) -> Any:
            if request.external_req_id.startswith("mine"):
                raise KeyError("lost")
            return real(request, *more)

        part.add_request = broken
        return lambda llm: setattr(part, "add_request", real)

    async def outcome(request: GenerationRequest) -> Completion | ServingError:
        try:
            return await engine.generate(request)
        except ServingError as error:
            return error

    mend = await engine.call(sabotage)
    try:
        names = ("before", "mine", "after")
        before, mine, after = await asyncio.gather(*(outcome(call(name)) for name in names))
    finally:
        await engine.call(mend)
    assert isinstance(before, Completion)
    assert isinstance(after, Completion)
    assert isinstance(mine, RequestFailed)
    assert mine.args[0] == "mine"
    assert not await engine.call(lambda llm: llm.has_unfinished_requests())


async def test_a_huge_prompt_is_refused_by_its_length_and_holds_up_nobody(
    engine: EmbeddedEngine,
) -> None:
    """Read to its end this one would take half a minute."""
    huge = asyncio.create_task(engine.generate(call("huge", prompt="plan engine " * 750_000)))
    await asyncio.sleep(0)
    small = await engine.generate(call(max_tokens=2))
    assert small.e2el_s < 10
    began_s = time.monotonic()
    with pytest.raises(PromptTooLong) as refused:
        await huge
    assert time.monotonic() - began_s < 10
    assert refused.value.args[1] > 1_000_000


async def test_a_promise_counts_from_the_submission(engine: EmbeddedEngine) -> None:
    """Not from when the engine's thread has time for it."""
    slo = Slo(kind=SloKind.COMPOUND, deadline_s=50.0, final_s=100.0)
    in_time = Slo(kind=SloKind.LATENCY, ttft_s=0.1, waiting_s=60.0)
    expired = Slo(kind=SloKind.DEADLINE, deadline_s=0.1, on_late=OnLate.DROP)
    held = Held()
    holding = asyncio.create_task(engine.call(held))
    await held.reached()
    tasks = [
        asyncio.create_task(engine.generate(call(name, slo=each, max_tokens=300)))
        for name, each in (("run", slo), ("chat", in_time), ("late", expired))
    ]
    await asyncio.sleep(0.3)
    tags = asyncio.create_task(engine.call(promised))
    await asyncio.sleep(0.01)  # so that it is asked before a step could drop who is late
    held.let_go()
    await holding
    found = await tags
    assert 99.0 < found["run"]["slo_final_s"] <= 99.7
    assert 49.0 < found["run"]["slo_deadline_s"] <= 49.7
    assert 0 < found["chat"]["slo_ttft_s"] < 0.01
    assert 0 < found["late"]["slo_deadline_s"] < 0.01
    run, chat, late = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(run, Completion)
    assert isinstance(chat, Completion)
    assert isinstance(late, RequestDropped)
    assert 0.3 <= run.ttft_s < run.e2el_s


def promised(llm: Any) -> dict[str, dict[str, Any]]:
    """The tags of each request in the scheduler, by its caller's name for it."""
    scheduler: Any = scheduler_of(llm)
    return {
        request_id.split(".")[0]: request.sampling_params.extra_args
        for request_id, request in scheduler.requests.items()
    }


async def test_a_process_takes_one_engine(engine: EmbeddedEngine) -> None:
    second = EmbeddedEngine(EngineConfig())
    for _ in range(2):
        with pytest.raises(EngineBusy):
            await second.generate(call())
    await second.close()
    assert (await engine.generate(call(max_tokens=3))).usage.output_tokens == 3


async def test_an_engine_that_was_closed_before_it_started_stays_closed() -> None:
    never_started = EmbeddedEngine(EngineConfig())
    await never_started.close()
    await never_started.close()
    with pytest.raises(EngineClosed):
        await never_started.start()
    with pytest.raises(EngineClosed):
        await never_started.generate(call())


async def test_an_error_of_handed_in_work_is_its_callers_alone(engine: EmbeddedEngine) -> None:
    with pytest.raises(ZeroDivisionError):
        await engine.call(lambda llm: 1 // 0)
    assert (await engine.generate(call(max_tokens=3))).usage.output_tokens == 3
