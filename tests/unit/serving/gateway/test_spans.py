"""Spans of the gateway: under the trace of its client, and above those of the replicas."""

from __future__ import annotations

import asyncio

from tests.spans import Spans, children_of, traceparent
from tests.unit.serving.gateway.fake_replica import gateway_to, replicas
from tests.unit.serving.gateway.gateway_examples import chat, due
from tests.unit.serving.gateway.test_gateway import CHAT, ask, until

TRACE, CALLER = "ab" * 16, "cd" * 8
HEADERS = {"traceparent": traceparent(TRACE, CALLER), "tracestate": "vendor=1"}


async def test_a_request_has_a_span_under_its_caller_s_and_each_attempt_one_under_that() -> None:
    spans = Spans()
    async with (
        replicas(2) as both,
        gateway_to([each.url for each in both], tracer=spans.tracer) as (_, client),
    ):
        for status in (503, 200):
            both[0].status = status
            body = chat(vllm_xargs=due(9.0))
            async with client.post(CHAT, json=body, headers=HEADERS) as answer:
                assert answer.status == 200
    seen = spans.seen()
    assert {span.trace_id for span in seen} == {TRACE}
    for request in children_of(CALLER, seen):
        attempts = children_of(request.span_id, seen)
        assert request.name == "gateway"
        assert request.attributes["url.path"] == CHAT
        assert request.attributes["http.response.status_code"] == 200
        assert request.attributes["orchestrate.retries"] == len(attempts) - 1
        assert not request.has_failed
        for attempt in attempts:
            outcome = attempt.attributes["orchestrate.outcome"]
            assert attempt.has_failed == (outcome == "unavailable")
            assert attempt.attributes["orchestrate.gateway_s"] < 5.0
            [replica] = [
                each for each in both if each.url == attempt.attributes["orchestrate.replica"]
            ]
            assert any(attempt.has_sent(headers) for headers, _ in replica.asked)
        assert attempts[-1].attributes["orchestrate.outcome"] == "answered"
    assert len([span for span in seen if span.name == "attempt"]) == sum(
        len(each.asked) for each in both
    )
    assert {headers["tracestate"] for each in both for headers, _ in each.asked} == {"vendor=1"}


async def test_a_client_without_a_trace_begins_one() -> None:
    spans = Spans()
    async with (
        replicas(1) as [replica],
        gateway_to([replica.url], tracer=spans.tracer) as (_, client),
    ):
        assert (await ask(client))[0] == 200
    [attempt, request] = spans.seen()
    assert (request.parent_id, attempt.parent_id) == ("", request.span_id)


async def test_the_spans_of_a_request_end_when_its_client_disconnects() -> None:
    spans = Spans()
    async with (
        replicas(1) as [replica],
        gateway_to([replica.url], tracer=spans.tracer) as (_, client),
    ):
        replica.gate.clear()
        asking = asyncio.create_task(client.post(CHAT, json=chat()))
        await until(lambda: replica.num_open == 1)
        asking.cancel()
        await until(lambda: len(spans.seen()) == 2)
    [attempt, request] = spans.seen()
    assert attempt.attributes["orchestrate.outcome"] == "disconnected"
    assert "http.response.status_code" not in request.attributes
    assert not attempt.has_failed


async def test_without_a_tracer_the_headers_of_a_trace_are_passed_on() -> None:
    async with replicas(1) as [replica], gateway_to([replica.url]) as (_, client):
        async with client.post(CHAT, json=chat(), headers=HEADERS) as answer:
            assert answer.status == 200
        assert HEADERS.items() <= replica.asked[0][0].items()
