"""The load of a run: programs of the warm-up, of the measured window, and of the time after it.

Programs keep arriving after the window until every counted program has met or missed its SLO.
Otherwise the last counted programs would run on a machine that empties.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serving.goodput import stream_end_s
from serving.sim.programs.programs import Program
from serving.sim.workloads.arrivals import ARRIVALS, IN_A_WINDOW
from serving.sim.workloads.tasks import BACKLOG_PROGRAMS
from serving.sim.workloads.trace_files import MAX_ANSWER_TOKENS, LongestCall, Trace, read_trace
from serving.sim.workloads.trace_order import TraceOrder, trace_order, trace_timing
from serving.sim.workloads.trace_rescaling import TraceTiming
from serving.sim.workloads.workloads import WORKLOADS, generate
from serving.slo import SloKind
from serving.workload_errors import InvalidWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source of programs: a generator or a trace file.

    Attributes:
        name: of the generator, or of the trace file without its suffix; valid Unicode.
        trace: the file; None: a generator.
        digest: of the file's content, which must not change between runs; "" for a generator.
        longest: the file's longest call; None for a generator.
        holds_requests: whether the file holds single requests, which have prompts of unknown text.
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
        """A trace file; raises TraceMissing or BadTrace like read_trace."""
        trace = read_trace(path)
        return cls(
            name=_unicode(path.stem),
            trace=path.absolute(),
            digest=trace.digest,
            longest=trace.longest,
            holds_requests=bool(trace.requests),
        )

    @property
    def max_tokens(self) -> int:
        """The max_tokens of every call, which policies see; no answer is longer."""
        return WORKLOADS[self.name].max_tokens if self.trace is None else MAX_ANSWER_TOKENS

    @property
    def arrivals(self) -> str:
        """One of ARRIVALS: how its programs arrive unless another process is asked for.

        Requests of a trace have their own times instead.
        """
        return WORKLOADS[self.name].arrivals if self.trace is None else "poisson"

    @property
    def backlog_programs(self) -> int:
        """Programs of the backlog on which its capacity is measured."""
        return WORKLOADS[self.name].backlog_programs if self.trace is None else BACKLOG_PROGRAMS

    @property
    def file_name(self) -> str | None:
        """The trace file's name with its suffix, valid Unicode; None for a generator."""
        return None if self.trace is None else _unicode(self.trace.name)

    def key(self) -> dict[str, Any]:
        """The cache key; JSON-safe, and independent of the trace file's name and folder."""
        return {"name": self.name if self.trace is None else "", "digest": self.digest}

    def read(self) -> Trace:
        """Read the trace file again; raises like read_trace, also if its content has changed."""
        assert self.trace is not None, "a generator has no file"
        return read_trace(self.trace, digest=self.digest)

    def check_fits(self, kv_tokens: int) -> None:
        """Check that a machine's KV cache can hold each call of a trace, drawn or not.

        Raises:
            InvalidWorkload: it cannot.
        """
        longest = self.longest
        if longest is None or longest.tokens <= kv_tokens:
            return
        reason = (
            f"{longest.place} has {longest.prompt_tokens:,} prompt tokens and an answer of "
            f"{longest.output_tokens:,}, and the machine's KV cache holds {kv_tokens:,} tokens: "
            "remove longer calls from the file"
        )
        raise InvalidWorkload("trace", self._path_text, reason)

    def check_prefixes(self) -> None:
        """Check that the source's programs can share prefixes, as prefix caching requires.

        Raises:
            InvalidWorkload: the source holds single requests, which share no text.
        """
        if self.holds_requests:
            reason = (
                "its requests are assumed to share no text, as hash_ids are not read: prefix "
                "caching would change nothing, leave --prefix-caching out"
            )
            raise InvalidWorkload("trace", self._path_text, reason)

    def fit_rate(self, timing: TraceTiming, rate_per_s: float, until_s: float) -> tuple[int, float]:
        """TraceTiming.fit_rate of this trace's times; its InvalidWorkload names the file."""
        try:
            return timing.fit_rate(rate_per_s, until_s)
        except InvalidWorkload as cause:
            reason = f"{cause.args[2]}, with --arrivals"
            raise InvalidWorkload("trace", self._path_text, reason) from cause

    @property
    def _path_text(self) -> str:
        return _unicode(str(self.trace))


def _unicode(file_name: str) -> str:
    """A file name, which may be any bytes, as Unicode that can be printed and encoded."""
    return os.fsencode(file_name).decode("utf-8", "replace")


class GeneratedLoad(NamedTuple):
    """A run's programs.

    Attributes:
        programs: by arrival.
        window_s: (from, to): programs that arrive within it count.
        decided_s: by then every counted program has met or missed its SLO.
        repeats: how often the trace was restarted from its beginning; 0 for a generator.
    """

    programs: tuple[Program, ...]
    window_s: tuple[float, float]
    decided_s: float
    repeats: int = 0


