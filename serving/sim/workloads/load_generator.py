"""What is offered to an engine at a load: warm-up, counted programs, and what keeps it busy after.

Programs go on arriving after the measured window, as otherwise its last programs would have an
emptying machine to themselves, until the fate of every counted program is decided.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serving.sim.metrics.goodput import stream_end_s
from serving.sim.programs.programs import Program
from serving.sim.workloads.arrivals import ARRIVALS
from serving.sim.workloads.trace_files import MOST_ANSWER_TOKENS, LongestCall, Trace, read_trace
from serving.sim.workloads.trace_order import TraceOrder, order_of, trace_timing_of
from serving.sim.workloads.trace_rescaling import TraceTiming
from serving.sim.workloads.workloads import WORKLOADS, generate
from serving.slo import SloKind
from serving.workload_errors import InvalidWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where programs come from: a generator by its name, or a trace file.

    Attributes:
        name: of the generator, or the trace file's without its suffix; always text.
        trace: the file; None: a generator.
        digest: of the file's content, which is what every run reads; "" for a generator.
        longest: the file's longest call; None for a generator.
        holds_requests: whether the file holds single requests, of which no text is known.
    """

    name: str
    trace: Path | None = None
    digest: str = ""
    longest: LongestCall | None = None
    holds_requests: bool = False

    @classmethod
    def generator(cls, name: str) -> Source:
        """One of WORKLOADS; raises InvalidWorkload for any other name."""
        if name not in WORKLOADS:
            raise InvalidWorkload("workload", name, f"unknown; known: {', '.join(WORKLOADS)}")
        return cls(name=name)

    @classmethod
    def file(cls, path: Path) -> Source:
        """A trace file; raises TraceMissing or BadTrace as read_trace does."""
        found = read_trace(path)
        return cls(
            name=_text(path.stem),
            trace=path.absolute(),
            digest=found.digest,
            longest=found.longest,
            holds_requests=bool(found.requests),
        )

    @property
    def max_tokens(self) -> int:
        """Every caller's limit on an answer, which policies see; no answer is longer."""
        return WORKLOADS[self.name].max_tokens if self.trace is None else MOST_ANSWER_TOKENS

    @property
    def file_name(self) -> str | None:
        """The trace file's with its suffix, as text; None for a generator."""
        return None if self.trace is None else _text(self.trace.name)

    def key(self) -> dict[str, Any]:
        """What its programs depend on: JSON-safe, and the same wherever the file lies, whatever
        it is called."""
        return {"name": self.name if self.trace is None else "", "digest": self.digest}

    def read(self) -> Trace:
        """What the trace file holds; raises as read_trace, and where it is no longer the same."""
        assert self.trace is not None, "a generator has no file"
        return read_trace(self.trace, digest=self.digest)

    def check_room(self, room_tokens: int) -> None:
        """See that a machine has room for each call of a trace, whether it is ever drawn or not.

        Raises:
            InvalidWorkload: it has not.
        """
        longest = self.longest
        if longest is None or longest.tokens <= room_tokens:
            return
        told = (
            f"{longest.place} asks {longest.prompt_tokens:,} prompt tokens and an answer of "
            f"{longest.output_tokens:,}, and the machine has room for {room_tokens:,} tokens: "
            "leave out of the file whatever is longer than that"
        )
        raise InvalidWorkload("trace", self._where, told)

    def check_prefixes(self) -> None:
        """See that programs can share prefixes, as with prefix caching they are meant to.

        Raises:
            InvalidWorkload: they come from single requests, which here are all of different text.
        """
        if self.holds_requests:
            told = (
                "its requests are all taken to be of different text, and hash_ids are not read: "
                "prefix caching would change nothing, leave --prefix-caching out"
            )
            raise InvalidWorkload("trace", self._where, told)

    def head(self, trace_timing: TraceTiming, rate_per_s: float, to_s: float) -> tuple[int, float]:
        """As Rhythm.head, of this trace's times; raises InvalidWorkload, which names the file."""
        try:
            return trace_timing.head(rate_per_s, to_s)
        except InvalidWorkload as cause:
            told = f"{cause.args[2]}, with --arrivals"
            raise InvalidWorkload("trace", self._where, told) from cause

    @property
    def _where(self) -> str:
        return _text(str(self.trace))


def _text(file_name: str) -> str:
    """A file's name, which may be any bytes, as text that everything can print and encode."""
    return os.fsencode(file_name).decode("utf-8", "replace")


class GeneratedLoad(NamedTuple):
    """A run's programs.

    Attributes:
        programs: by arrival.
        window_s: (from, to): those that arrive within it count.
        decided_s: by then every counted program kept its promise or broke it.
        repeats: how often the trace had to be begun anew to have as many; 0 for a generator.
    """

    programs: tuple[Program, ...]
    window_s: tuple[float, float]
    decided_s: float
    repeats: int = 0


def check_trace_timing(
    source: Source, *, rate_per_s: float, num_seeds: int, until_s: float
) -> None:
    """See that a trace's own times serve every seed at this rate, and thus at any higher one.

    Args:
        until_s: warm-up and window.
    Raises:
        InvalidWorkload: for a seed they do not; name a process of arrivals.
        TraceMissing, BadTrace: as Source.read.
    """
    trace = source.read()
    for seed in range(num_seeds if trace.requests else 0):
        source.head(trace_timing_of(trace, seed=seed), rate_per_s, until_s)


