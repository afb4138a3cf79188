"""Patterns as arrays: what the kernel compares, and what a match foretells.

Only the stage view goes in. Lengths and times enter as log(1 + x): that an answer was twice as
long says as much of a short one as of a long one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from patterns.nodes import Kind
from patterns.stages import Stage

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Call = tuple[Kind, str]
Block = npt.NDArray[Any]

ATTRIBUTES = ("output_tokens", "tool_seconds", "input_tokens")
"""What is compared of a stage: two attributes of the super-node, and one of the edges into it."""

MIN_STAGE_S = 0.001
"""The shortest stage, the codec's resolution: no stage's share of a run is nothing."""

NO_STAGE = -1


class Outlook(NamedTuple):
    """What a pattern says of one of its stages, and of what came after it.

    Attributes:
        elapsed_s: sum of the stages before it.
        stage_s: this stage.
        rest_s: this stage and all that followed.
        share: accumulated share of the run at the end of this stage, in (0, 1].
        stage_calls: calls in this stage, those of tools too.
        stage_llm_calls: those of models alone, which an engine sees.
        later_llm_calls, later_input_tokens, later_output_tokens, later_s, later_tool_s: sums over
            the stages after this one.
        later_serial_tokens: of each of them the longest answer, added up: a stage's calls go side
            by side, and stages one after the other.
    """

    elapsed_s: float
    stage_s: float
    rest_s: float
    share: float
    stage_calls: float
    stage_llm_calls: float
    later_llm_calls: float
    later_input_tokens: float
    later_output_tokens: float
    later_s: float
    later_tool_s: float
    later_serial_tokens: float


@dataclass(frozen=True, eq=False, slots=True)
class PatternTable:
    """n patterns of at most s stages, one row each; what lies beyond a pattern's end is 0.

    Attributes:
        num_stages: shape (n,).
        features: shape (n, s, 3), the logs of ATTRIBUTES.
        outlooks: shape (n, s, 12), the fields of Outlook.
        signature: shape (n, s), which of `signatures` a stage has; NO_STAGE beyond the end.
        signatures: the distinct sets of calls that a stage can consist of.
    """

    num_stages: Ints
    features: Floats
    outlooks: Floats
    signature: Ints
    signatures: tuple[frozenset[Call], ...]

    def __len__(self) -> int:
        return len(self.num_stages)

    def stages_with(self, calls: Iterable[Call]) -> Bools:
        """Shape (len(signatures) + 1,): which kinds of stage make all these calls; last: False.

        Index it with `signature`: NO_STAGE, which is -1, then finds the last.
        """
        wanted = frozenset(calls)
        found = [wanted <= signature for signature in self.signatures]
        return np.array([*found, False])

    def extended(self, patterns: Sequence[Sequence[Stage]]) -> PatternTable:
        """The same table with further patterns at its end."""
        added = tabulate(patterns, known=self.signatures)
        width = max(self.features.shape[1], added.features.shape[1])
        return PatternTable(
            num_stages=np.concatenate([self.num_stages, added.num_stages]),
            features=_stacked(self.features, added.features, width),
            outlooks=_stacked(self.outlooks, added.outlooks, width),
            signature=_stacked(self.signature, added.signature, width, fill=NO_STAGE),
            signatures=added.signatures,
        )


def calls_of(stage: Stage) -> frozenset[Call]:
    """Which model steps and tools a stage calls, however often."""
    return frozenset((call.kind, call.identity) for call in stage.calls)


def stage_features(stage: Stage) -> Floats:
    """Shape (3,): the logs of a stage's ATTRIBUTES."""
    values = (stage.output_tokens, stage.tool_seconds, stage.input_tokens)
    return np.log1p(np.array(values, dtype=np.float64))


def accumulated_seconds(stages: Sequence[Stage]) -> Floats:
    """Shape (num_stages,): seconds from the start to the end of each stage, strictly ascending."""
    seconds = np.array([stage.seconds for stage in stages], dtype=np.float64)
    ends: Floats = np.cumsum(np.maximum(seconds, MIN_STAGE_S))
    return ends


def tabulate(
    patterns: Sequence[Sequence[Stage]], *, known: Sequence[frozenset[Call]] = ()
) -> PatternTable:
    """A table of patterns, each given by its stages, in the order given.

    Args:
        known: signatures that keep their numbers.
    """
    num_stages = np.array([len(stages) for stages in patterns], dtype=np.int64)
    rows, width = len(patterns), int(num_stages.max(initial=0))
    number_of = {signature: number for number, signature in enumerate(known)}
    features = np.zeros((rows, width, len(ATTRIBUTES)))
    outlooks = np.zeros((rows, width, len(Outlook._fields)))
    signature = np.full((rows, width), NO_STAGE, dtype=np.int64)
    for row, stages in enumerate(patterns):
        if not stages:
            continue
        raw = [(stage.output_tokens, stage.tool_seconds, stage.input_tokens) for stage in stages]
        features[row, : len(stages)] = np.log1p(np.array(raw, dtype=np.float64))
        outlooks[row, : len(stages)] = _outlooks(stages)
        signature[row, : len(stages)] = [
            number_of.setdefault(calls_of(stage), len(number_of)) for stage in stages
        ]
    return PatternTable(num_stages, features, outlooks, signature, tuple(number_of))


def _outlooks(stages: Sequence[Stage]) -> Floats:
    """Shape (num_stages, 12): the outlook of each stage of one pattern."""
    ends = accumulated_seconds(stages)
    starts = np.concatenate([[0.0], ends[:-1]])
    sums = np.array(
        [
            (
                stage.num_llm_calls,
                stage.input_tokens,
                stage.output_tokens,
                stage.tool_seconds,
                stage.longest_output_tokens,
            )
            for stage in stages
        ],
        dtype=np.float64,
    )
    later = np.maximum(sums.sum(axis=0) - np.cumsum(sums, axis=0), 0.0)
    columns = {
        "elapsed_s": starts,
        "stage_s": ends - starts,
        "rest_s": ends[-1] - starts,
        "share": ends / ends[-1],
        "stage_calls": np.array([len(stage.members) for stage in stages], dtype=np.float64),
        "stage_llm_calls": sums[:, 0],
        "later_llm_calls": later[:, 0],
        "later_input_tokens": later[:, 1],
        "later_output_tokens": later[:, 2],
        "later_s": ends[-1] - ends,
        "later_tool_s": later[:, 3],
        "later_serial_tokens": later[:, 4],
    }
    return np.stack([columns[field] for field in Outlook._fields], axis=1)


def _stacked(above: Block, below: Block, width: int, fill: int = 0) -> Block:
    """Two blocks of rows, one upon the other, both filled up to the same number of stages."""

    def filled(block: Block) -> Block:
        missing = [(0, 0)] * block.ndim
        missing[1] = (0, width - block.shape[1])
        return np.pad(block, missing, constant_values=fill)

    return np.concatenate([filled(above), filled(below)])
