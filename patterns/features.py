"""Patterns as arrays: the features that the kernel compares, and the outlooks that matches predict.

The arrays are built from the stage view. Lengths and times enter as log(1 + x), so that a ratio of
two lengths counts the same whether they are short or long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from patterns.nodes import Kind
from patterns.stages import Stage, accumulated_seconds

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Call = tuple[Kind, str]
Block = npt.NDArray[Any]

ATTRIBUTES = ("output_tokens", "tool_seconds", "input_tokens")
"""The compared attributes of a stage: two of the super-node, and one of the edges into it."""

NO_STAGE = -1
"""In place of a signature: the pattern has no such stage."""


class Outlook(NamedTuple):
    """One stage of a pattern, and the work before and after it. Times are in seconds.

    Attributes:
        elapsed_s: time of all stages before it.
        stage_s: time of this stage.
        rest_s: time of this stage and all later ones.
        share: accumulated share of the run at the end of this stage, in (0, 1].
        stage_calls: calls in this stage, including those of tools.
        stage_llm_calls: LLM calls in this stage.
        later_llm_calls, later_input_tokens, later_output_tokens, later_s, later_tool_s: sums over
            the stages after this one.
        later_serial_tokens: sum over the later stages of the longest answer in each, because the
            calls of a stage run in parallel, and stages one after the other.
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
    """n patterns of at most s stages, one row each; rows of shorter patterns are padded with 0.

    Attributes:
        num_stages: shape (n,).
        features: shape (n, s, 3), log(1 + x) of ATTRIBUTES.
        outlooks: shape (n, s, 12), the fields of Outlook.
        signature: shape (n, s), index into `signatures`; NO_STAGE beyond a pattern's end.
        signatures: the distinct sets of calls of a stage.
        is_cut_off: shape (n,), whether a pattern ends where its run was cut off by its deadline;
            its outlooks are then lower bounds, see `patterns.censoring`.
    """

    num_stages: Ints
    features: Floats
    outlooks: Floats
    signature: Ints
    signatures: tuple[frozenset[Call], ...]
    is_cut_off: Bools

    def __len__(self) -> int:
        return len(self.num_stages)

    def stages_with(self, calls: Iterable[Call]) -> Bools:
        """Whether each of `signatures` contains all these calls; shape (len(signatures) + 1,).

        To be indexed by `signature`: NO_STAGE, which is -1, selects the last element, False.
        """
        required = frozenset(calls)
        has_all = [required <= signature for signature in self.signatures]
        return np.array([*has_all, False])

    def extended(
        self, patterns: Sequence[Sequence[Stage]], *, is_cut_off: Sequence[bool] | None = None
    ) -> PatternTable:
        """The table with further patterns appended; arguments as of `tabulate`."""
        added = tabulate(patterns, known=self.signatures, is_cut_off=is_cut_off)
        width = max(self.features.shape[1], added.features.shape[1])
        return PatternTable(
            num_stages=np.concatenate([self.num_stages, added.num_stages]),
            features=_stacked(self.features, added.features, width),
            outlooks=_stacked(self.outlooks, added.outlooks, width),
            signature=_stacked(self.signature, added.signature, width, fill=NO_STAGE),
            signatures=added.signatures,
            is_cut_off=np.concatenate([self.is_cut_off, added.is_cut_off]),
        )


def calls_of(stage: Stage) -> frozenset[Call]:
    """The distinct model steps and tools that a stage calls."""
    return frozenset((call.kind, call.identity) for call in stage.calls)


def stage_features(stage: Stage) -> Floats:
    """Shape (3,): log(1 + x) of a stage's ATTRIBUTES."""
    values = (stage.output_tokens, stage.tool_seconds, stage.input_tokens)
    return np.log1p(np.array(values, dtype=np.float64))


def tabulate(
    patterns: Sequence[Sequence[Stage]],
    *,
    known: Sequence[frozenset[Call]] = (),
    is_cut_off: Sequence[bool] | None = None,
) -> PatternTable:
    """The table of patterns, each given by its stages, in the given order.

    Args:
        known: signatures that keep their indexes.
        is_cut_off: for each pattern whether its run was cut off by its deadline; None: none was.
    """
    num_stages = np.array([len(stages) for stages in patterns], dtype=np.int64)
    rows, width = len(patterns), int(num_stages.max(initial=0))
    index_of = {signature: index for index, signature in enumerate(known)}
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
            index_of.setdefault(calls_of(stage), len(index_of)) for stage in stages
        ]
    cut_off = np.array([False] * rows if is_cut_off is None else is_cut_off, dtype=bool)
    assert len(cut_off) == rows, "is_cut_off has one element for each pattern"
    return PatternTable(num_stages, features, outlooks, signature, tuple(index_of), cut_off)


def _outlooks(stages: Sequence[Stage]) -> Floats:
    """Shape (num_stages, 12): the outlook of each stage of one pattern."""
    ends = np.array(accumulated_seconds(stages))
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
    """The rows of both blocks, padded to `width` stages."""

    def padded(block: Block) -> Block:
        padding = [(0, 0)] * block.ndim
        padding[1] = (0, width - block.shape[1])
        return np.pad(block, padding, constant_values=fill)

    return np.concatenate([padded(above), padded(below)])