def generate_load(
    source: Source,
    *,
    rate_per_s: float,
    seed: int,
    warmup_s: float,
    window_s: float,
    arrivals: str | None = None,
    slo_scale: float = 1.0,
) -> GeneratedLoad:
    """Programs that arrive at a mean rate over the warm-up and the window, and then go on.

    A trace's requests come in its own rhythm, its clock changed so that the rate is met over
    warm-up and window; a seed begins somewhere in the file, and after its end it begins anew.
    Each time that a request comes its kind is drawn, latency or deadline (no trace tells them).
    Workflows hold no times, and come as a Poisson process in a random order.

    Args:
        warmup_s: before the window; at least 0.
        window_s: its length.
        arrivals: one of ARRIVALS; None: a trace's own where it has them, else Poisson. After the
            window, "burst" goes on as Poisson arrivals.
    Raises:
        InvalidWorkload: a value is out of range, or the trace's times have no rhythm.
        TraceMissing, BadTrace: as Source.read.
    """
    if arrivals is not None and arrivals not in ARRIVALS:
        raise InvalidWorkload("arrivals", arrivals, f"unknown; known: {', '.join(ARRIVALS)}")
    counted_until_s = warmup_s + window_s
    drawn: Callable[[Sequence[float]], tuple[Program, ...]]
    if source.trace is None:

        def drawn(times_s: Sequence[float]) -> tuple[Program, ...]:
            return generate(
                source.name,
                rate_per_s=rate_per_s,
                window_s=float("inf"),
                seed=seed,
                arrivals=times_s,
                slo_scale=slo_scale,
            )

        num_known = 0
    else:
        order = order_of(source.read(), seed=seed, slo_scale=slo_scale)
        num_known, drawn = len(order.programs), order.taken
        if arrivals is None and order.trace_timing is not None:
            return _with_own_timing(source, order, rate_per_s, (warmup_s, counted_until_s))
    head_s = _process(arrivals or "poisson", seed, rate_per_s, counted_until_s)
    decided_s = _decided_s(drawn(head_s), (warmup_s, counted_until_s))
    after = "poisson" if arrivals in (None, "burst") else arrivals
    tail_s = _process(after, seed, rate_per_s, decided_s - counted_until_s, b"after the window")
    programs = drawn([*head_s, *(counted_until_s + time_s for time_s in tail_s)])
    repeats = len(programs) // num_known if num_known else 0
    return GeneratedLoad(programs, (warmup_s, counted_until_s), decided_s, repeats)


def backlog(source: Source, *, num_programs: int, seed: int) -> tuple[Program, ...]:
    """Programs that all wait from the start on, and are promised nothing: none may be dropped."""
    if source.trace is None:
        times_s = [0.0] * num_programs
        programs = generate(source.name, rate_per_s=1.0, window_s=1.0, seed=seed, arrivals=times_s)
    else:
        programs = order_of(source.read(), seed=seed).taken([0.0] * num_programs)
    return tuple(
        replace(program, kind=SloKind.BEST_EFFORT, deadline_s=None) for program in programs
    )


def outcome_known_s(program: Program) -> float:
    """When it is decided at the latest, absolute, whether a program keeps its promise.

    A latency program must have ended by its stream's end; best effort is promised nothing.
    """
    if program.deadline_s is not None:
        return program.arrival_s + program.deadline_s
    if program.kind is SloKind.LATENCY:
        return stream_end_s(
            start_s=program.arrival_s,
            ttft_s=program.ttft_s,
            tbt_s=program.tbt_s,
            output_tokens=program.output_tokens,
        )
    return program.arrival_s


def _decided_s(programs: Sequence[Program], window_s: tuple[float, float]) -> float:
    from_s, to_s = window_s
    counted = [
        outcome_known_s(program) for program in programs if from_s <= program.arrival_s < to_s
    ]
    return max([to_s, *counted])


def _process(
    name: str, seed: int, rate_per_s: float, window_s: float, which: bytes = b"arrivals"
) -> list[float]:
    if window_s == 0:
        return []
    rng = np.random.default_rng([seed, zlib.crc32(which)])
    times: list[float] = ARRIVALS[name](rng, rate_per_s=rate_per_s, window_s=window_s).tolist()
    return times


def _with_own_timing(
    source: Source, order: TraceOrder, rate_per_s: float, window_s: tuple[float, float]
) -> GeneratedLoad:
    assert order.trace_timing is not None, "only requests have times"
    trace_timing, count, to_s = order.trace_timing, len(order.programs), window_s[1]
    num_head, scale = source.head(trace_timing, rate_per_s, to_s)

    def until(end_s: float, most: int) -> list[float]:
        scaled = (trace_timing.own_s(place) * scale for place in range(most))
        return list(takewhile(lambda time_s: time_s < end_s, scaled))

    decided_s = _decided_s(order.taken(until(to_s, num_head)), window_s)
    most = num_head + count * (2 + int((decided_s - to_s) / (trace_timing.lap_s * scale)))
    programs = order.taken(until(decided_s, most))
    return GeneratedLoad(programs, window_s, decided_s, len(programs) // count)
