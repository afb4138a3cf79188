"""StepCost: the duration of one engine step as a function of its batch, and a fit of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from serving.workload_errors import StepFitFailed

Floats = NDArray[np.float64]
Chunk = tuple[int, int]
"""A prefill chunk: prompt tokens computed in this step, tokens of the prompt computed before."""


class Composition(NamedTuple):
    """The batch of one step.

    Attributes:
        new_tokens: prefilled, decoded and drafted tokens.
        num_decodes: requests that decode one token.
        decode_context_tokens: sum of the contexts of the decoding requests.
        prefill_chunks: one of each request in prefill.
    """

    new_tokens: int
    num_decodes: int
    decode_context_tokens: int
    prefill_chunks: tuple[Chunk, ...]

    @property
    def prompt_tokens(self) -> int:
        """Prefilled tokens."""
        return sum(tokens for tokens, _ in self.prefill_chunks)

    @property
    def prompt_pairs(self) -> float:
        """Pairs of a prefilled token and a token before it in its prompt (attention)."""
        return sum(tokens * (before + 0.5 * tokens) for tokens, before in self.prefill_chunks)

    @classmethod
    def of_prompt(cls, tokens: int) -> Composition:
        """The step that prefills one prompt of this many tokens, and nothing else."""
        return cls(tokens, 0, 0, ((tokens, 0),))


class StepTimeModel(Protocol):
    """Gives the duration of a step: a StepCost, or a StepCost with noise."""

    def seconds(self, composition: Composition) -> float:
        """Duration of one step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The duration of one step; all coefficients are in seconds, 0 for a term that is not used.

        step = fixed + max(small_base + small_token * n, large_base + large_token * n)
             + [d > 0] * (decode_base + decode_sequence * d + decode_context * contexts)
             + sum over prefill chunks of (chunk_base + chunk_pair * c * (kv + c / 2))

    with n new tokens, d decodes, `contexts` the sum of the decodes' context tokens, c the tokens
    of a chunk, and kv the prompt tokens computed before it.

    Attributes:
        name: model and device.
        source: origin of the numbers.
        uncertainty: what was measured, the error of the fit, and what was assumed.
    """

    name: str
    source: str
    uncertainty: str
    fixed_s: float = 0.0
    small_base_s: float = 0.0
    small_token_s: float = 0.0
    large_base_s: float = 0.0
    large_token_s: float = 0.0
    decode_base_s: float = 0.0
    decode_sequence_s: float = 0.0
    decode_context_s: float = 0.0
    chunk_base_s: float = 0.0
    chunk_pair_s: float = 0.0

    def seconds(self, composition: Composition) -> float:
        """Duration of one step."""
        new_tokens, num_decodes, decode_context_tokens, prefill_chunks = composition
        small = self.small_base_s + self.small_token_s * new_tokens
        large = self.large_base_s + self.large_token_s * new_tokens
        total = self.fixed_s + (small if small > large else large)
        if num_decodes:
            total += (
                self.decode_base_s
                + self.decode_sequence_s * num_decodes
                + self.decode_context_s * decode_context_tokens
            )
        for tokens, before in prefill_chunks:
            total += self.chunk_base_s + self.chunk_pair_s * tokens * (before + tokens * 0.5)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A replica's step cost and KV cache.

    Attributes:
        kv_blocks: blocks of the KV cache.
        block_tokens: tokens per block.
        memory_source: origin of the number of blocks.
    """

    step_cost: StepCost
    kv_blocks: int
    block_tokens: int
    memory_source: str

    @property
    def kv_tokens(self) -> int:
        """Capacity of the KV cache in tokens."""
        return self.kv_blocks * self.block_tokens


_A100_LLAMA3_8B = StepCost(
    name="a100-llama3-8b: A100-80GB, Llama-3-8B (32 layers, 8 KV heads, bf16), TP1",
    source=(
        "microsoft/vidur @7d47513, data/profiling/compute/a100/meta-llama/Meta-Llama-3-8B/mlp.csv"
        " (MIT); attention.csv of the same tree as held in adi-anirudh/vidur_hbf_hbm_backend"
        " @a336807"
    ),
    uncertainty=(
        "linear operations: mean error 3.2% (at most 20%) on 451 token counts; decode attention:"
        " 7.4% on 26 rows; prefill attention: 5.4% on chunks above 1,000 tokens, 17% on all of 20"
        " rows. Not measured: the language-model head (0.52 ms: 4096*128256*2 bytes at 2.039 TB/s)"
        " and the overhead of a step (1.5 ms, assumed after BLIS); saving keys and values is left"
        " out"
    ),
    fixed_s=0.52e-3 + 1.5e-3,
    small_base_s=9.71e-3,
    small_token_s=0.0317e-3,
    large_base_s=6.33e-3,
    large_token_s=0.0670e-3,
    decode_base_s=0.61e-3,
    decode_context_s=7.8e-8,
    chunk_base_s=0.51e-3,
    chunk_pair_s=3.3e-9,
)

