"""vLLM's real API server with our scheduler, in a process of its own, called by RemoteEngine.

Most tests share one server and run in order; the first interrupt ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from serving.engine.clients.remote import RemoteEngine
from serving.engine.observers.step_tracker import StepTracker
from serving.engine.scheduler.checkpoints import SchedulerState, decoded
from serving.engine.setup.random_model import ensure_random_model
from serving.errors import AnswerLost, InvalidRequest, PromptTooLong, RemoteRefused, RequestDropped
from serving.generation import GenerationRequest, Message
from serving.slo import OnLate, Slo, SloKind
from tests.places import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow]

START_S = 180  # two processes import vLLM; the machine may be busy
STOP_S = 40
CALL_S = 60
PROGRAM = """
import sys
from serving.engine.setup.config import EngineConfig
from serving.engine.server.server import serve
config = EngineConfig(
    slots=4, step_tokens=512, restarts=1, keep_scheduler_state=sys.argv[2:] == ["keep"]
)
serve(config, port=int(sys.argv[1]))
"""
UNREACHABLE = Slo(kind=SloKind.DEADLINE, deadline_s=0.02, on_late=OnLate.DROP)
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 20}, "score": {"type": "integer"}},
    "required": ["title", "score"],
    "additionalProperties": False,
}


def free_port() -> int:
    """A port outside the range of outgoing connections, so that it stays free while vLLM loads."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def start_server(cache: Path | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """A server that loads; with a cache folder, one that keeps there what its scheduler learns."""
    port = free_port()
    command, environment = [sys.executable, "-c", PROGRAM, str(port)], dict(os.environ)
    if cache is not None:
        command.append("keep")
        environment["ORCHESTRATE_CACHE"] = str(cache)
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    return process, f"http://127.0.0.1:{port}"


def kept_in(cache: Path) -> SchedulerState | None:
    """The latest checkpoint of the servers with this cache folder, which run one after another."""
    files = list((cache / "schedulers").glob("*.checkpoint"))
    assert len(files) <= 1
    return decoded(files[0].read_bytes()).state if files else None


def users_in(cache: Path) -> set[str]:
    state = kept_in(cache)
    return set() if state is None else {each.name for each in state.users.names}


def kill_if_running(process: subprocess.Popen[bytes]) -> None:
    """Kill a server and its processes, if a failed test left them."""
    if process.poll() is None:
        started = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def wait_until_healthy(process: subprocess.Popen[bytes], url: str) -> None:
    deadline_s = time.monotonic() + START_S
    with httpx.Client(trust_env=False, timeout=5) as client:
        while True:
            assert process.poll() is None, "the server ended before it was ready"
            assert time.monotonic() < deadline_s, f"no server after {START_S} s"
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{url}/health").status_code == 200:
                    return
            time.sleep(0.2)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which nothing was learned yet."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "models").symlink_to(ensure_random_model().parent)
    return folder


@pytest.fixture(scope="module")
def server(cache: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    process, url = start_server(cache)
    try:
        wait_until_healthy(process, url)
        yield process, url
    finally:
        kill_if_running(process)


@pytest.fixture
def url(server: tuple[subprocess.Popen[bytes], str]) -> str:
    return server[1]


@pytest.fixture
async def engine(url: str) -> AsyncIterator[RemoteEngine]:
    remote = RemoteEngine(url, timeout_s=CALL_S)
    async with asyncio.timeout(CALL_S):
        await remote.start()
        yield remote
        await remote.close()


def chat(text: str = "Name a book.", **settings: Any) -> GenerationRequest:
    turns = (Message("user", text),)
    return GenerationRequest(**{"request_id": "r1", "prompt": turns, "max_tokens": 8} | settings)


async def post(url: str, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=CALL_S) as client:
        return await client.post(f"{url}{path}", json={"model": "random", **body})


async def counters(url: str) -> dict[str, float]:
    """The values of /metrics by name and labels; vLLM's without labels."""
    async with httpx.AsyncClient(trust_env=False, timeout=CALL_S) as client:
        page = (await client.get(f"{url}/metrics")).text
    lines = [line.rpartition(" ") for line in page.splitlines() if line and line[0] != "#"]
    return {
        key.partition("{")[0] if key.startswith("vllm") else key: float(value)
        for key, _, value in lines
    }


