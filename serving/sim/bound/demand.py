"""What a program must be given, and by when, to earn goodput: a program as a few columns of an LP.

A column is a number between 0 and its most that a schedule may choose: the fraction of a program
that is served, or how many tokens of a stream are delivered in time. Needs say what one unit of a
column takes of the machine, and between which moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from serving.sim.bound.least_work import CallWork, Floats, Prices
from serving.sim.metrics.goodput import CLOCK_TOLERANCE_S, STREAM_SHARE_IN_TIME
from serving.sim.programs.programs import Program
from serving.slo import SloKind


class Column(NamedTuple):
    """What a schedule may choose.

    Attributes:
        worth: goodput of one unit.
        most: units; at most so many times the program's first column.
        steps: engine steps between release and due that one unit of it takes, one after another.
    """

    worth: float
    most: float
    steps: float


class Need(NamedTuple):
    """What one unit of a column takes between two moments.

    Attributes:
        column: index among the program's columns.
        release_s, due_s: absolute seconds.
        prefill_tokens, decode_tokens: computed by the engine.
        attention_s: seconds on top of what a token costs anywhere.
        context_tokens: of KV cache, added up over the decodes.
    """

    column: int
    release_s: float
    due_s: float
    prefill_tokens: float
    decode_tokens: float
    attention_s: float
    context_tokens: float


class Demand(NamedTuple):
    """One program; the first column is the fraction of it that is served at all.

    Attributes:
        release_s, due_s: absolute seconds between which all its needs lie.
    """

    kind: SloKind
    release_s: float
    due_s: float
    columns: tuple[Column, ...]
    needs: tuple[Need, ...]


def token_demand(
    program: Program, prices: Prices, *, observed_until_s: float, bin_s: float
) -> Demand | None:
    """What a program needs to earn tokens, as goodput.tokens counts them; None: it cannot earn.

    A stream's tokens are put together by the bins of bin_s seconds that they are due in. Any part
    of them may be delivered: the others need not even be computed.
    """
    if program.kind is not SloKind.LATENCY:
        worth = float(program.total_tokens)
        return _whole_demand(program, prices, worth, observed_until_s)
    work, due_s, early_s = _stream(program, prices, observed_until_s)
    useful = np.flatnonzero(early_s <= due_s)
    if not len(useful):
        return None
    release_s = program.arrival_s + program.stages[0].tool_s
    columns = [Column(float(useful[0] == 0), 1.0, work.prefill_steps)]
    needs = [_prefill(work, release_s, float(due_s[useful[-1]]))]
    for tokens in _by_bin(due_s, useful[useful > 0], bin_s):
        first, last = int(tokens[0]), int(tokens[-1])
        columns.append(Column(1.0, float(len(tokens)), 1.0))
        needs.append(
            Need(
                len(columns) - 1,
                release_s,
                float(due_s[last]),
                0.0,
                1.0,
                float(work.decode_s[first - 1 : last].min()),
                float(work.decode_contexts[first - 1]),
            )
        )
    return Demand(program.kind, release_s, float(due_s[useful[-1]]), tuple(columns), tuple(needs))


def request_demand(
    program: Program, prices: Prices, *, observed_until_s: float, bin_s: float
) -> Demand | None:
    """What a program needs to be met, as goodput.met judges; None: it cannot be.

    A stream needs its first token in time and STREAM_SHARE_IN_TIME of all: taken to be those due
    last, at the cost of the first ones. Its late tokens are left out.
    """
    if program.kind is not SloKind.LATENCY:
        return _whole_demand(program, prices, 1.0, observed_until_s)
    work, due_s, early_s = _stream(program, prices, observed_until_s)
    num_tokens = len(due_s)
    enough = -(-STREAM_SHARE_IN_TIME.numerator * num_tokens // STREAM_SHARE_IN_TIME.denominator)
    useful = np.flatnonzero(early_s <= due_s)
    if len(useful) < enough or useful[0] > 0 or early_s[-1] > observed_until_s:
        return None
    release_s = program.arrival_s + program.stages[0].tool_s
    needs = [_prefill(work, release_s, float(due_s[0]))]
    decoded = 0
    for tokens in _by_bin(due_s, useful[1:][-(enough - 1) :] if enough > 1 else useful[:0], bin_s):
        cheapest = slice(decoded, decoded + len(tokens))
        decoded += len(tokens)
        needs.append(
            Need(
                0,
                release_s,
                float(due_s[tokens[-1]]),
                0.0,
                float(len(tokens)),
                float(work.decode_s[cheapest].sum()),
                float(work.decode_contexts[cheapest].sum()),
            )
        )
    columns = (Column(1.0, 1.0, work.prefill_steps + decoded),)
    return Demand(program.kind, release_s, needs[-1].due_s, columns, tuple(needs))


def _whole_demand(
    program: Program, prices: Prices, worth: float, observed_until_s: float
) -> Demand | None:
    """All or nothing by the deadline: one column, one need a stage."""
    if program.deadline_s is None:
        return None
    due_s = min(program.arrival_s + program.deadline_s + CLOCK_TOLERANCE_S, observed_until_s)
    stages = prices.stages(program, due_s=due_s)
    if stages is None:
        return None
    needs = tuple(
        Need(
            0,
            stage.release_s,
            stage.due_s,
            float(sum(call.prefill_tokens for call in stage.calls)),
            float(sum(len(call.decode_s) for call in stage.calls)),
            sum(call.prefill_s + float(call.decode_s.sum()) for call in stage.calls),
            sum(float(call.decode_contexts.sum()) for call in stage.calls),
        )
        for stage in stages
    )
    column = Column(worth, 1.0, float(sum(stage.steps for stage in stages)))
    return Demand(program.kind, stages[0].release_s, due_s, (column,), needs)


def _stream(
    program: Program, prices: Prices, observed_until_s: float
) -> tuple[CallWork, Floats, Floats]:
    """The call of a latency program; when each of its tokens is due and possible, absolute."""
    stage = program.stages[0]
    work = prices.call(stage.calls[0])
    num_tokens = stage.calls[0].output_tokens
    timeline = program.arrival_s + program.ttft_s + program.tbt_s * np.arange(num_tokens)
    due_s = np.minimum(timeline + CLOCK_TOLERANCE_S, observed_until_s)
    first_s = program.arrival_s + stage.tool_s + work.prefill_alone_s
    return work, due_s, first_s + np.concatenate(([0.0], np.cumsum(work.decode_alone_s)))


def _prefill(work: CallWork, release_s: float, due_s: float) -> Need:
    return Need(0, release_s, due_s, float(work.prefill_tokens), 0.0, work.prefill_s, 0.0)


def _by_bin(due_s: Floats, tokens: np.ndarray, bin_s: float) -> Iterator[np.ndarray]:
    """Runs of tokens that are due in the same bin."""
    bins = np.floor(due_s[tokens] / bin_s)
    return iter(part for part in np.split(tokens, np.flatnonzero(np.diff(bins)) + 1) if len(part))