STEP_COSTS: Mapping[str, StepCost] = MappingProxyType({"a100-llama3-8b": _A100_LLAMA3_8B})
"""Published step costs by name."""

MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "a100-llama3-8b": Machine(
            step_cost=_A100_LLAMA3_8B,
            kv_blocks=29205,
            block_tokens=16,
            memory_source="BLIS, for an A100-80GB; 131,072 bytes of keys and values a token",
        )
    }
)
"""Machines by name."""


class StepSample(NamedTuple):
    """One measured step.

    Attributes:
        composition: its batch.
        seconds: duration on the machine plus planning. With asynchronous scheduling, only the
            part of planning that does not overlap with the step before.
    """

    composition: Composition
    seconds: float


FITTED = (
    "small_base_s",
    "small_token_s",
    "decode_sequence_s",
    "decode_context_s",
    "chunk_base_s",
    "chunk_pair_s",
)
"""The coefficients that `fit` determines: per step, new token, decode, token of a decode's context,
prefill chunk, and pair of a chunk's token and a token before it."""


def fit(samples: Sequence[StepSample], *, name: str = "measured", source: str = "") -> StepCost:
    """Fit a step cost to measured steps: least squares with no coefficient below 0.

    The best non-negative solution is the unconstrained least-squares solution over its non-zero
    terms, so trying all 63 subsets of terms finds it exactly. Of equally good subsets, the one
    with fewer terms wins, then the one that comes first in FITTED. So if the samples cannot
    separate two terms (new tokens and decodes, in steps without prefill), the first one takes both.

    Raises:
        StepFitFailed: there are fewer steps than coefficients, a value is not finite or below 0,
            all steps have the same number of new tokens, or the best fit is 0.
    """
    _check_samples(samples)
    terms = np.array([_terms(step.composition) for step in samples], dtype=np.float64)
    seconds = np.array([step.seconds for step in samples], dtype=np.float64)
    scale = np.abs(terms).max(axis=0)
    scale[scale == 0] = 1.0
    terms /= scale
    best = _least_squares(terms, seconds)
    if not best.any():
        raise StepFitFailed(len(samples), "no cost with non-negative coefficients fits them")
    errors = np.abs(terms @ best - seconds) / seconds
    return StepCost(
        name=name,
        source=source or f"{len(samples)} measured steps",
        uncertainty=(
            f"mean error {errors.mean():.1%} (at most {errors.max():.1%}) on the fitted steps"
        ),
        **dict(zip(FITTED, map(float, best / scale), strict=True)),
    )


def _terms(composition: Composition) -> tuple[float, ...]:
    """The factor of each coefficient of FITTED in this step."""
    *counts, chunks = composition
    return (1, *counts, len(chunks), composition.prompt_pairs)


def _least_squares(terms: Floats, seconds: Floats) -> Floats:
    """The best non-negative coefficients; all 0 if no subset of terms has such a solution."""
    best = np.zeros(len(FITTED))
    least = math.inf
    tolerance = 1e-18 * float(seconds @ seconds)
    for num_terms in range(1, len(FITTED) + 1):
        for chosen in combinations(range(len(FITTED)), num_terms):
            columns = terms[:, chosen]
            solution, _, rank, _ = np.linalg.lstsq(columns, seconds, rcond=None)
            if rank < num_terms or (solution < 0).any():
                continue
            error = float(np.square(columns @ solution - seconds).sum())
            if error < least - tolerance:
                least = error
                best = np.zeros(len(FITTED))
                best[list(chosen)] = solution
    return best


def _check_samples(samples: Sequence[StepSample]) -> None:
    num_samples = len(samples)
    if num_samples < len(FITTED):
        raise StepFitFailed(num_samples, f"a fit needs at least {len(FITTED)}")
    for index, step in enumerate(samples):
        *counts, _ = step.composition
        if not (math.isfinite(step.seconds) and step.seconds > 0):
            reason = f"step {index} took {step.seconds} s; it must be a finite number above 0"
            raise StepFitFailed(num_samples, reason)
        if not all(math.isfinite(count) and count >= 0 for count in counts):
            raise StepFitFailed(num_samples, f"step {index} has a count below 0 or not finite")
    if len({step.composition.new_tokens for step in samples}) == 1:
        tokens = samples[0].composition.new_tokens
        reason = f"each computed {tokens} tokens; measure batches of several sizes"
        raise StepFitFailed(num_samples, reason)