async def num_running(url: str) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=CALL_S) as client:
        text = (await client.get(f"{url}/metrics")).text
    match = re.search(r"^vllm:num_requests_running\{.*\} ([\d.]+)$", text, re.MULTILINE)
    assert match is not None
    return int(float(match[1]))


async def until_running(url: str, count: int) -> None:
    async with asyncio.timeout(CALL_S):
        while await num_running(url) != count:  # noqa: ASYNC110 (the server has no event)
            await asyncio.sleep(0.05)


async def until_kept(cache: Path, user: str) -> None:
    async with asyncio.timeout(CALL_S):
        while user not in users_in(cache):  # noqa: ASYNC110 (a file has no event)
            await asyncio.sleep(0.1)


async def test_the_server_reports_its_model_and_scheduler(engine: RemoteEngine) -> None:
    assert engine.info.model == "random"
    assert engine.info.random_weights
    assert engine.info.scheduler == "SloScheduler"
    assert engine.info.policy
    assert engine.info.max_model_tokens == 8192


async def test_the_answer_to_a_chat_satisfies_its_schema(engine: RemoteEngine) -> None:
    slo = Slo(kind=SloKind.DEADLINE, deadline_s=50.0, program="run-1")
    completion = await engine.generate(chat(schema=SCHEMA, max_tokens=300, slo=slo, priority=3))
    parsed = completion.parsed()
    assert set(parsed) == {"title", "score"}
    assert completion.usage.prompt_tokens > 0


async def test_the_answer_to_a_plain_prompt_satisfies_its_schema(engine: RemoteEngine) -> None:
    request = chat(prompt="A book:", schema=SCHEMA, max_tokens=300)
    assert set((await engine.generate(request)).parsed()) == {"title", "score"}


async def test_a_stream_joins_to_the_answer_and_a_seed_repeats_it(engine: RemoteEngine) -> None:
    request = chat(max_tokens=40, seed=7)
    chunks = [chunk async for chunk in engine.stream(request)]
    completion = chunks[-1].completion
    assert completion is not None
    assert len(chunks) > 5
    assert "".join(chunk.text for chunk in chunks) == completion.text
    assert (completion.finish_reason, completion.usage.output_tokens) == ("length", 40)
    assert 0 < completion.ttft_s < completion.e2el_s
    assert (await engine.generate(request)).text == completion.text


async def test_a_plain_prompt_may_use_the_whole_context(engine: RemoteEngine) -> None:
    """vLLM's default for plain prompts is 16 tokens."""
    request = chat(prompt="word " * 3900, max_tokens=None, temperature=0.0)
    completion = await engine.generate(request)
    assert completion.usage.output_tokens > 16
    assert completion.usage.prompt_tokens + completion.usage.output_tokens <= 8192


async def test_a_prompt_longer_than_the_context_raises_prompt_too_long(
    engine: RemoteEngine,
) -> None:
    with pytest.raises(PromptTooLong) as raised:
        await engine.generate(chat("word " * 20000))
    assert raised.value.args[1] > raised.value.args[2] == 8191


