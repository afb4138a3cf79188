"""A task in words: a text that grows by a line a step, and a check of the whole text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agents.tree_of_thoughts.search import Status, Step
from agents.tree_of_thoughts.tasks.expression import Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCheck:
    """What the finished text must be like.

    Attributes:
        pattern: regular expression that matches the whole text; None: any.
        contains, excludes: words that must, or must not, occur in it, in any case of letters.
        min_characters, max_characters: limits of its length.
    """

    pattern: Expression | None = None
    contains: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    min_characters: int = 0
    max_characters: int | None = None

    def can_become_valid(self, text: str) -> bool:
        """Whether more lines could make a valid text of this one."""
        is_short = self.max_characters is None or len(text) <= self.max_characters
        return is_short and not any(_has(text, word) for word in self.excludes)

    def is_valid(self, text: str) -> bool:
        """Whether the finished text is as it must be.

        Raises:
            InvalidTask: the pattern takes too much time.
        """
        return (
            self.can_become_valid(text)
            and len(text) >= self.min_characters
            and all(_has(text, word) for word in self.contains)
            and (self.pattern is None or self.pattern.matches(text))
        )


class FreeText:
    """The task of a text. A state is the text so far.

    Args:
        start: the text's beginning; may be empty.
        steps: lines that are added to it.
        moves: the lines that may be added, each once; none: the model writes them.
    """

    name = "Text"
    num_judged = 0

    def __init__(
        self,
        goal: str,
        *,
        start: str = "",
        steps: int,
        moves: Sequence[str] = (),
        check: TextCheck | None = None,
    ) -> None:
        self.goal = goal
        self.start = start
        self.start_name = start.strip().partition("\n")[0] or "empty text"
        self.max_depth = steps
        self._moves = tuple(moves)
        self._check = check or TextCheck()

    def moves(self, state: str) -> Iterator[Step] | None:
        """The listed lines that are not in the text yet; None if none are listed."""
        if not self._moves:
            return None
        used = set(self._added(state))
        return (self._grown(state, line) for line in self._moves if line not in used)

    def step(self, state: str, proposal: str) -> Step | None:
        """The text with the first line of a proposal; None if that is empty or stands there.

        A line that was cut off within a sentence ends with the sentence before, if there is one.
        """
        line = " ".join(proposal.strip().partition("\n")[0].split())
        whole = _WHOLE_SENTENCES.match(line)
        line = whole.group() if whole else line
        if not line or line in state.split("\n"):
            return None
        step = self._grown(state, line)
        return None if step.status is Status.DEAD and self._is_unfinished(step.state) else step

    def describe(self, state: str) -> str:
        """The text so far."""
        count = len(self._added(state))
        return f"The text so far ({count} of {self.max_depth} lines):\n{state or '(empty)'}"

    def how_to_propose(self, state: str, attempt: int) -> str:
        """How the model writes a step."""
        return "Write the next line of the text, a short one, and nothing else."

    def answer(self, path: Sequence[Step]) -> str:
        """The text."""
        return (path[-1].state if path else self.start) or "no line was found"

    def board(self, path: Sequence[Step]) -> tuple[str, ...]:
        """A text has none."""
        return ()

    def _added(self, state: str) -> list[str]:
        """The lines that steps have added."""
        added = state[len(self.start) :].removeprefix("\n")
        return added.split("\n") if added else []

    def _is_unfinished(self, state: str) -> bool:
        return len(self._added(state)) < self.max_depth

    def _grown(self, state: str, line: str) -> Step:
        text = f"{state}\n{line}" if state else line
        if self._is_unfinished(text):
            status = Status.OPEN if self._check.can_become_valid(text) else Status.DEAD
        else:
            status = Status.SOLVED if self._check.is_valid(text) else Status.DEAD
        return Step(line, text, status)


_WHOLE_SENTENCES = re.compile(r"""^.*[.!?]["')\u2019\u201d]*(?=\s|$)""")


def _has(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None
