"""The work that a program needs, and by when, to earn goodput: columns of a linear program.

A column is a variable between 0 and an upper limit: the served fraction of a program, or the
number of a stream's tokens that are delivered in time. A Need is the work that one unit of a
column takes, between a release time and a due time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from serving.goodput import CLOCK_TOLERANCE_S, STREAM_SHARE_IN_TIME
from serving.sim.bound.least_work import CallWork, Floats, LeastWork
from serving.sim.programs.programs import Program, Stage
from serving.slo import SloKind


class Column(NamedTuple):
    """A variable of the linear program.

    Attributes:
        value: goodput of one unit.
        upper: most units; in a stream at most `upper` times its first column.
        steps: sequential engine steps that one unit takes between release and due time.
    """

    value: float
    upper: float
    steps: float


class Need(NamedTuple):
    """The work that one unit of a column takes between two times.

    Attributes:
        column: index among the program's columns.
        release_s, due_s: absolute seconds.
        prefill_tokens, decode_tokens: computed by the engine.
        attention_s: seconds on top of the cost that every token has.
        context_tokens: tokens of KV cache that the decodes attend to, summed over the decodes.
    """

    column: int
    release_s: float
    due_s: float
    prefill_tokens: float
    decode_tokens: float
    attention_s: float
    context_tokens: float


class Demand(NamedTuple):
    """One program; the first column is its served fraction (of a stream: of its prompt).

    Attributes:
        release_s, due_s: absolute seconds; all its needs are between them.
    """

    kind: SloKind
    release_s: float
    due_s: float
    columns: tuple[Column, ...]
    needs: tuple[Need, ...]


def token_demand(
    program: Program, least_work: LeastWork, *, observed_until_s: float, bin_s: float
) -> Demand | None:
    """The work that a program needs to earn tokens, as goodput.tokens counts them.

    A stream's tokens are grouped by the bins, of bin_s seconds each, in which they are due. Any
    number of them may be delivered; the others need not be computed.

    Returns:
        None if the program cannot earn any.
    """
    if program.kind is not SloKind.LATENCY:
        value = float(program.total_tokens)
        return _whole_demand(_first_part(program), least_work, value, observed_until_s)
    work, due_s, earliest_s = _stream(program, least_work, observed_until_s)
    useful = np.flatnonzero(earliest_s <= due_s)
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
    program: Program, least_work: LeastWork, *, observed_until_s: float, bin_s: float
) -> Demand | None:
    """The work that a program needs to meet its SLO, as goodput.met judges.

    A stream needs its first token in time, and STREAM_SHARE_IN_TIME of all its tokens. Of these
    the bound takes the latest due times and the lowest costs: tokens that are due last, decodes
    with the shortest contexts. Late tokens are left out.

    Returns:
        None if the program cannot meet its SLO.
    """
    if program.kind is not SloKind.LATENCY:
        return _whole_demand(_first_part(program), least_work, 1.0, observed_until_s)
    work, due_s, earliest_s = _stream(program, least_work, observed_until_s)
    num_tokens = len(due_s)
    enough = -(-STREAM_SHARE_IN_TIME.numerator * num_tokens // STREAM_SHARE_IN_TIME.denominator)
    useful = np.flatnonzero(earliest_s <= due_s)
    if len(useful) < enough or useful[0] > 0 or earliest_s[-1] > observed_until_s:
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


def _first_part(program: Program) -> Program:
    """A program that needs less and earns as much, without the second part of its last answer.

    That part's tokens may be in time though its first one is late. So what comes before it is due
    by the end of that part.
    """
    if program.then_tbt_s is None:
        return program
    assert program.deadline_s is not None, "the program is not of the latency kind"
    *before, (_, tool_s) = program.stages
    (last,) = program.stages[-1].calls
    then_tokens = last.output_tokens - last.whole_tokens
    first = last._replace(output_tokens=max(last.whole_tokens, 1), then_from=None)
    return replace(
        program,
        stages=(*before, Stage((first,), tool_s)),
        deadline_s=program.deadline_s + then_tokens * program.then_tbt_s,
        then_tbt_s=None,
    )


def _whole_demand(
    program: Program, least_work: LeastWork, value: float, observed_until_s: float
) -> Demand | None:
    """A program that earns all or nothing by its deadline: one column, one need per stage."""
    if program.deadline_s is None:
        return None
    due_s = min(program.arrival_s + program.deadline_s + CLOCK_TOLERANCE_S, observed_until_s)
    stages = least_work.stages(program, due_s=due_s)
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
    column = Column(value, 1.0, float(sum(stage.steps for stage in stages)))
    return Demand(program.kind, stages[0].release_s, due_s, (column,), needs)


def _stream(
    program: Program, least_work: LeastWork, observed_until_s: float
) -> tuple[CallWork, Floats, Floats]:
    """A latency program's call; each token's due time and earliest possible time, absolute."""
    stage = program.stages[0]
    work = least_work.call(stage.calls[0])
    num_tokens, whole_tokens = stage.calls[0].output_tokens, stage.calls[0].whole_tokens
    paces_s = np.full(num_tokens, program.tbt_s)
    paces_s[whole_tokens:] = program.then_tbt_s or program.tbt_s
    first_due_s = program.arrival_s + program.ttft_s
    timeline = first_due_s + np.concatenate(([0.0], np.cumsum(paces_s)[:-1]))
    due_s = np.minimum(timeline + CLOCK_TOLERANCE_S, observed_until_s)
    first_s = program.arrival_s + stage.tool_s + work.isolated_prefill_s
    return work, due_s, first_s + np.concatenate(([0.0], np.cumsum(work.isolated_decode_s)))


def _prefill(work: CallWork, release_s: float, due_s: float) -> Need:
    return Need(0, release_s, due_s, float(work.prefill_tokens), 0.0, work.prefill_s, 0.0)


def _by_bin(due_s: Floats, tokens: np.ndarray, bin_s: float) -> Iterator[np.ndarray]:
    """Consecutive tokens that are due in the same bin, bin by bin."""
    bins = np.floor(due_s[tokens] / bin_s)
    return iter(part for part in np.split(tokens, np.flatnonzero(np.diff(bins)) + 1) if len(part))
