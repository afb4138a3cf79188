"""CallFeatures: the features of an LLM call that are known before it runs, and their encoding."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.analyzer.history import NUM_HISTORY_FEATURES, StepHistory
from serving.analyzer.words import NUM_WORD_BUCKETS
from serving.errors import CorruptFeatures, UnknownFeaturesVersion

FEATURES_VERSION = 1
"""Version of the encoding and of the vector; increased if either changes its meaning."""

FEATURE_NAMES = (
    "prompt_tokens",
    "max_tokens",
    "temperature",
    "top_p",
    "structured",
    "stage",
    "position",
    "previous_tokens",
    "run_mean_tokens",
    "identity",
    *("step_count", "step_last", "step_mean", "step_median", "step_p90"),
    *(f"words_{bucket}" for bucket in range(NUM_WORD_BUCKETS)),
)
"""The features of the vector, in order. Token counts are log(1 + tokens), because lengths differ by
factors."""

NUM_FEATURES = len(FEATURE_NAMES)

_STRUCTURED, _LIMITED = 1, 2
_MAX_NUMBER = 2**53
_SHARE_STEPS = 1000  # temperature and top_p have three decimals
_MEAN_STEPS = 16  # mean lengths have a resolution of 1/16 token


def step_code(identity: str) -> int:
    """A number below 2**32 for a step, for use where its name is not stored."""
    return zlib.crc32(identity.encode(errors="replace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFeatures:
    """The features of an LLM call that are known before it runs.

    Temperature, top_p and the run's mean are rounded to the precision of `encode`, so that a live
    prediction uses the same numbers as training.

    Attributes:
        identity: the step and its model, "model:step".
        prompt_tokens: counted or estimated, but always in the same way.
        max_tokens: the caller's limit; None: the rest of the model's context.
        structured: the output must satisfy a schema.
        stage: the call's stage in its run.
        position: number of calls of the run that began before it.
        previous_tokens: output tokens of the run's call that ended last, 0 without one.
        run_mean_tokens: mean output tokens of the run's ended calls, 0 without one.
        words: `words.count_words` of the prompt.
    Raises:
        ValueError: a number is negative, not finite or beyond 2**53, or words has a wrong length.
    """

    identity: str
    prompt_tokens: int
    max_tokens: int | None = None
    temperature: float = 0.7
    top_p: float = 1.0
    structured: bool = False
    stage: int = 0
    position: int = 0
    previous_tokens: int = 0
    run_mean_tokens: float = 0.0
    words: bytes = bytes(NUM_WORD_BUCKETS)

    def __post_init__(self) -> None:
        for name, steps in _NUMBERS:
            value = getattr(self, name)
            if not 0 <= (value or 0) <= _MAX_NUMBER // steps:  # false for NaN too
                raise ValueError(f"{name} must be within 0 and {_MAX_NUMBER // steps}, not {value}")
            if steps > 1:
                object.__setattr__(self, name, round(value * steps) / steps)
        if len(self.words) != NUM_WORD_BUCKETS:
            raise ValueError(f"words must be {NUM_WORD_BUCKETS} bytes, not {len(self.words)}")

    def encode(self) -> bytes:
        """All but the identity, in about 30 bytes; `decode` is the inverse."""
        flags = _STRUCTURED * self.structured | _LIMITED * (self.max_tokens is not None)
        body = bytearray((FEATURES_VERSION, flags))
        body += self.words
        for name, steps in _NUMBERS:
            value = getattr(self, name)
            if value is not None:
                _write_number(body, round(value * steps))
        return bytes(body)

    @classmethod
    def decode(cls, identity: str, document: bytes) -> CallFeatures:
        """The features in a document of `encode`, for the identity that is stored beside it.

        Raises:
            CorruptFeatures: the document is cut short, too long, or was not written by `encode`.
            UnknownFeaturesVersion: it was written by another version of the program.
        """
        if not document:
            raise CorruptFeatures("they are empty")
        if document[0] != FEATURES_VERSION:
            raise UnknownFeaturesVersion(document[0], FEATURES_VERSION)
        offset = 2 + NUM_WORD_BUCKETS
        if len(document) < offset:
            raise CorruptFeatures("they are cut short")
        flags = document[1]
        if flags & ~(_STRUCTURED | _LIMITED):
            raise CorruptFeatures("they have unknown flags")
        values: dict[str, float] = {}
        for name, steps in _NUMBERS:
            if name == "max_tokens" and not flags & _LIMITED:
                continue
            number, offset = _read_number(document, offset)
            values[name] = number / steps if steps > 1 else number
        if offset != len(document):
            raise CorruptFeatures("there are bytes after their end")
        try:
            return cls(
                identity=identity,
                structured=bool(flags & _STRUCTURED),
                words=bytes(document[2 : 2 + NUM_WORD_BUCKETS]),
                **values,  # type: ignore[arg-type]
            )
        except ValueError as cause:
            raise CorruptFeatures(str(cause)) from cause

    def vector(self, history: StepHistory) -> NDArray[np.float32]:
        """Shape (NUM_FEATURES,), in the order of FEATURE_NAMES.

        Args:
            history: the step's answers that had ended when this call began, and no others.
        """
        log = math.log1p
        return np.array(
            (
                log(self.prompt_tokens),
                log(self.max_tokens or 0),
                self.temperature,
                self.top_p,
                self.structured,
                self.stage,
                self.position,
                log(self.previous_tokens),
                log(self.run_mean_tokens),
                step_code(self.identity) / 2**32,
                *history.features(),
                *self.words,
            ),
            dtype=np.float32,
        )


# The numbers of a call in the order of their encoding, and the steps per unit of each.
_NUMBERS = (
    ("prompt_tokens", 1),
    ("max_tokens", 1),
    ("temperature", _SHARE_STEPS),
    ("top_p", _SHARE_STEPS),
    ("stage", 1),
    ("position", 1),
    ("previous_tokens", 1),
    ("run_mean_tokens", _MEAN_STEPS),
)

assert len(FEATURE_NAMES) == 10 + NUM_HISTORY_FEATURES + NUM_WORD_BUCKETS


def _write_number(body: bytearray, value: int) -> None:
    """Append a whole number of at least 0: seven bits per byte, lowest first (LEB128)."""
    while value > 0x7F:
        body.append(0x80 | (value & 0x7F))
        value >>= 7
    body.append(value)


def _read_number(document: bytes, offset: int) -> tuple[int, int]:
    """The number at this offset, and the offset after it."""
    value = 0
    for shift in range(0, 63, 7):
        if offset == len(document):
            raise CorruptFeatures("they are cut short")
        byte = document[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise CorruptFeatures("a number is too long")
