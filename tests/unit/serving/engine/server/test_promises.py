"""Counters of promises: what became of a request, as its client saw it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from serving.engine.server.promises import NUM_USERS, OTHER_USERS, PromiseCounters
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.slo import Slo, SloKind


class Server:
    """Counters on a clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.registry = CollectorRegistry()
        self.counters = PromiseCounters(self.registry, clock=lambda: self.now_s)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"orchestrate_{name}", labels)

    def slack_between_s(self, low_s: float, high_s: float, kind: str = "deadline") -> bool:
        """Whether one request ended, with a slack above one of the limits and at most the next."""
        below, within = (
            self.value("slack_seconds_bucket", kind=kind, le=str(limit))
            for limit in (low_s, high_s)
        )
        return (below, within) == (0, 1)

    def outcomes(self) -> dict[tuple[str, str], float]:
        """(kind, outcome) -> requests."""
        return {
            (sample.labels["kind"], sample.labels["outcome"]): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == "orchestrate_promises_total"
        }


@pytest.fixture
def server() -> Server:
    return Server()


def output(*token_counts: int, prompt_tokens: int = 7) -> Any:
    """One output of vLLM: this many tokens in each of its answers."""
    answers = [
        SimpleNamespace(index=index, token_ids=[0] * count)
        for index, count in enumerate(token_counts)
    ]
    return SimpleNamespace(prompt_token_ids=[0] * prompt_tokens, outputs=answers, metrics=None)


def deadline(deadline_s: float = 5.0, **more: Any) -> Slo:
    return Slo(kind=SloKind.DEADLINE, deadline_s=deadline_s, **more)


def test_an_answer_by_its_deadline_is_kept_with_all_its_tokens(server: Server) -> None:
    with server.counters.follow(deadline(user="ann")) as promise:
        server.now_s += 3.0
        promise.observe(output(20), is_delta=False)
        promise.end("completed")
    assert server.outcomes() == {("deadline", "kept"): 1}
    assert server.value("promises_made_total", kind="deadline", user="ann") == 1
    assert server.value("goodput_tokens_total", kind="deadline", user="ann") == 27
    assert server.slack_between_s(1.0, 2.0)


def test_a_late_answer_is_missed_and_has_negative_slack(server: Server) -> None:
    with server.counters.follow(deadline()) as promise:
        promise.observe(output(20), is_delta=False)
        server.now_s += 6.0
        promise.end("completed")
    assert server.outcomes() == {("deadline", "missed"): 1}
    assert server.value("goodput_tokens_total", kind="deadline", user="") == 0
    assert server.slack_between_s(-2.0, -1.0)


def test_a_call_of_a_program_is_kept_by_the_deadline_of_the_program(server: Server) -> None:
    slo = Slo(kind=SloKind.COMPOUND, deadline_s=1.0, final_s=10.0, program="p")
    with server.counters.follow(slo) as promise:
        server.now_s += 4.0
        promise.observe(output(3), is_delta=False)
        promise.end("completed")
    assert server.outcomes() == {("compound", "kept"): 1}
    assert server.slack_between_s(5.0, 10.0, kind="compound")


@pytest.mark.parametrize("is_delta", [True, False])
def test_the_tokens_of_a_stream_count_each_by_its_own_time(server: Server, is_delta: bool) -> None:
    slo = Slo(kind=SloKind.LATENCY, ttft_s=1.0, tbt_s=0.1)
    with server.counters.follow(slo) as promise:
        for number in range(10):
            server.now_s += 1.05 if number == 5 else 0.1
            promise.observe(output(1 if is_delta else number + 1), is_delta=is_delta)
        promise.end("completed")
    # Token i at 0.1 * (i + 1), from the sixth on 0.95 later; due at 1 + 0.1 * i.
    assert server.value("goodput_tokens_total", kind="latency", user="") == 5
    assert server.outcomes() == {("latency", "missed"): 1}


