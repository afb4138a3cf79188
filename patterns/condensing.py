"""The document that is kept of a run: as exact as a limit of its size allows.

A short run is kept as its whole graph. A longer one is kept as its stages, which is all that later
runs learn from. If these are too large as well, as of a search with many rounds, stages with the
same calls are averaged in blocks, first in many small blocks, then in fewer larger ones: equal
stages compress to almost nothing. The number and order of the stages, their calls' identities, and
the run's total times and tokens are kept, up to rounding; what is lost is how rounds differ.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(size of a stored pattern graph).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from patterns.codec import encode, encode_stages
from patterns.graph import PatternGraph
from patterns.stages import CallCount, Stage, count_llm_calls

MAX_PATTERN_BYTES = 200
"""Size to which a run's document is reduced."""


def encode_within(graph: PatternGraph, limit_bytes: int = MAX_PATTERN_BYTES) -> bytes:
    """The most exact document of a run that is not larger than a limit; see `stages_in`.

    If none is, because the calls have many or long names, it is the smallest one.

    Raises:
        PatternTooLarge: the run is too large for any document.
    """
    document = encode(graph)
    if len(document) <= limit_bytes:
        return document
    stages = graph.stages
    documents = [document, encode_stages(stages)]
    num_blocks = len(stages)
    while len(documents[-1]) > limit_bytes and num_blocks > 1:
        num_blocks //= 2
        documents.append(encode_stages(averaged(stages, num_blocks)))
    return min(documents, key=len) if len(documents[-1]) > limit_bytes else documents[-1]


def averaged(stages: Sequence[Stage], num_blocks: int) -> tuple[Stage, ...]:
    """The stages, those with the same calls replaced by their means in up to `num_blocks` blocks.

    A block holds stages with the same calls (whatever their numbers) that follow each other,
    perhaps with others in between.

    Args:
        num_blocks: of each kind of stage; at least 1.
    """
    alike: defaultdict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    for place, stage in enumerate(stages):
        alike[tuple((call.identity, call.kind) for call in stage.calls)].append(place)
    means: dict[int, Stage] = {}
    for places in alike.values():
        for block in _divided(places, num_blocks):
            mean = _mean([stages[place] for place in block])
            means |= dict.fromkeys(block, mean)
    result: list[Stage] = []
    first = 0
    for place in range(len(stages)):
        mean = means[place]
        members = tuple(range(first, first + len(mean.members)))
        result.append(replace(mean, index=place, members=members))
        first += len(members)
    return tuple(result)


def _divided(places: Sequence[int], num_blocks: int) -> list[Sequence[int]]:
    """Consecutive parts of almost equal size, none empty."""
    count = min(num_blocks, len(places))
    ends = [len(places) * number // count for number in range(count + 1)]
    return [places[start:end] for start, end in pairwise(ends)]


def _mean(block: Sequence[Stage]) -> Stage:
    """The mean of stages with the same calls; at least one of each call."""

    def of(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    calls = tuple(
        CallCount(
            call.identity, call.kind, max(round(of([s.calls[at].num_calls for s in block])), 1)
        )
        for at, call in enumerate(block[0].calls)
    )
    output_tokens = round(of([stage.output_tokens for stage in block]))
    longest = round(of([stage.longest_output_tokens for stage in block]))
    return Stage(
        index=block[0].index,
        members=tuple(range(sum(call.num_calls for call in calls))),
        calls=calls,
        input_tokens=round(of([stage.input_tokens for stage in block])),
        output_tokens=output_tokens,
        longest_output_tokens=output_tokens if count_llm_calls(calls) == 1 else longest,
        seconds=of([stage.seconds for stage in block]),
        tool_seconds=of([stage.tool_seconds for stage in block]),
    )
