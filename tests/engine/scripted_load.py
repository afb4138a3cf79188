"""Scripted clients of a server, each of which writes down what it saw of its request.

Deadlines are clear: either far away, or earlier than any answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import httpx

FAR_S = 120.0
NEAR_S = 0.02
"""Seconds after which no answer here is complete."""

LIMIT_S = 180.0
PREDICTED = [20.0] * 7
"""Tags of a predicted length: seven equal quantiles."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Client(NamedTuple):
    """One client.

    Attributes:
        tags: those of its request.
        tokens: length of each answer.
        num_answers: how many it asks for.
        leaves: it disconnects after the first event of its stream.
    """

    tags: Mapping[str, Any]
    tokens: int = 20
    path: str = CHAT
    stream: bool = False
    num_answers: int = 1
    leaves: bool = False

    def body(self) -> dict[str, Any]:
        """Its request."""
        chat = {"messages": [{"role": "user", "content": "Name a book."}]}
        body: dict[str, Any] = chat if self.path == CHAT else {"prompt": "A book:"}
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | {
            "model": "random",
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "n": self.num_answers,
            "vllm_xargs": dict(self.tags),
        }


class Seen(NamedTuple):
    """What a client saw.

    Attributes:
        outcome: "kept", "missed", "dropped", "cancelled", "answered" (a best-effort request) or
            "refused".
        goodput_tokens: of its answers, the tokens that were in time.
    """

    client: Client
    outcome: str
    goodput_tokens: int = 0


def deadline(user: str, deadline_s: float = FAR_S, **tags: Any) -> dict[str, Any]:
    """Tags of a request with a deadline."""
    return {"slo_kind": "deadline", "slo_deadline_s": deadline_s, "slo_user": user, **tags}


def latency(user: str, ttft_s: float, tbt_s: float) -> dict[str, Any]:
    """Tags of a stream, which the scheduler never drops."""
    targets = {"slo_ttft_s": ttft_s, "slo_tbt_s": tbt_s, "slo_waiting_s": FAR_S}
    return {"slo_kind": "latency", "slo_user": user, **targets}


def compound(program: str, stage: int, final_s: float) -> dict[str, Any]:
    """Tags of a call of a program: its stage's deadline is near, and does not count."""
    due = {"slo_deadline_s": NEAR_S, "slo_final_s": final_s}
    return {"slo_kind": "compound", "slo_program": program, "slo_stage": stage, **due}


DROPPED = deadline("bob", NEAR_S, slo_on_late="drop")
SCRIPT: Sequence[Client] = (
    *[Client(deadline("ann", slo_length_q=PREDICTED))] * 4,
    *[Client(deadline("bob"), path=COMPLETIONS, stream=True)] * 3,
    Client(deadline("ann"), num_answers=2),
    *[Client(deadline("bob", NEAR_S), tokens=300)] * 3,
    *[Client(DROPPED, tokens=1000)] * 3,
    Client(DROPPED, tokens=1000, stream=True),
    *[Client(deadline("ann"), tokens=4000, stream=True, leaves=True)] * 2,
    *[Client(latency("ann", FAR_S, FAR_S), stream=True)] * 3,
    *[Client(latency("bob", NEAR_S / 20, NEAR_S / 200), tokens=100, stream=True)] * 2,
    *[Client(compound("p", stage, FAR_S)) for stage in range(3)],
    Client(compound("q", 0, NEAR_S), tokens=300),
    *[Client({})] * 4,
    Client({"slo_deadline_s": "soon"}),
)


async def run_script(url: str) -> list[Seen]:
    """Let all clients of the script ask at once."""
    async with (
        asyncio.timeout(LIMIT_S),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=LIMIT_S) as http,
    ):
        return await asyncio.gather(*(_ask(http, client) for client in SCRIPT))


async def _ask(http: httpx.AsyncClient, client: Client) -> Seen:
    began_s = time.monotonic()
    if client.stream:
        return await _ask_for_a_stream(http, client, began_s)
    answer = await http.post(client.path, json=client.body())
    if answer.status_code != 200:
        return Seen(client, {400: "refused", 504: "dropped"}[answer.status_code])
    return _judged(client, [time.monotonic() - began_s], answer.json()["usage"])


async def _ask_for_a_stream(http: httpx.AsyncClient, client: Client, began_s: float) -> Seen:
    times_s: list[float] = []
    usage: dict[str, int] = {}
    is_dropped = False
    async with http.stream("POST", client.path, json=client.body()) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                assert event["error"]["code"] == 504
                is_dropped = True  # read on: to leave before the end is to disconnect
                continue
            if client.leaves and event["choices"]:
                return Seen(client, "cancelled")
            if event["choices"] and not event["choices"][0].get("delta", {}).get("role"):
                times_s.append(time.monotonic() - began_s)
            usage = event.get("usage") or usage
    return Seen(client, "dropped") if is_dropped else _judged(client, times_s, usage)


def _judged(client: Client, times_s: Sequence[float], usage: Mapping[str, int]) -> Seen:
    """Whether an answer was in time, and which of its tokens count.

    Args:
        times_s: when its parts arrived, in seconds since it was asked for; of a stream its tokens.
    """
    tags = client.tags
    if "slo_kind" not in tags:
        return Seen(client, "answered")
    if tags["slo_kind"] == "latency":
        due = enumerate(times_s)
        in_time = [each <= tags["slo_ttft_s"] + i * tags["slo_tbt_s"] for i, each in due]
        assert len(set(in_time)) == 1, "some tokens are in time, and some are late"
        is_kept, counted = in_time[0], usage["completion_tokens"]
    else:
        is_kept = times_s[-1] <= tags.get("slo_final_s", tags["slo_deadline_s"])
        counted = usage["prompt_tokens"] + usage["completion_tokens"]
    return Seen(client, "kept", counted) if is_kept else Seen(client, "missed")
