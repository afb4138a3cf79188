"""Servers of the OpenAI API that keep the requests they got; nothing listens on a port."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import httpx2

from serving.engine.server.slo_middleware import SCHEDULER_HEADER

URL = "http://models.test/v1"


def completion(text: str = "all is well") -> dict[str, Any]:
    """The body of the answer to a chat."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "random",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }


class ModelServer:
    """Answers requests, as our server or as another one.

    Args:
        is_ours: whether its answers name our scheduler.
        statuses: of its answers to requests of models; 200 after them.
        stalls: whether it never answers a request of a model that is async.

    Attributes:
        bodies: of the requests of models.
        paths: of all requests.
        num_cut: requests that their client ended before an answer.
    """

    def __init__(
        self, *, is_ours: bool = True, statuses: tuple[int, ...] = (), stalls: bool = False
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.timeouts: list[Any] = []
        self.num_cut = 0
        self.is_ours = is_ours
        self._statuses = itertools.chain(statuses, itertools.repeat(200))
        self._stalls = stalls

    @property
    def tags(self) -> list[dict[str, Any] | None]:
        """The tags of each request of a model; None: it has none."""
        return [body.get("vllm_xargs") for body in self.bodies]

    def transport(self) -> httpx2.MockTransport:
        """For sync clients."""
        return httpx2.MockTransport(self.answer)

    def async_transport(self) -> httpx2.MockTransport:
        """For async clients."""
        return httpx2.MockTransport(self.answer_async)

    def client(self) -> httpx2.Client:
        """A sync client that carries nothing by itself."""
        return httpx2.Client(transport=self.transport())

    def async_client(self) -> httpx2.AsyncClient:
        """An async client that carries nothing by itself."""
        return httpx2.AsyncClient(transport=self.async_transport())

    def answer(self, request: Any) -> httpx2.Response:
        """The response to a request."""
        self.paths.append(request.url.path)
        self.headers.append(dict(request.headers))
        named = {SCHEDULER_HEADER: "SloScheduler"} if self.is_ours else {}
        if request.method == "GET":
            return httpx2.Response(200, json={"object": "list", "data": []}, headers=named)
        self.bodies.append(json.loads(request.content))
        self.timeouts.append(request.extensions.get("timeout"))
        assert int(request.headers["content-length"]) == len(request.content)
        status = next(self._statuses)
        body = completion() if status == 200 else {"error": {"message": "no"}}
        return httpx2.Response(status, json=body, headers=named)

    async def answer_async(self, request: Any) -> httpx2.Response:
        """The response to a request, unless the server stalls."""
        response = self.answer(request)
        if self._stalls and request.method == "POST":
            try:
                await asyncio.sleep(3600.0)
            except asyncio.CancelledError:
                self.num_cut += 1
                raise
        return response
