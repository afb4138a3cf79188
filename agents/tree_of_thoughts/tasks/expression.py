"""Regular expressions of task files: checked when they are read, and matched in bounded time.

A user's pattern may need time that is exponential in the text's length, so each match has a limit
of time. The pattern is compiled to code for each of its repetitions, so these are limited too.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field

import regex

from agents.tree_of_thoughts.errors import InvalidTask

MAX_PATTERN = 1000
"""Most characters of a pattern."""

MAX_WRITTEN_OUT = 20_000
"""Most characters of a pattern in which each repetition {m,n} is written out."""

MATCH_TIMEOUT_S = 0.1
"""Most time of a match, which runs in the event loop."""

_PART = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?P<least>\d*)(?:,(?P<most>\d*))?\}|.", re.DOTALL
)
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")


@dataclass(frozen=True, slots=True)
class Expression:
    """A regular expression.

    Args:
        pattern: as Python's `re` reads it, where "." is also a line break.
    Raises:
        ValueError: it is no regular expression, or too long.
    """

    pattern: str
    _compiled: regex.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.pattern) > MAX_PATTERN:
            raise ValueError(f"a pattern has at most {MAX_PATTERN:,} characters")
        if _VERBOSE.search(self.pattern):
            raise ValueError("not a regular expression for a task: leave out the flag x")
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                re.compile(self.pattern, re.DOTALL)  # refuses what only regex knows
                if written_out(self.pattern) > MAX_WRITTEN_OUT:
                    raise ValueError("the pattern repeats too much: use smaller numbers")
                compiled = regex.compile(self.pattern, regex.DOTALL)
        except RecursionError:
            raise ValueError("not a regular expression: it is nested too deeply") from None
        except (re.error, regex.error, OverflowError) as error:
            raise ValueError(f"not a regular expression: {error}") from None
        object.__setattr__(self, "_compiled", compiled)

    def matches(self, text: str) -> bool:
        """Whether it matches the whole text.

        Raises:
            InvalidTask: it cannot be said within MATCH_TIMEOUT_S.
        """
        try:
            return self._compiled.fullmatch(text, timeout=MATCH_TIMEOUT_S) is not None
        except (TimeoutError, MemoryError):
            reason = (
                f"check.pattern takes more than {MATCH_TIMEOUT_S:g} s for a text of {len(text):,} "
                "characters: avoid repetitions within repetitions, such as (a+)+"
            )
            raise InvalidTask(self.pattern, reason) from None


def written_out(pattern: str) -> int:
    """How many characters a pattern has, at most, in which each repetition is written out."""
    sizes, last = [0], 0
    for part in _PART.finditer(pattern):
        text = part.group()
        if text == "(":
            sizes.append(1)
            last = 0
        elif text == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif text in ("+", "*") or (text[0] == "{" and len(text) > 1):
            counts = [int(each) for each in part.group("least", "most") if each]
            added = last * max(counts, default=1)
            sizes[-1] += added
            last += added
        else:
            last = 1
            sizes[-1] += 1
    return sum(sizes)