def check_trace_timing(
    source: Source, *, rate_per_s: float, seeds: Sequence[int], until_s: float
) -> None:
    """Check that a trace's own times can be scaled to this rate, and so to higher ones.

    Args:
        until_s: length of warm-up and window.
    Raises:
        InvalidWorkload: they cannot for one of the seeds; an arrival process is needed.
        TraceMissing, BadTrace: as Source.read.
    """
    trace = source.read()
    for seed in seeds if trace.requests else ():
        source.fit_rate(trace_timing(trace, seed=seed), rate_per_s, until_s)


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
    """Programs that arrive at a mean rate over warm-up and window, and keep arriving afterwards.

    A trace's requests keep its own arrival times, scaled to the rate over warm-up and window. Each
    seed starts at another place of the file; after the end the file repeats. The kind of a request,
    latency or deadline, is drawn each time that it arrives (traces do not have it). Workflows have
    no times; they arrive as a Poisson process in random order.

    Args:
        warmup_s: length of the warm-up before the window; at least 0.
        window_s: length of the window.
        arrivals: one of ARRIVALS; None: the trace's own times if it has any, else
            Source.arrivals. After the window those IN_A_WINDOW continue as Poisson arrivals.
    Raises:
        InvalidWorkload: a value is out of range, or the trace's times cannot be scaled.
        TraceMissing, BadTrace: as Source.read.
    """
    if arrivals is not None and arrivals not in ARRIVALS:
        raise InvalidWorkload("arrivals", arrivals, f"unknown; known: {', '.join(ARRIVALS)}")
    window_end_s = warmup_s + window_s
    programs_at: Callable[[Sequence[float]], tuple[Program, ...]]
    if source.trace is None:

        def programs_at(times_s: Sequence[float]) -> tuple[Program, ...]:
            return _programs_at(source, times_s, seed=seed, slo_scale=slo_scale)

        num_trace_programs = 0
    else:
        order = trace_order(source.read(), seed=seed, slo_scale=slo_scale)
        num_trace_programs, programs_at = len(order.programs), order.programs_at
        if arrivals is None and order.timing is not None:
            return _with_own_timing(source, order, rate_per_s, (warmup_s, window_end_s))
    process = arrivals or source.arrivals
    head_s = _process(process, seed, rate_per_s, window_end_s)
    decided_s = _decided_s(programs_at(head_s), (warmup_s, window_end_s))
    after = "poisson" if process in IN_A_WINDOW else process
    tail_s = _process(after, seed, rate_per_s, decided_s - window_end_s, b"after the window")
    programs = programs_at([*head_s, *(window_end_s + time_s for time_s in tail_s)])
    repeats = len(programs) // num_trace_programs if num_trace_programs else 0
    return GeneratedLoad(programs, (warmup_s, window_end_s), decided_s, repeats)


def backlog(source: Source, *, num_programs: int, seed: int) -> tuple[Program, ...]:
    """Programs without an SLO that all arrive at time 0, so that none may be dropped."""
    return tuple(
        program.without_slo() for program in _programs_at(source, [0.0] * num_programs, seed=seed)
    )


def poisson_programs(
    source: Source, *, num_programs: int, rate_per_s: float, seed: int, slo_scale: float = 1.0
) -> tuple[Program, ...]:
    """A number of programs that arrive as a Poisson process."""
    gaps_s = np.random.default_rng([seed, zlib.crc32(b"gaps")]).exponential(
        1.0 / rate_per_s, num_programs
    )
    times_s: list[float] = np.cumsum(gaps_s).tolist()
    return _programs_at(source, times_s, seed=seed, slo_scale=slo_scale)


def _programs_at(
    source: Source, times_s: Sequence[float], *, seed: int, slo_scale: float = 1.0
) -> tuple[Program, ...]:
    if source.trace is not None:
        order = trace_order(source.read(), seed=seed, slo_scale=slo_scale)
        return order.programs_at(times_s)
    return generate(
        source.name,
        rate_per_s=1.0,
        window_s=float("inf"),
        seed=seed,
        arrivals=times_s,
        slo_scale=slo_scale,
    )


def outcome_known_s(program: Program) -> float:
    """The absolute time by which a program has met or missed its SLO.

    A latency program by `stream_end_s`; a best-effort program, which has no SLO, at its arrival.
    """
    last = program.stages[-1].calls[-1]
    then_s = (program.then_tbt_s or 0.0) * (last.output_tokens - last.whole_tokens)
    if program.deadline_s is not None:
        return program.arrival_s + program.deadline_s + then_s
    if program.kind is SloKind.LATENCY:
        ends_s = stream_end_s(
            start_s=program.arrival_s,
            ttft_s=program.ttft_s,
            tbt_s=program.tbt_s,
            output_tokens=last.whole_tokens,
        )
        return ends_s + then_s
    return program.arrival_s


def _decided_s(programs: Sequence[Program], window_s: tuple[float, float]) -> float:
    """When all programs of the window are decided; not before its end."""
    from_s, to_s = window_s
    counted = [
        outcome_known_s(program) for program in programs if from_s <= program.arrival_s < to_s
    ]
    return max([to_s, *counted])


def _process(
    name: str, seed: int, rate_per_s: float, window_s: float, stream: bytes = b"arrivals"
) -> list[float]:
    """Arrival times of a process; `stream` separates the random numbers of one seed."""
    if window_s == 0:
        return []
    rng = np.random.default_rng([seed, zlib.crc32(stream)])
    times: list[float] = ARRIVALS[name](rng, rate_per_s=rate_per_s, window_s=window_s).tolist()
    return times


def _with_own_timing(
    source: Source, order: TraceOrder, rate_per_s: float, window_s: tuple[float, float]
) -> GeneratedLoad:
    assert order.timing is not None, "only traces of requests have times"
    timing, count, to_s = order.timing, len(order.programs), window_s[1]
    num_head, scale = source.fit_rate(timing, rate_per_s, to_s)

    def times_until(end_s: float, limit: int) -> list[float]:
        times_s = (timing.arrival_s(index) * scale for index in range(limit))
        return list(takewhile(lambda time_s: time_s < end_s, times_s))

    decided_s = _decided_s(order.programs_at(times_until(to_s, num_head)), window_s)
    limit = num_head + count * (2 + int((decided_s - to_s) / (timing.period_s * scale)))
    programs = order.programs_at(times_until(decided_s, limit))
    return GeneratedLoad(programs, window_s, decided_s, len(programs) // count)
