"""`orchestrate gateway` in front of two real replicas: what they count and trace of a load.

At last one of the replicas is killed at work. The tests share the servers, and run in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import httpx
import pytest

from tests.engine.metrics_pages import Page, read_page, sum_of
from tests.engine.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.engine.promql import missing
from tests.engine.recording_proxy import RecordingProxy, recording_proxy
from tests.engine.scripted_load import (
    CHAT,
    LIMIT_S,
    PREDICTED,
    SCRIPT,
    Client,
    Seen,
    deadline,
    run_script,
)
from tests.engine.test_server import free_port, kill_if_running, wait_until_healthy
from tests.places import ROOT
from tests.spans import SeenSpan, children_of, traceparent

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("imported_vllm")]

DASHBOARD = ROOT / "deploy/grafana/orchestrate.json"
DEADLINE_S = 150.0
NUM_STREAMS, NUM_CALLS = 8, 20
WORKING_S = 2.0
"""Time before one is killed: all streams have begun."""

USER = "of the killed replica"
"""The user of the requests at the end, by which their tags are told from those before."""


def started(*arguments: str, **variables: str) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    command = [sys.executable, "-m", "cli", *arguments, "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | variables)
    return process, f"http://127.0.0.1:{port}"


class Fleet(NamedTuple):
    """A gateway to a replica that will be killed, and to one whose requests are recorded."""

    url: str
    dying: subprocess.Popen[bytes]
    dying_url: str
    living: RecordingProxy
    collector: OtlpReceiver

    @property
    def replica_urls(self) -> tuple[str, str]:
        return self.dying_url, self.living.url


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        collector = stack.enter_context(otlp_receiver())
        traced = collector.variables
        replicas = [started("serve", "--model", "random", **traced) for _ in range(2)]
        for process, _ in replicas:
            stack.callback(kill_if_running, process)
        for process, url in replicas:
            wait_until_healthy(process, url)
        (dying, dying_url), (_, living_url) = replicas
        living = stack.enter_context(recording_proxy(living_url))
        # The equal prompts of these tests would stay together, where their prefix is cached.
        gateway, url = started(
            "gateway", dying_url, living.url, "--router", "round_robin", **traced
        )
        stack.callback(kill_if_running, gateway)
        wait_until_healthy(gateway, url)
        yield Fleet(url, dying, dying_url, living, collector)


class Load(NamedTuple):
    """What the clients of the script saw, and the metrics after it.

    Attributes:
        added: to the pages of both replicas together while the clients asked.
        replicas, gateway: the pages after it.
    """

    seen: list[Seen]
    added: Page
    replicas: Page
    gateway: Page

    def count(self, *outcomes: str, **tags: Any) -> int:
        """The clients that saw one of these outcomes, and had these tags."""
        return sum(
            each.outcome in outcomes and tags.items() <= each.client.tags.items()
            for each in self.seen
        )


@pytest.fixture(scope="module")
def load(fleet: Fleet) -> Load:
    before = sum_of(read_page(url) for url in fleet.replica_urls)
    seen = asyncio.run(run_script(fleet.url))
    end_s = time.monotonic() + LIMIT_S
    while True:  # a disconnected request ends a moment after its client has gone
        pages = [read_page(url) for url in fleet.replica_urls]
        counts = ("vllm:num_requests_running", "orchestrate_queue_requests")
        if not any(page.by(name)[()] for page in pages for name in counts):
            break
        assert time.monotonic() < end_s
        time.sleep(0.1)
    page = sum_of(pages)
    return Load(seen, page.since(before), page, read_page(fleet.url))


def test_the_counters_of_promises_equal_what_the_clients_saw(load: Load) -> None:
    saw = Counter(
        (each.client.tags["slo_kind"], each.client.tags.get("slo_user", ""), each.outcome)
        for each in load.seen
        if each.outcome not in ("answered", "refused")
    )
    assert {outcome for *_, outcome in saw} == {"kept", "missed", "dropped", "cancelled"}
    assert +load.added.by("orchestrate_promises_total", "kind", "user", "outcome") == saw
    made = Counter[tuple[str, ...]]()
    for (kind, user, _), number in saw.items():
        made[kind, user] += number
    assert +load.added.by("orchestrate_promises_made_total", "kind", "user") == made


def test_goodput_in_tokens_is_what_the_clients_got_in_time(load: Load) -> None:
    got = Counter[tuple[str, ...]]()
    for each in load.seen:
        if each.goodput_tokens:
            tags = each.client.tags
            got[tags["slo_kind"], tags.get("slo_user", "")] += each.goodput_tokens
    assert +load.added.by("orchestrate_goodput_tokens_total", "kind", "user") == got


def test_the_histograms_have_the_slack_and_the_predictions_of_complete_answers(load: Load) -> None:
    for kind in ("deadline", "latency", "compound"):
        ended = load.count("kept", "missed", slo_kind=kind)
        assert load.added.by("orchestrate_slack_seconds_count", kind=kind)[()] == ended
        late = load.added.by("orchestrate_slack_seconds_bucket", kind=kind, le="0.0")[()]
        assert late == load.count("missed", slo_kind=kind)
    predicted = load.count("kept", slo_length_q=PREDICTED)
    assert load.added.by("orchestrate_predicted_length_ratio_count")[()] == predicted
    assert load.added.by("orchestrate_predicted_length_ratio_sum")[()] == predicted


def test_vllm_s_own_counters_agree(load: Load) -> None:
    ends = load.added.by("vllm:request_success_total", "finished_reason")
    complete = [each for each in load.seen if each.outcome in ("kept", "missed", "answered")]
    assert ends["length",] == sum(each.client.num_answers for each in complete)
    assert ends["abort",] == load.count("dropped")
    for phase in ("queue", "prefill", "decode"):
        seconds = load.added.by(f"vllm:request_{phase}_time_seconds_sum")[()]
        assert 0 <= seconds < LIMIT_S * len(SCRIPT), phase


def test_the_gateway_counts_each_request_at_its_replica(load: Load) -> None:
    attempts = load.gateway.by("orchestrate_gateway_attempts_total", "outcome")
    gone = load.count("cancelled")
    assert attempts == {("answered",): len(SCRIPT) - gone, ("disconnected",): gone}
    by_replica = load.gateway.by("orchestrate_gateway_attempts_total", "replica")
    first, second = by_replica.values()
    assert abs(first - second) <= 1
    assert load.gateway.by("orchestrate_gateway_retries_total")[()] == 0
    assert load.gateway.by("orchestrate_gateway_seconds_count")[()] == len(SCRIPT)
    assert set(load.gateway.by("orchestrate_gateway_open_requests").values()) == {0}


def test_the_engines_report_their_steps_and_an_empty_queue(load: Load) -> None:
    assert load.added.by("orchestrate_steps_total")[()] > 0
    planned_s = load.added.by("orchestrate_plan_seconds_total")[()]
    assert 0 < planned_s < load.added.by("orchestrate_step_seconds_total")[()]
    queue = load.replicas.by("orchestrate_queue_requests", "kind", "state")
    assert len(queue) == 4 * 3
    assert set(queue.values()) == {0}


def expressions() -> Iterator[Any]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            name = f"{panel['title']}, {target['legendFormat']}"
            yield pytest.param(target["expr"], id=name)


@pytest.mark.parametrize("expression", list(expressions()))
def test_each_query_of_the_dashboard_has_data(load: Load, expression: str) -> None:
    assert missing(expression, Page(load.replicas | load.gateway)) == []


@pytest.mark.parametrize(
    "expression",
    [
        "rate(orchestrate_promise_total[5m])",
        'orchestrate_promises_total{outcome="keept"}',
        'orchestrate_promises_total{instance=~".*", replica="a"}',
        "sum by (model) (rate(orchestrate_promises_total[5m]))",
    ],
)
def test_a_query_of_what_no_page_has_is_noticed(load: Load, expression: str) -> None:
    assert missing(expression, Page(load.replicas | load.gateway))


def parents(spans: list[SeenSpan], *names: str) -> list[SeenSpan]:
    """The spans of these names, each of which is the only child of the one before."""
    found = [span for span in spans if span.name in names]
    found.sort(key=lambda span: names.index(span.name))
    assert [span.name for span in found] == list(names)
    assert all(child.parent_id == parent.span_id for parent, child in pairwise(found))
    return found


async def ask_traced(fleet: Fleet, client: Client, trace_id: str) -> int:
    headers = {"traceparent": traceparent(trace_id, "cd" * 8)}
    async with httpx.AsyncClient(base_url=fleet.url, trust_env=False, timeout=LIMIT_S) as http:
        return (await http.post(CHAT, json=client.body(), headers=headers)).status_code


async def test_the_spans_of_a_request_are_under_its_caller_s_trace(fleet: Fleet) -> None:
    trace_id = "a1" * 16
    assert await ask_traced(fleet, Client(deadline("ann")), trace_id) == 200
    spans = await asyncio.to_thread(fleet.collector.wait_for, trace_id, "gateway", "generate")
    gateway, attempt, request = parents(spans, "gateway", "attempt", "generate")
    assert gateway.parent_id == "cd" * 8
    assert attempt.attributes["orchestrate.replica"] in fleet.replica_urls
    assert 0 <= attempt.attributes["orchestrate.gateway_s"] < DEADLINE_S
    assert request.attributes["orchestrate.outcome"] == "completed"
    assert request.attributes["gen_ai.usage.output_tokens"] == 20
    phases = children_of(request.span_id, spans)
    assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
    assert all(before.end_ns == after.start_ns for before, after in pairwise(phases))
    assert gateway.start_ns <= attempt.start_ns <= request.start_ns == phases[0].start_ns
    assert phases[-1].end_ns <= request.end_ns <= gateway.end_ns
    assert all(phase.end_ns > phase.start_ns for phase in phases[1:])


async def test_the_spans_of_a_dropped_request_have_failed(fleet: Fleet) -> None:
    trace_id = "b2" * 16
    dropped = Client(deadline("bob", 0.02, slo_on_late="drop"), tokens=1000)
    assert await ask_traced(fleet, dropped, trace_id) == 504
    spans = await asyncio.to_thread(fleet.collector.wait_for, trace_id, "gateway", "generate")
    gateway, attempt, request = parents(spans, "gateway", "attempt", "generate")
    assert request.attributes["orchestrate.outcome"] == "dropped"
    assert (request.has_failed, attempt.has_failed, gateway.has_failed) == (True, False, True)
    assert gateway.attributes["http.response.status_code"] == 504
    queue, *_ = children_of(request.span_id, spans)
    assert queue.name == "queue"
    assert request.start_ns == queue.start_ns <= queue.end_ns <= request.end_ns


def body(tokens: int, *, stream: bool) -> dict[str, Any]:
    tags = {"slo_kind": "deadline", "slo_deadline_s": DEADLINE_S, "slo_user": USER}
    return {
        "model": "random",
        "messages": [{"role": "user", "content": "Name a book."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
        "vllm_xargs": tags,
    }


async def stream(client: httpx.AsyncClient) -> tuple[float, list[str]]:
    """The end of a stream by the monotonic clock, and its events."""
    content = body(1500, stream=True)
    async with client.stream("POST", "/v1/chat/completions", json=content) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines()]
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return time.monotonic(), events


async def call(client: httpx.AsyncClient, tokens: int) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=body(tokens, stream=False))


async def open_at(client: httpx.AsyncClient, url: str) -> int:
    replicas = (await client.get("/orchestrate/replicas")).json()["replicas"]
    [count] = [each["num_open"] for each in replicas if each["url"] == url]
    return int(count)


async def test_a_replica_killed_at_work_loses_its_streams_within_a_second_and_no_call(
    fleet: Fleet,
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        httpx.AsyncClient(base_url=fleet.url, trust_env=False, timeout=LIMIT_S) as client,
    ):
        streams = [asyncio.create_task(stream(client)) for _ in range(NUM_STREAMS)]
        await asyncio.sleep(WORKING_S / 2)
        calls = [asyncio.create_task(call(client, 700)) for _ in range(NUM_CALLS)]
        await asyncio.sleep(WORKING_S)
        num_open = await open_at(client, fleet.dying_url)
        assert 10 <= num_open <= 18  # of 28
        assert not any(task.done() for task in [*streams, *calls])
        killed_s = time.monotonic()
        await asyncio.to_thread(kill_if_running, fleet.dying)
        later = [asyncio.create_task(call(client, 8)) for _ in range(6)]
        assert [answer.status_code for answer in await asyncio.gather(*later)] == [200] * 6
        ends = await asyncio.gather(*streams)
        answers = await asyncio.gather(*calls)

    broken = [(end_s, events) for end_s, events in ends if "error" in events[-2]]
    assert 2 <= len(broken) <= 6
    for end_s, events in broken:
        assert end_s - killed_s < 1.0
        error = json.loads(events[-2])["error"]
        assert (error["code"], events[-1]) == (502, "[DONE]")
    for _, events in ends:
        assert events[-1] == "[DONE]"
        assert all("choices" in json.loads(each) for each in events[:-2])

    assert [answer.status_code for answer in answers] == [200] * NUM_CALLS
    for answer in answers:
        assert answer.json()["usage"]["completion_tokens"] == 700
    ours = [tags for tags in fleet.living.tags() if tags.get("slo_user") == USER]
    left_s = sorted(tags["slo_deadline_s"] for tags in ours)
    again = [each for each in left_s if each < DEADLINE_S - WORKING_S / 2]
    assert len(again) == num_open - len(broken)
    assert all(each > DEADLINE_S - 30 for each in again)
    assert all(each > DEADLINE_S - 1.0 for each in left_s[len(again) :])
