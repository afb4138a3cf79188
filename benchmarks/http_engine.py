"""Replays workloads on servers over HTTP: requests go to one address, measurements come from files.

The counterpart of `serving.sim.drive.replaying_engine` for `benchmarks.recording_replica`s: the
answers' lengths are forced in the same way, and the policy sees none of it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from cli.errors import CommandError
from serving.errors import RequestFailed, ServingError, error_of_stop_reason
from serving.generation import Chunk, GenerationRequest
from serving.policies.table import PolicySpec
from serving.sim.drive.live_driver import EngineCapacity, ForcedRequest
from serving.sim.drive.live_scale import LiveSettings
from serving.sim.drive.replaying_engine import END_BIAS
from serving.sim.metrics.metrics import EngineCounters
from serving.slo import to_tags
from serving.step_cost import Composition, StepSample

MODEL = "random"
VOCABULARY = 4096
END_TOKEN = 1
"""The random model's vocabulary, and the token that ends its answers."""

IDLE_S = 30.0
"""Limit on the time until replicas are idle after their requests were aborted."""

_TOKEN = Chunk("")


class ReplicaAddress(NamedTuple):
    """A replica: its URL, and the file that it writes its measurements to."""

    url: str
    measurements: Path


def body_of(request: ForcedRequest) -> dict[str, Any]:
    """The body of a streamed completion with a forced length.

    The end token is forbidden before the last position and practically certain at it; `max_tokens`
    is the limit that all calls share.
    """
    return {
        "model": MODEL,
        "prompt": list(request.prompt_token_ids),
        "max_tokens": request.max_tokens,
        "min_tokens": request.output_tokens - 1,
        "logit_bias": {str(END_TOKEN): END_BIAS},
        "temperature": request.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},  # by which a gateway learns tokens of a prompt
        "return_token_ids": True,
        "vllm_xargs": to_tags(request.slo),
    }


def tokens_of(line: bytes, request_id: str) -> int:
    """The number of tokens that a line of a stream of events brings.

    Raises:
        RequestDropped: it says that the scheduler dropped the request.
        ServingError: it is another error.
    """
    if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
        return 0
    event = json.loads(line.removeprefix(b"data: "))
    if "error" in event:
        raise error_of(event["error"], request_id)
    return sum(len(choice.get("token_ids") or ()) for choice in event["choices"])


def error_of(error: dict[str, Any], request_id: str) -> ServingError:
    """The error that a server's error object means."""
    message = str(error.get("message"))
    named = error_of_stop_reason(request_id, message)
    return named or RequestFailed(request_id, message)


class HttpEngine:
    """A LiveEngine of several replicas; belongs to the event loop that first uses it.

    Args:
        url: where requests are sent: a gateway to the replicas.
    """

    def __init__(
        self, url: str, replicas: Sequence[ReplicaAddress], settings: LiveSettings
    ) -> None:
        self._url = url
        self._replicas = replicas
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._measured: list[dict[str, Any]] = []

    async def __aenter__(self) -> HttpEngine:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    @property
    def _client(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use it as a context manager"
        return self._session

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Send a request and yield one item per token; closing the iterator aborts it."""
        assert isinstance(request, ForcedRequest), "a replay forces the length of each answer"
        count = 0
        post = self._client.post(f"{self._url}/v1/completions", json=body_of(request))
        try:
            async with post as answer:
                if answer.status != 200:
                    raise error_of((await answer.json())["error"], request.request_id)
                async for line in answer.content:
                    num_tokens = tokens_of(line, request.request_id)
                    count += num_tokens
                    for _ in range(num_tokens):
                        yield _TOKEN
        except aiohttp.ClientError as error:
            raise RequestFailed(request.request_id, str(error) or type(error).__name__) from error
        if count != request.output_tokens:
            reason = f"{count} tokens arrived instead of {request.output_tokens}"
            raise RequestFailed(request.request_id, reason)

    async def capacity(self) -> EngineCapacity:
        """The capacity of one replica."""
        settings = self._settings
        report = await self._snapshot(self._replicas[0])
        return EngineCapacity(
            slots=settings.slots,
            step_tokens=settings.step_tokens,
            kv_blocks=report["kv_blocks"],
            block_tokens=report["block_tokens"],
            max_model_tokens=settings.context_tokens,
            vocabulary=VOCABULARY,
        )

    async def reset(self, policy: PolicySpec) -> None:
        """Wait until the replicas are idle, and have them forget what they measured and learned.

        Args:
            policy: that of the replicas, which were started with it.
        """
        await self._fetch_all()

    async def counters(self) -> EngineCounters:
        """The sum of the replicas' counters since `reset`, once they are idle."""
        await self._fetch_all()
        return merged([EngineCounters(**each["counters"]) for each in self._measured])

    async def samples(self) -> Sequence[StepSample]:
        """The measured steps of all replicas, as of the last call of `counters`."""
        return [sample_of(each) for one in self._measured for each in one["samples"]]

    async def page(self, path: str) -> str:
        """A page of the server that requests are sent to."""
        async with self._client.get(self._url + path) as answer:
            answer.raise_for_status()
            return await answer.text()

    async def _fetch_all(self) -> None:
        self._measured = [await self._fetch(each) for each in self._replicas]

    async def _fetch(self, replica: ReplicaAddress) -> dict[str, Any]:
        until_s = time.monotonic() + IDLE_S
        while await self._is_busy(replica):
            if time.monotonic() > until_s:
                raise CommandError(f"{replica.url} still had requests after {IDLE_S:.0f} s")
            await asyncio.sleep(0.05)
        async with self._client.post(f"{replica.url}/reset_prefix_cache") as answer:
            answer.raise_for_status()
        measured: dict[str, Any] = json.loads(replica.measurements.read_text(encoding="utf-8"))
        return measured

    async def _is_busy(self, replica: ReplicaAddress) -> bool:
        snapshot = await self._snapshot(replica)
        return bool(snapshot["num_running"] + snapshot["num_waiting"])

    async def _snapshot(self, replica: ReplicaAddress) -> dict[str, Any]:
        async with self._client.get(f"{replica.url}/orchestrate/snapshot") as answer:
            answer.raise_for_status()
            snapshot: dict[str, Any] = (await answer.json())["snapshot"]
            return snapshot


def sample_of(document: Sequence[Any]) -> StepSample:
    """A step as a replica writes it: [[new tokens, decodes, contexts, chunks], seconds]."""
    (new_tokens, decodes, contexts, chunks), seconds = document
    return StepSample(
        Composition(new_tokens, decodes, contexts, tuple(map(tuple, chunks))), seconds
    )


def merged(counters: Sequence[EngineCounters]) -> EngineCounters:
    """The sums of several engines' counters; the time to schedule is the mean over all steps."""
    steps = sum(each.steps for each in counters)
    schedule_ms = sum(each.steps * (each.schedule_ms_per_step or 0.0) for each in counters)
    return EngineCounters(
        preemptions=sum(each.preemptions for each in counters),
        recomputed_tokens=sum(each.recomputed_tokens for each in counters),
        steps=steps,
        schedule_ms_per_step=schedule_ms / steps if steps else None,
    )