@pytest.mark.parametrize("prompt", [(Message("user", "Name a book."),), "A book:"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_each_token_has_its_log_probability_and_the_most_probable_ones(
    engine: RemoteEngine, prompt: Any, temperature: float
) -> None:
    request = chat(prompt=prompt, temperature=temperature, seed=1, max_tokens=12)
    completion = await engine.generate(replace(request, logprobs=3))
    tokens = completion.tokens
    assert len(tokens) == completion.usage.output_tokens
    joined = "".join(token.text for token in tokens)
    assert joined.startswith(completion.text.replace("\ufffd", ""))
    assert {len(token.top) for token in tokens} == {3}
    for token in tokens:
        values = [value for _, value in token.top]
        assert values == sorted(values, reverse=True)
        assert token.logprob in values or token.logprob < values[-1]
    assert (await engine.generate(request)).tokens == ()
    without_top = await engine.generate(replace(request, logprobs=0))
    assert {token.top for token in without_top.tokens} == {()}


async def test_an_invalid_schema_raises_invalid_request(engine: RemoteEngine) -> None:
    with pytest.raises(InvalidRequest):
        await engine.generate(chat(schema={"type": "no such type"}))


LARGE = {"type": "array", "items": {"type": "integer"}, "minItems": 100_000_000}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TAG = {
    "type": "structural_tag",
    "triggers": ["<f"],
    "structures": [{"begin": "<f>", "schema": LARGE, "end": "</f>"}],
}


def of_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"response_format": of_schema(LARGE)}),
        ("/v1/chat/completions", CHAT | {"response_format": TAG}),
        ("/v1/completions", {"prompt": "hi", "response_format": of_schema(LARGE)}),
        (
            "/v1/responses",
            {
                "input": "hi",
                "text": {"format": {"type": "json_schema", "name": "a", "schema": LARGE}},
            },
        ),
        *(
            ("/v1/completions", {"prompt": "hi", "structured_outputs": {kind: value}})
            for kind, value in {
                "json": LARGE,
                "structural_tag": json.dumps(TAG),
                "regex": "((ab){1000}){10000}",
                "grammar": 'root ::= "a"{10000000}',
                "choice": ["a"] * 100_000,
            }.items()
        ),
    ],
)
async def test_structured_output_beyond_a_bound_is_answered_400(
    url: str, path: str, body: dict[str, Any], stream: bool
) -> None:
    answer = await post(url, path, **body, stream=stream)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("structured_outputs", 400)
    assert "limit" in error["message"]


async def test_requests_are_answered_while_a_schema_compiles_too_slowly(
    engine: RemoteEngine, url: str
) -> None:
    await engine.generate(chat(schema=SCHEMA, max_tokens=300))
    slow = {"type": "integer", "multipleOf": 400_009}
    refused = asyncio.create_task(
        post(url, "/v1/chat/completions", **CHAT, response_format=of_schema(slow))
    )
    others = [engine.generate(chat(max_tokens=1)) for _ in range(3)]
    await asyncio.gather(*others)
    answer = await refused
    assert answer.status_code == 400
    assert "takes more than" in answer.json()["error"]["message"]


async def test_a_client_that_disconnects_ends_the_trial_of_its_schema(
    engine: RemoteEngine, server: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, url = server
    await engine.generate(chat(schema=SCHEMA, max_tokens=300))
    [trials] = [
        child
        for child in psutil.Process(process.pid).children()
        if "serving.engine.structured_output.trial" in child.cmdline()
    ]
    slow = {"type": "integer", "multipleOf": 400_031}
    call = asyncio.create_task(
        post(url, "/v1/chat/completions", **CHAT, response_format=of_schema(slow))
    )
    async with asyncio.timeout(CALL_S):
        while not (running := trials.children()):  # noqa: ASYNC110 (processes have no event)
            await asyncio.sleep(0.01)
    call.cancel()
    _, left = await asyncio.to_thread(psutil.wait_procs, running, CALL_S)
    assert left == []
    other = {"type": "integer", "multipleOf": 3}
    answer = await post(url, "/v1/chat/completions", **CHAT, response_format=of_schema(other))
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
async def test_a_malformed_tag_is_answered_400(url: str, path: str, body: dict[str, Any]) -> None:
    answer = await post(url, path, **body, vllm_xargs={"slo_deadline_s": "soon"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_slo", "slo_deadline_s")


async def test_a_body_nested_too_deeply_is_answered_400(url: str) -> None:
    body = b'{"model": "random", "vllm_xargs": {"slo_weight": ' + b"[" * 100_000
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=CALL_S) as client:
        headers = {"content-type": "application/json"}
        answer = await client.post("/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model": "\ud800", "prompt": "hi"}',
        rb'{"model": "random", "prompt": "\ud800", "max_tokens": 1}',
        rb'{"model": "random", "prompt": "hi", "vllm_xargs": {"slo_user": "\ud800"}}',
        rb'{"model": "random", "prompt": "hi", "vllm_xargs": {"other_\ud800": 1}}',
        rb'{"model": "random", "prompt": "hi", "vllm_xargs": {"other": "\ud800"}}',
        rb'{"model": "random", "prompt": "hi", "stop": ["\ud800"]}',
        rb'{"model": "random", "prompt": "hi", "\ud800": 1}',
    ],
    ids=["model", "prompt", "tag", "foreign key", "foreign value", "stop", "unknown field"],
)
async def test_a_lone_surrogate_is_answered_400(url: str, body: bytes) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=CALL_S) as client:
        headers = {"content-type": "application/json"}
        answer = await client.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400


