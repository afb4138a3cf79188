"""Advice in front of vLLM's HTTP application: headers, fallbacks, and which tags win."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from serving.analyzer.messages import Arrival, Ended
from serving.engine.server.advice.middleware import (
    DEADLINE_HEADER,
    PROGRAM_HEADER,
    AdviceMiddleware,
    advised_call,
    with_advice,
)
from serving.engine.server.responses import Message, Receive, Scope, Send
from serving.length_sketch import LENGTH_LEVELS
from serving.slo import TagValue

PREDICTED: list[float] = [1, 2, 3, 4, 5, 6, 7]


class Analyzer:
    """Stands for the client of an analyzer: keeps arrivals, answers with given tags."""

    def __init__(self, tags: dict[str, TagValue]) -> None:
        self.arrivals: list[Arrival] = []
        self.ends: list[Ended] = []
        self._tags = tags

    def arrived(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)

    async def advice(self, call: str) -> dict[str, TagValue]:
        assert call == self.arrivals[-1].call
        return self._tags

    def ended(self, ended: Ended) -> None:
        self.ends.append(ended)


class Exchange:
    """One request through the middleware, and the tags with which vLLM would receive it."""

    def __init__(self, analyzer: Analyzer | None, **headers: str) -> None:
        self.status = 0
        self.error = ""
        self.tags: dict[str, Any] | None = None
        self._analyzer = analyzer
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        call = advised_call()
        own = body.get("vllm_xargs", {})
        self.tags = own if call is None else await call.completed(own)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    def post(self, path: str = "/v1/completions", **body: Any) -> Exchange:
        async def receive() -> Message:
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

        async def send(message: Message) -> None:
            self.status = message.get("status", self.status)
            if self.status == 400:
                self.error += message.get("body", b"").decode()

        state = SimpleNamespace(args=SimpleNamespace(analyzer=self._analyzer))
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": self._headers,
            "app": SimpleNamespace(state=state),
        }
        asyncio.run(AdviceMiddleware(self._application)(scope, receive, send))
        assert advised_call() is None
        return self


def test_advice_is_added_to_a_request_without_tags() -> None:
    analyzer = Analyzer({"slo_length_q": PREDICTED})
    exchange = Exchange(analyzer).post(prompt="x")
    assert exchange.tags == {"slo_length_q": PREDICTED}
    # The application has said nothing of its end, as of a request that vLLM refuses.
    assert [(each.call, each.is_complete) for each in analyzer.ends] == [
        (analyzer.arrivals[0].call, False)
    ]


def test_the_headers_say_the_program_and_its_deadline() -> None:
    analyzer = Analyzer({})
    headers = {PROGRAM_HEADER: "run-1", DEADLINE_HEADER: "60"}
    exchange = Exchange(analyzer, **headers).post(prompt="x")
    arrival = analyzer.arrivals[0]
    assert (arrival.program, arrival.program_deadline_s) == ("run-1", 60.0)
    # The analyzer knows nothing: the deadline counts from this call.
    assert exchange.tags == {"slo_program": "run-1", "slo_deadline_s": 60.0}


def test_without_an_analyzer_the_deadline_counts_from_each_call() -> None:
    exchange = Exchange(None, **{DEADLINE_HEADER: "60"}).post(prompt="x")
    assert exchange.tags is not None
    assert exchange.tags["slo_deadline_s"] == 60.0
    assert len(exchange.tags["slo_program"]) == 32
    assert Exchange(None).post(prompt="x").tags == {}


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_malformed_deadline_is_refused(value: str) -> None:
    exchange = Exchange(Analyzer({}), **{DEADLINE_HEADER: value}).post(prompt="x")
    assert exchange.status == 400
    assert exchange.tags is None
    assert DEADLINE_HEADER in exchange.error
    assert "give the seconds" in exchange.error


def test_a_name_that_is_too_long_is_refused() -> None:
    exchange = Exchange(Analyzer({}), **{PROGRAM_HEADER: "x" * 300}).post(prompt="x")
    assert exchange.status == 400
    assert "256 characters" in exchange.error


def test_the_promise_in_tags_wins_over_the_header() -> None:
    analyzer = Analyzer({"slo_length_q": PREDICTED})
    own = {"slo_kind": "latency", "slo_ttft_s": 1.0}
    exchange = Exchange(analyzer, **{DEADLINE_HEADER: "60"}).post(prompt="x", vllm_xargs=own)
    assert analyzer.arrivals[0].program_deadline_s is None
    assert exchange.tags == own | {"slo_length_q": PREDICTED}


def test_a_program_in_tags_has_their_deadline() -> None:
    analyzer = Analyzer({})
    own = {"slo_program": "p", "slo_deadline_s": 3.0, "slo_final_s": 9.0}
    Exchange(analyzer).post(prompt="x", vllm_xargs=own)
    assert (analyzer.arrivals[0].program, analyzer.arrivals[0].final_s) == ("p", 9.0)


def test_the_header_of_a_program_is_its_tag() -> None:
    own = {"slo_deadline_s": 3.0}
    named = {PROGRAM_HEADER: "run-1"}
    for analyzer in (Analyzer({}), None):
        exchange = Exchange(analyzer, **named).post(prompt="x", vllm_xargs=own)
        assert exchange.tags == own | {"slo_program": "run-1"}
    analyzer = Analyzer({})
    Exchange(analyzer, **named).post(prompt="x", vllm_xargs=own)
    assert (analyzer.arrivals[0].program, analyzer.arrivals[0].final_s) == ("run-1", 3.0)


@pytest.mark.parametrize(
    "tags",
    [
        {"slo_dummy": True},
        {"slo_length_q": PREDICTED},
        {"slo_length_q": PREDICTED, "slo_program": "p", "slo_future": [1, 2, 3, 4, 5]},
        "none",
    ],
)
def test_requests_that_need_no_advice(tags: Any) -> None:
    analyzer = Analyzer({"slo_weight": 2.0})
    exchange = Exchange(analyzer).post(prompt="x", vllm_xargs=tags)
    assert analyzer.arrivals == []
    assert exchange.tags == tags


def test_other_paths_are_not_read() -> None:
    analyzer = Analyzer({})
    headers = {DEADLINE_HEADER: "60"}
    assert Exchange(analyzer, **headers).post("/v1/embeddings", input="x").tags == {}
    assert analyzer.arrivals == []


def test_own_tags_win_and_deadlines_do_not_contradict() -> None:
    advice: dict[str, TagValue] = {
        "slo_kind": "compound",
        "slo_program": "p",
        "slo_deadline_s": 2.0,
        "slo_final_s": 8.9,
        "slo_stage": 2,
    }
    own = {"slo_program": "mine", "slo_deadline_s": 9.0}
    merged = with_advice(own, advice)
    assert merged == {"slo_kind": "compound", "slo_stage": 2, **own}


def test_advice_that_does_not_fit_is_left_out() -> None:
    own = {"slo_kind": "best_effort"}
    assert with_advice(own, {"slo_deadline_s": 3.0, "slo_program": "p"}) == own


def test_a_stream_within_a_program_keeps_its_kind_and_its_predicted_length() -> None:
    length = [float(tokens) for tokens in range(1, len(LENGTH_LEVELS) + 1)]
    advice: dict[str, TagValue] = {
        "slo_kind": "compound",
        "slo_program": "p",
        "slo_deadline_s": 3.0,
        "slo_length_q": length,
    }
    own = {"slo_kind": "latency", "slo_ttft_s": 1.0}
    assert with_advice(own, advice) == {"slo_length_q": length, **own}
