"""Stages: the longest-path layers of a run, and the summary of one layer."""

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from patterns.errors import InvalidEdge, InvalidStage
from patterns.nodes import MAX_SECONDS, Kind, Node

MAX_STAGE_TOKENS = 2**62
"""Limit on the input or output tokens of one stage: it fits into a signed 64-bit column."""

MIN_STAGE_S = 0.001
"""Every stage counts as at least this long, in seconds, so that its share of the run is not 0."""


def next_stage(parent_stages: Iterable[int]) -> int:
    """Stage of a new call: 1 + the latest of its parents' stages, 0 without parents."""
    return 1 + max(parent_stages, default=-1)


def stage_depths(parents: Sequence[Collection[int]]) -> tuple[int, ...]:
    """Stage of every call, for calls listed in the order in which they began.

    `next_stage` is the same rule for one call at a time, as in a live run.

    Args:
        parents: for each call the indexes of the calls it depends on, all listed before it.
    Returns:
        the stage of each call, 0-based: the number of edges on the longest path to it.
    Raises:
        InvalidEdge: a parent is not listed before its child.
    """
    depths: list[int] = []
    for child, call_parents in enumerate(parents):
        for parent in call_parents:
            if not 0 <= parent < child:
                raise InvalidEdge(parent, child, "the parent must be listed before the child")
        depths.append(next_stage(depths[parent] for parent in call_parents))
    return tuple(depths)


class CallCount(NamedTuple):
    """The number of calls of one model step or tool within a stage."""

    identity: str
    kind: Kind
    num_calls: int


def count_llm_calls(calls: Iterable[CallCount]) -> int:
    """The number of LLM calls among a stage's calls."""
    return sum(call.num_calls for call in calls if call.kind == "llm")


@dataclass(frozen=True, slots=True)
class Stage:
    """All calls of one longest-path layer, combined into one (a super-node).

    The calls of a stage can run in parallel, so tokens are summed and times are not: a stage takes
    as long as its slowest call. So the sum of `seconds` over the stages is an upper bound of the
    critical path, and equals it if each stage depends on the whole previous one.

    Args:
        index: 0-based.
        members: the calls' indexes in their graph, ascending, at least one.
        calls: distinct calls with their counts, sorted; the counts sum to the number of members.
        input_tokens: sum over the members.
        output_tokens: sum over the members.
        longest_output_tokens: the largest output of a member; at most the sum.
        seconds: the longest time of a member.
        tool_seconds: the longest time of a tool call; 0 without tools.
    Raises:
        InvalidStage: the fields contradict each other.
    Source: Zhang et al. (2025), Tempo: Application-aware LLM Serving with Mixed SLO Requirements,
        section 4.1 (super-nodes).
    """

    index: int
    members: tuple[int, ...]
    calls: tuple[CallCount, ...]
    input_tokens: int
    output_tokens: int
    longest_output_tokens: int
    seconds: float
    tool_seconds: float

    def __post_init__(self) -> None:
        if self.index < 0:
            self._refuse("index", "0 or more")
        if not self.members or self.members[0] < 0 or not _is_ascending(self.members):
            self._refuse("members", "one or more node indexes, ascending")
        self._check_calls()
        self._check_tokens()
        if not 0 <= self.seconds <= MAX_SECONDS:
            self._refuse("seconds", f"between 0 and {MAX_SECONDS:.0f}")
        if not 0 <= self.tool_seconds <= self.seconds:
            self._refuse("tool_seconds", "between 0 and the stage's seconds")
        kinds = {call.kind for call in self.calls}
        if "llm" not in kinds and (self.input_tokens or self.output_tokens):
            self._refuse("calls", "with an LLM call if there are tokens")
        if "llm" not in kinds and self.tool_seconds != self.seconds:
            self._refuse("tool_seconds", "the stage's seconds if all calls are tools")
        if "tool" not in kinds and self.tool_seconds:
            self._refuse("tool_seconds", "0 without tools")

    @property
    def num_llm_calls(self) -> int:
        """The number of LLM calls among the members; the others are tool calls."""
        return count_llm_calls(self.calls)

    def _check_calls(self) -> None:
        if not _is_ascending([(call.identity, call.kind) for call in self.calls]):
            self._refuse("calls", "distinct and sorted by identity and kind")
        if any(not call.identity or call.num_calls < 1 for call in self.calls):
            self._refuse("calls", "named, with a count of 1 or more")
        if sum(call.num_calls for call in self.calls) != len(self.members):
            self._refuse("calls", "as many as the members")

    def _check_tokens(self) -> None:
        for field in ("input_tokens", "output_tokens"):
            if not 0 <= getattr(self, field) <= MAX_STAGE_TOKENS:
                self._refuse(field, f"between 0 and {MAX_STAGE_TOKENS}")
        if not 0 <= self.longest_output_tokens <= self.output_tokens:
            self._refuse("longest_output_tokens", "between 0 and the stage's output_tokens")

    def _refuse(self, field: str, rule: str) -> None:
        raise InvalidStage(self.index, field, getattr(self, field), rule)


def _is_ascending(values: Sequence[int] | Sequence[tuple[str, str]]) -> bool:
    return all(map(operator.lt, values[:-1], values[1:]))


def summarise(index: int, members: Sequence[int], nodes: Sequence[Node]) -> Stage:
    """Stage `index` of a graph, from its nodes and the ascending indexes of the stage's members."""
    calls = [nodes[member] for member in members]
    counts = Counter((call.identity, call.kind) for call in calls)
    return Stage(
        index=index,
        members=tuple(members),
        calls=tuple(CallCount(*key, count) for key, count in sorted(counts.items())),
        input_tokens=sum(call.input_tokens for call in calls),
        output_tokens=sum(call.output_tokens for call in calls),
        longest_output_tokens=max(call.output_tokens for call in calls),
        seconds=max(call.seconds for call in calls),
        tool_seconds=max((call.seconds for call in calls if call.kind == "tool"), default=0.0),
    )


def accumulated_seconds(stages: Iterable[Stage]) -> tuple[float, ...]:
    """Seconds from the start of the first stage to the end of each one, strictly ascending."""
    return tuple(accumulate(max(stage.seconds, MIN_STAGE_S) for stage in stages))
