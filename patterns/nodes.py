"""One call of a recorded run: a node of its pattern graph."""

import operator
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Literal, SupportsIndex, cast

from patterns.errors import InvalidNode

Kind = Literal["llm", "tool"]

MAX_TOKENS = 2**40
"""Limit on the input or output tokens of one call: far above any context window."""

MAX_SECONDS = 2.0**30
"""Limit on the seconds of one call: 34 years, so that a Unix time given as duration is refused."""


@dataclass(frozen=True, slots=True)
class LlmNode:
    """One LLM call, without its texts.

    Args:
        identity: model and step name; not empty.
        input_tokens: tokens of the prompt, 0 to MAX_TOKENS.
        output_tokens: tokens generated, 0 to MAX_TOKENS.
        seconds: from submission to the last token, 0 to MAX_SECONDS.
    Raises:
        InvalidNode: a value of another type, or out of range.
    Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems,
        section 4.1 (pattern graphs).
    """

    identity: str
    input_tokens: int
    output_tokens: int
    seconds: float
    kind: ClassVar[Kind] = "llm"

    def __post_init__(self) -> None:
        _check_identity(self.identity)
        for field in ("input_tokens", "output_tokens"):
            tokens = _whole(self.identity, field, getattr(self, field))
            object.__setattr__(self, field, tokens)
        object.__setattr__(self, "seconds", _duration(self.identity, self.seconds))


@dataclass(frozen=True, slots=True)
class ToolNode:
    """One call of a tool; a tool neither reads nor writes tokens, so both counts are 0.

    Args:
        identity: the tool's name; not empty.
        seconds: how long the call took, 0 to MAX_SECONDS.
    Raises:
        InvalidNode: a value of another type, or out of range.
    Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems,
        section 4.1 (pattern graphs).
    """

    identity: str
    seconds: float
    kind: ClassVar[Kind] = "tool"
    input_tokens: ClassVar[int] = 0
    output_tokens: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _check_identity(self.identity)
        object.__setattr__(self, "seconds", _duration(self.identity, self.seconds))


Node = LlmNode | ToolNode


def _check_identity(identity: object) -> None:
    if not isinstance(identity, str) or not identity:
        raise InvalidNode(identity, "identity", identity, "a non-empty str")
    try:
        identity.encode()
    except UnicodeEncodeError as cause:
        raise InvalidNode(identity, "identity", identity, "text that UTF-8 can encode") from cause


def _whole(identity: str, field: str, value: object) -> int:
    """Convert a whole number (also NumPy's, but not a bool) to an int; check its range."""
    rule = f"a whole number from 0 to {MAX_TOKENS}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidNode(identity, field, value, rule)
    whole = operator.index(cast("SupportsIndex", value))
    if not 0 <= whole <= MAX_TOKENS:
        raise InvalidNode(identity, field, value, rule)
    return whole


def _duration(identity: str, value: object) -> float:
    """Convert a real number (also NumPy's, but not a bool) to a float; check its range."""
    rule = f"a number of seconds from 0 to {MAX_SECONDS:.0f}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidNode(identity, "seconds", value, rule)
    try:
        seconds = float(value)
    except OverflowError as cause:
        raise InvalidNode(identity, "seconds", value, rule) from cause
    if not 0 <= seconds <= MAX_SECONDS:  # refuses NaN, too
        raise InvalidNode(identity, "seconds", value, rule)
    return seconds + 0.0  # -0.0 becomes 0.0: they are equal but print differently
