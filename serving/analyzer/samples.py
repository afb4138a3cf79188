"""Samples: finished calls, replayed in the order of their begins and ends."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.analyzer.features import NUM_FEATURES, CallFeatures, step_code
from serving.analyzer.history import StepHistories


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished call.

    Attributes:
        began_s, ended_s: when it was submitted and when it ended, on one clock. A prediction uses
            only calls that had ended when the call began, so a replay uses nothing of parallel
            calls. Without times, calls are taken to have run one after another.
    Raises:
        ValueError: output_tokens is negative or above 2**31, or a time is not finite.
    """

    features: CallFeatures
    output_tokens: int
    began_s: float = 0.0
    ended_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.output_tokens <= 2**31:
            raise ValueError(f"output_tokens must be within 0 and 2**31, not {self.output_tokens}")
        if not (math.isfinite(self.began_s) and math.isfinite(self.ended_s)):
            raise ValueError(f"times must be finite, not {self.began_s} and {self.ended_s}")


def replayed(samples: Sequence[Sample]) -> Iterator[tuple[int, bool]]:
    """The begins and ends of the calls by time, as (index in `samples`, has_ended).

    Calls with equal began_s begin in the order of `samples`. An end precedes a begin at the same
    time.
    """
    running: list[tuple[float, int]] = []
    for index in sorted(range(len(samples)), key=lambda index: samples[index].began_s):
        sample = samples[index]
        while running and running[0][0] <= sample.began_s:
            yield heapq.heappop(running)[1], True
        yield index, False
        heapq.heappush(running, (max(sample.ended_s, sample.began_s), index))
    while running:
        yield heapq.heappop(running)[1], True


class TrainingSet(NamedTuple):
    """Calls as inputs of a forest, in the order in which they began."""

    vectors: NDArray[np.float32]  # shape (calls, NUM_FEATURES)
    output_tokens: NDArray[np.int64]  # shape (calls,)
    began_s: NDArray[np.float64]  # shape (calls,)
    steps: NDArray[np.int64]  # shape (calls,), features.step_code

    def newest(self, num_calls: int) -> TrainingSet:
        """The last `num_calls` calls, or all if there are fewer."""
        return TrainingSet(
            self.vectors[-num_calls:],
            self.output_tokens[-num_calls:],
            self.began_s[-num_calls:],
            self.steps[-num_calls:],
        )


def training_set(samples: Sequence[Sample]) -> TrainingSet:
    """The calls as a training set, each with the history that was known when it began."""
    histories = StepHistories()
    order: list[Sample] = []
    vectors: list[NDArray[np.float32]] = []
    for index, has_ended in replayed(samples):
        sample = samples[index]
        if has_ended:
            histories.add(sample.features.identity, sample.output_tokens)
            continue
        order.append(sample)
        vectors.append(sample.features.vector(histories.of(sample.features.identity)))
    return TrainingSet(
        vectors=np.array(vectors, dtype=np.float32).reshape(-1, NUM_FEATURES),
        output_tokens=np.array([sample.output_tokens for sample in order], dtype=np.int64),
        began_s=np.array([sample.began_s for sample in order], dtype=np.float64),
        steps=np.array([step_code(sample.features.identity) for sample in order], dtype=np.int64),
    )