@pytest.mark.parametrize("prompt", ["hi", "word " * 3900], ids=["while running", "before a token"])
@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "plain"])
async def test_a_deadline_that_cannot_be_met_raises_request_dropped(
    engine: RemoteEngine, prompt: str, is_chat: bool
) -> None:
    turns = (Message("user", prompt),)
    request = chat(prompt=turns if is_chat else prompt, max_tokens=None, slo=UNREACHABLE)
    with pytest.raises(RequestDropped, match="deadline"):
        await engine.generate(request)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 8000}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_every_client_can_see_a_drop_in_the_response(
    url: str, path: str, body: dict[str, Any], stream: bool
) -> None:
    tags = {"slo_kind": "deadline", "slo_deadline_s": 0.02, "slo_on_late": "drop"}
    answer = await post(url, path, **body, stream=stream, vllm_xargs=tags)
    assert "slo_dropped: " in answer.text
    assert answer.status_code == (200 if stream else 504)
    assert answer.headers.get("x-should-retry") == (None if stream else "false")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
async def test_a_dummy_ends_when_its_turn_comes_and_computes_nothing(
    url: str, path: str, is_stream: bool
) -> None:
    prompts = {
        "/v1/completions": {"prompt": "hi", "max_tokens": 900},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "/v1/responses": {"input": "hi", "store": False},
    }
    tags = {"slo_kind": "deadline", "slo_deadline_s": 60.0, "slo_dummy": True}
    before = await counters(url)
    answer = await post(url, path, **prompts[path], stream=is_stream, vllm_xargs=tags)
    assert answer.status_code == 202, answer.text
    assert answer.json()["error"]["type"] == "begun"
    after = await counters(url)
    for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"):
        assert after[name] == before[name]
    promised = [key for key in after if key.startswith("orchestrate_promises_made_total")]
    assert all(after[key] == before.get(key) for key in promised)


async def test_a_client_that_disconnects_frees_its_slot(engine: RemoteEngine, url: str) -> None:
    call = asyncio.create_task(engine.generate(chat(max_tokens=8000)))
    await until_running(url, 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_running(url, 0)


async def test_a_client_that_closes_its_stream_frees_its_slot(
    engine: RemoteEngine, url: str
) -> None:
    stream = engine.stream(chat(max_tokens=8000))
    await anext(stream)
    assert await num_running(url) == 1
    await stream.aclose()
    await until_running(url, 0)


async def status_of(url: str, path: str) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=CALL_S) as client:
        return (await client.get(f"{url}{path}")).status_code