def test_several_answers_of_one_request_are_one_promise(server: Server) -> None:
    with server.counters.follow(deadline()) as promise:
        promise.observe(output(4, 6), is_delta=False)
        promise.end("completed")
    assert server.outcomes() == {("deadline", "kept"): 1}
    assert server.value("goodput_tokens_total", kind="deadline", user="") == 7 + 4 + 6


def test_an_answer_without_a_token_ends_too(server: Server) -> None:
    with server.counters.follow(deadline()) as promise:
        promise.observe(output(0), is_delta=False)
        promise.end("completed")
    assert server.outcomes() == {("deadline", "kept"): 1}


def test_how_it_ended_is_said_by_the_block_or_by_how_it_is_left(server: Server) -> None:
    def fail(error: BaseException, *, dropped: bool = False) -> None:
        with server.counters.follow(deadline()) as promise:
            if dropped:
                promise.end("dropped")
            raise error

    with pytest.raises(KeyError):
        fail(KeyError(), dropped=True)
    with pytest.raises(KeyError):
        fail(KeyError())
    with pytest.raises(asyncio.CancelledError):
        fail(asyncio.CancelledError())
    with server.counters.follow(deadline()):
        pass
    assert server.outcomes() == {
        ("deadline", "dropped"): 1,
        ("deadline", "failed"): 1,
        ("deadline", "cancelled"): 2,
    }
    assert server.value("slack_seconds_count", kind="deadline") is None


def test_tokens_that_a_stream_delivered_in_time_count_though_it_was_dropped_later(
    server: Server,
) -> None:
    slo = Slo(kind=SloKind.LATENCY, ttft_s=1.0, tbt_s=0.1)
    with server.counters.follow(slo) as promise:
        promise.observe(output(1), is_delta=True)
        promise.observe(output(1), is_delta=True)
        promise.end("dropped")
    assert server.value("goodput_tokens_total", kind="latency", user="") == 2


def test_best_effort_promises_nothing(server: Server) -> None:
    with server.counters.follow(Slo()) as promise:
        promise.observe(output(3), is_delta=True)
        promise.end("completed")
    assert server.outcomes() == {}


def test_the_predicted_length_of_an_answer_over_its_length(server: Server) -> None:
    sketch = LengthSketch((10.0,) * len(LENGTH_LEVELS))
    with server.counters.follow(deadline(length=sketch)) as promise:
        promise.observe(output(15), is_delta=False)
        promise.end("completed")
    assert server.value("predicted_length_ratio_sum", kind="deadline") == pytest.approx(10 / 15)


def test_more_users_than_a_limit_share_one_label(server: Server) -> None:
    for number in range(NUM_USERS + 3):
        with server.counters.follow(deadline(user=f"u{number}")):
            pass
    with server.counters.follow(deadline(user="u0")):
        pass
    assert server.value("promises_made_total", kind="deadline", user="u0") == 2
    assert server.value("promises_made_total", kind="deadline", user=OTHER_USERS) == 3


@pytest.mark.parametrize("is_delta", [True, False])
def test_the_second_part_of_an_answer_begins_after_its_token(
    server: Server, is_delta: bool
) -> None:
    slo = deadline(5.0, then_token=8, then_tbt_s=1.0)
    with server.counters.follow(slo) as promise:
        seen: list[int] = []
        for now_s, new in (
            (101.0, [1, 2]),
            (104.0, [3, 8]),
            (105.0, [4]),
            (106.0, [5]),
            (108.5, [6]),
        ):
            server.now_s = now_s
            seen = new if is_delta else seen + new
            answer = SimpleNamespace(index=0, token_ids=seen)
            out = SimpleNamespace(prompt_token_ids=[0] * 7, outputs=[answer], metrics=None)
            promise.observe(out, is_delta=is_delta)
        promise.end("completed")
    assert server.outcomes() == {("deadline", "missed"): 1}  # its last token was late
    assert server.value("goodput_tokens_total", kind="deadline", user="") == 7 + 4 + 2
    assert server.slack_between_s(-1.0, -0.5)
