"""Replicas and requests with neutral defaults, so that a test sets only the values that matter."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.router.snapshot import (
    OpenRequest,
    ReplicaSnapshot,
    RoutedRequest,
    Speed,
    snapshot_of,
)
from serving.slo import Slo, SloKind
from tests.strategies import examples

law = settings(deadline=None, max_examples=examples(40))

SPEED = Speed(prefill_token_s=0.001, decode_token_s=0.002, token_s=0.004)


class Report:
    """The report of a replica with 1,000 KV blocks."""

    def __init__(self, *, free_kv_blocks: int = 1000, speed: Speed = SPEED) -> None:
        self.speed = speed
        self.slots = 8
        self.kv_blocks = 1000
        self.free_kv_blocks = free_kv_blocks
        self.block_tokens = 16


def exactly(tokens: float) -> LengthSketch:
    return LengthSketch((tokens,) * len(LENGTH_LEVELS))


def due_in(deadline_s: float, output_tokens: float = 100) -> Slo:
    return Slo(kind=SloKind.DEADLINE, deadline_s=deadline_s, length=exactly(output_tokens))


def stream(ttft_s: float, tbt_s: float, output_tokens: float = 100) -> Slo:
    return Slo(kind=SloKind.LATENCY, ttft_s=ttft_s, tbt_s=tbt_s, length=exactly(output_tokens))


def request(slo: Slo | None = None, **changes: Any) -> RoutedRequest:
    """100 prompt tokens and, by default, an answer of 100 tokens due in 10 s."""
    return RoutedRequest(
        request_id="r", number=0, prompt_tokens=100, max_tokens=4096, slo=slo or due_in(10.0)
    )._replace(**changes)


def busy(replica: str, *requests: RoutedRequest, **changes: Any) -> ReplicaSnapshot:
    """The snapshot of a replica at which these requests have just arrived."""
    waiting = [OpenRequest(each, 0.0, 0, running=False) for each in requests]
    return snapshot_of(replica, Report(), waiting)._replace(**changes)


@st.composite
def slos(draw: st.DrawFn) -> Slo:
    kind = draw(st.sampled_from(SloKind))
    length = draw(st.none() | st.builds(exactly, st.integers(1, 2000)))
    has_deadline = kind in (SloKind.DEADLINE, SloKind.COMPOUND)
    return Slo(
        kind=kind,
        deadline_s=draw(st.floats(0.01, 300.0)) if has_deadline else None,
        ttft_s=draw(st.floats(0.1, 10.0)),
        tbt_s=draw(st.floats(0.01, 1.0)),
        length=length,
    )


@st.composite
def requests(draw: st.DrawFn) -> RoutedRequest:
    return RoutedRequest(
        request_id=draw(st.text("abc/0", min_size=1, max_size=4)),
        number=draw(st.integers(0, 99)),
        prompt_tokens=draw(st.integers(1, 5000)),
        max_tokens=draw(st.integers(1, 4096)),
        slo=draw(slos()),
        prefix=draw(st.sampled_from(["", "p"])),
        prefix_tokens=draw(st.integers(0, 500)),
    )


@st.composite
def fleets(draw: st.DrawFn) -> tuple[ReplicaSnapshot, ...]:
    """One to five replicas of any load and speed."""
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5, unique=True))
    return tuple(draw(_replica(name)) for name in names)


@st.composite
def _replica(draw: st.DrawFn, name: str) -> ReplicaSnapshot:
    open_requests = [
        OpenRequest(each, draw(st.floats(0.0, 20.0)), draw(st.integers(0, 50)), running=True)
        for each in draw(st.lists(requests(), max_size=4))
    ]
    factor = draw(st.sampled_from([0.5, 1.0, 3.0]))
    report = Report(speed=Speed(*(factor * part for part in SPEED)))
    return snapshot_of(name, report, open_requests, prefix_tokens={"p": draw(st.integers(0, 900))})