async def test_a_dead_engine_is_started_again_and_loses_only_what_was_streamed(
    engine: RemoteEngine, server: tuple[subprocess.Popen[bytes], str], cache: Path
) -> None:
    process, url = server
    await engine.generate(chat(slo=Slo(user="ann")))  # see `test_a_later_server...`
    stream = engine.stream(chat(max_tokens=8000))
    await anext(stream)
    await until_kept(cache, "ann")
    body = {"prompt": "hi", "max_tokens": 300, "ignore_eos": True}
    open_call = asyncio.create_task(post(url, "/v1/completions", **body))
    streamed_call = asyncio.create_task(engine.generate(chat(max_tokens=300, seed=3)))
    await until_running(url, 3)
    cores = psutil.Process(process.pid).children()
    [core] = [each for each in cores if each.name() == "VLLM::EngineCore"]
    core.kill()
    with pytest.raises(AnswerLost):
        async for _ in stream:
            pass
    assert await status_of(url, "/health") == 503
    assert await status_of(url, "/orchestrate/snapshot") == 503
    later_call = asyncio.create_task(post(url, "/v1/completions", **body))
    with pytest.raises(RequestDropped, match="no engine within"):
        await engine.generate(chat(slo=UNREACHABLE))
    assert (await streamed_call).usage.output_tokens > 0
    for call in (open_call, later_call):
        answer = await call
        assert answer.json()["usage"]["completion_tokens"] == 300
    assert await status_of(url, "/health") == 200
    async with httpx.AsyncClient(trust_env=False, timeout=CALL_S) as client:
        metrics = (await client.get(f"{url}/metrics")).text
    assert "orchestrate_engine_deaths_total 1.0" in metrics
    assert "orchestrate_engine_recovery_seconds_count 1.0" in metrics


async def test_a_second_server_on_the_same_port_fails(url: str) -> None:
    port = url.rpartition(":")[2]
    second = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, port, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(START_S):
        _, errors = await second.communicate()
    assert second.returncode == 1
    assert b"InvalidEngineConfig: port=" in errors


async def test_a_server_drains_until_an_interrupt_ends_it_with_its_calls_and_processes(
    server: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, url = server
    started = psutil.Process(process.pid).children(recursive=True)
    assert started
    engine = RemoteEngine(url, timeout_s=CALL_S)
    call = asyncio.create_task(engine.generate(chat(max_tokens=8000)))
    short_call = asyncio.create_task(engine.generate(chat(max_tokens=300)))
    await until_running(url, 2)
    process.send_signal(signal.SIGTERM)
    assert (await short_call).usage.output_tokens > 0
    refused = await post(url, "/v1/completions", prompt="hi")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["type"] == "draining"
    async with httpx.AsyncClient(trust_env=False, timeout=CALL_S) as client:
        assert (await client.get(f"{url}/orchestrate/snapshot")).json()["draining"] is True
    process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(process.wait, STOP_S) == 0
    async with asyncio.timeout(CALL_S):
        with pytest.raises(RemoteRefused, match=r"503.*stopping"):
            await call
    await engine.close()
    _, left = await asyncio.to_thread(psutil.wait_procs, started, STOP_S)
    assert left == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_model_loads_leaves_no_processes(number: signal.Signals) -> None:
    process, _ = start_server()
    try:
        parent = psutil.Process(process.pid)
        deadline_s = time.monotonic() + START_S
        while (
            len(started := parent.children(recursive=True)) < 2
        ):  # the resource tracker and the engine core
            assert time.monotonic() < deadline_s
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, number)
        # An uncaught KeyboardInterrupt; 1 with the exception hook of Ray, which vLLM imports.
        assert process.wait(STOP_S) in (-signal.SIGINT, 1)
        _, left = psutil.wait_procs(started, STOP_S)
        assert left == []
    finally:
        kill_if_running(process)


def test_a_later_server_begins_with_what_was_learned_and_leaves_no_process_if_it_is_killed(
    cache: Path,
) -> None:
    """What the engine that was killed had learned came to the next one, and then to this one."""
    state = kept_in(cache)
    assert state is not None
    assert state.steps is not None
    assert "ann" in users_in(cache)
    tracker = StepTracker()
    tracker.restore(state.steps)
    process, url = start_server(cache)
    try:
        wait_until_healthy(process, url)
        snapshot = httpx.get(f"{url}/orchestrate/snapshot", trust_env=False).json()["snapshot"]
        assert snapshot["speed"]["token_s"] == tracker.token_s != StepTracker().token_s
        assert snapshot["speed"]["decode_token_s"] == tracker.decode_token_s(snapshot["slots"])
        started = psutil.Process(process.pid).children(recursive=True)
        assert started
        process.kill()
        process.wait(STOP_S)
        _, left = psutil.wait_procs(started, STOP_S)
        assert left == []
    finally:
        kill_if_running(process)
