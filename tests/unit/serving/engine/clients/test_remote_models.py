"""Several models of one server, embeddings, and images, against the fake server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from serving.engine.clients.remote import RemoteEngine
from serving.engine.clients.remote_embeddings import BATCH_CHARACTERS, BATCH_TEXTS, batches_of
from serving.errors import (
    EmbeddingsNotSupported,
    EngineClosed,
    InvalidRequest,
    ModelNotServed,
    RemoteRefused,
    RemoteUnavailable,
    ToolsNotSupported,
)
from serving.generation import Message, ToolSpec
from serving.images import Image
from tests.unit.serving.engine.clients.test_remote import (
    FakeServer,
    Reply,
    answer_with,
    refuse_with,
    request,
)

MODELS = ("tiny", "large", "random")


def vectors(body: dict[str, Any]) -> Response:
    """A vector for each text: its length, and its place; the last one first."""
    data = [
        {"object": "embedding", "index": at, "embedding": [float(len(text)), at / 3]}
        for at, text in enumerate(body["input"])
    ]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return JSONResponse(
        {"object": "list", "model": body["model"], "data": data[::-1], "usage": usage}
    )


async def embedded(embed: Reply | None, texts: list[str]) -> list[list[float]]:
    async with FakeServer(answer_with("x"), embed=embed) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        try:
            return await engine.embed(texts)
        finally:
            await engine.close()


# Models


async def test_another_model_of_the_server_has_an_engine_that_is_closed_with_the_first() -> None:
    async with FakeServer(answer_with("fine"), models=MODELS) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url, api_key="secret")
        assert await engine.models() == MODELS
        assert await engine.of_model("tiny") is engine
        first, second = await asyncio.gather(engine.of_model("random"), engine.of_model("random"))
        assert first is second
        assert (first.info.model, first.info.random_weights) == ("random", True)
        await first.generate(request())
        await engine.generate(request())
        assert [body["model"] for body in fake.bodies] == ["random", "tiny"]
        assert set(fake.keys) == {"Bearer secret"}
        await engine.close()
        with pytest.raises(EngineClosed):
            await first.generate(request())
        with pytest.raises(EngineClosed):
            await engine.of_model("large")


async def test_a_model_that_the_server_does_not_have_is_not_served() -> None:
    async with FakeServer(answer_with("fine"), models=MODELS) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        for _ in range(2):
            with pytest.raises(ModelNotServed, match="serves tiny, large, random"):
                await engine.of_model("small")
        await engine.close()


@pytest.mark.parametrize(("setting", "parser"), [("none", ""), ("", ""), (None, "server")])
async def test_another_model_is_asked_for_tool_calls_as_the_first_one_is(
    setting: str | None, parser: str
) -> None:
    async with FakeServer(answer_with("fine"), models=MODELS) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url, tool_parser=setting)
        other = await engine.of_model("large")
        assert (engine.info.tool_parser, other.info.tool_parser) == (parser, parser)
        with_tools = replace(request(), tools=(ToolSpec("look", "", {"type": "object"}),))
        if parser:
            await other.generate(with_tools)
        else:
            with pytest.raises(ToolsNotSupported):
                await other.generate(with_tools)
        assert ["tools" in body for body in fake.bodies] == ([True] if parser else [])
        await engine.close()


async def test_closing_waits_for_a_model_that_turns_out_not_to_be_served() -> None:
    async with FakeServer(answer_with("fine"), models=MODELS) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        large = await engine.of_model("large")
        unknown = asyncio.create_task(engine.of_model("small"))
        random = asyncio.create_task(engine.of_model("random"))
        await asyncio.sleep(0)
        assert list(engine._others) == ["large", "small", "random"]
        await engine.close()
        with pytest.raises(ModelNotServed):
            await unknown
        random.cancel()
        await asyncio.wait([random])
        for closed in (large, engine._others["random"]):
            with pytest.raises(EngineClosed):
                await closed.generate(request())


# Embeddings


async def test_vectors_are_in_the_order_of_their_texts() -> None:
    assert await embedded(vectors, ["a", "bcd", ""]) == [[1.0, 0.0], [3.0, 1 / 3], [0.0, 2 / 3]]


async def test_many_texts_are_sent_in_several_requests() -> None:
    texts = [str(number) for number in range(2 * BATCH_TEXTS + 1)]
    async with FakeServer(answer_with("x"), embed=vectors) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        assert len(await engine.embed(texts)) == len(texts)
        await engine.close()
    assert [len(body["input"]) for body in fake.bodies] == [BATCH_TEXTS, BATCH_TEXTS, 1]
    assert {body["encoding_format"] for body in fake.bodies} == {"float"}


@pytest.mark.parametrize("texts", [[], ["a"], ["x" * 10**6, "y"], ["x" * 90_000] * 7, ["a"] * 600])
def test_batches_hold_all_texts_in_order_within_their_limits(texts: list[str]) -> None:
    batches = list(batches_of(texts))
    assert [text for batch in batches for text in batch] == texts
    for batch in batches:
        assert 1 <= len(batch) <= BATCH_TEXTS
        assert len(batch) == 1 or sum(map(len, batch)) <= BATCH_CHARACTERS


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_the_path_supports_no_embeddings(status: int) -> None:
    with pytest.raises(EmbeddingsNotSupported, match="computes no embeddings"):
        await embedded(refuse_with(status, message="no"), ["a"])
    with pytest.raises(EmbeddingsNotSupported):
        await embedded(None, ["a"])


async def test_refusals_and_failures_of_the_server_keep_their_names() -> None:
    with pytest.raises(InvalidRequest, match="too odd"):
        await embedded(refuse_with(400, message="too odd"), ["a"])
    with pytest.raises(RemoteRefused, match="overloaded"):
        await embedded(refuse_with(500, message="overloaded"), ["a"])
    engine = RemoteEngine("http://127.0.0.1:1")
    with pytest.raises(RemoteUnavailable):
        await engine.embed(["a"])
    await engine.close()


@pytest.mark.parametrize(
    "data",
    [
        [],
        None,
        [{"index": 0, "embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}],
        [{"index": 0, "embedding": []}, {"index": 1, "embedding": []}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": ["x"]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": None}],
        [{"embedding": [1.0]}, {"embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1e999]}],
        "text",
    ],
)
async def test_an_answer_that_is_no_list_of_vectors_is_refused(data: object) -> None:
    body = json.dumps({"object": "list", "model": "tiny", "data": data})
    with pytest.raises(RemoteRefused, match="not a valid response"):
        await embedded(lambda _: Response(body, media_type="application/json"), ["a", "b"])


async def test_closing_the_engine_ends_a_request_for_embeddings() -> None:
    began = asyncio.Event()

    class Slow(Response):
        async def __call__(self, *_: Any) -> None:
            began.set()
            await asyncio.sleep(3600)

    async with FakeServer(answer_with("x"), embed=lambda _: Slow()) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        waiting = asyncio.create_task(engine.embed(["a"]))
        await began.wait()
        await engine.close()
        with pytest.raises(EngineClosed):
            await waiting


# Images


async def test_images_are_sent_in_openai_s_form() -> None:
    image = Image.from_bytes(b"\x89PNG\r\n\x1a\nx")
    turns = (Message("user", ("What is in ", image, Image("https://here/a.jpg"), "?")),)
    async with FakeServer(answer_with("a cat")) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        assert (await engine.generate(request(prompt=turns))).text == "a cat"
        await engine.close()
    [body] = fake.bodies
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is in "},
                {"type": "image_url", "image_url": {"url": image.url}},
                {"type": "image_url", "image_url": {"url": "https://here/a.jpg"}},
                {"type": "text", "text": "?"},
            ],
        }
    ]
