"""Game of 24: combine all numbers with + - * / so that 24 is left.

Source: Yao et al. (2023), Tree of Thoughts, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from agents.tree_of_thoughts.search import Status, Step

TARGET = 24
MAX_NUMBERS = 6
MAX_DIGITS = 6


class GameOf24:
    """The task for some numbers. A state lists the numbers that are left, ascending.

    Args:
        numbers: whole numbers of at most MAX_DIGITS digits, 2 to MAX_NUMBERS of them.
    """

    name = "Game of 24"
    num_judged = 0

    def __init__(self, numbers: Sequence[int], target: int = TARGET) -> None:
        self._target = target
        self.goal = (
            f"Combine all numbers with + - * / so that {target} is left. Each step replaces two of "
            "the numbers by one."
        )
        self.start = self.start_name = _text(map(Fraction, numbers))
        self.max_depth = len(numbers) - 1

    @classmethod
    def parse(cls, text: str) -> GameOf24:
        """The task that a user's text means, such as "4 5 6 10".

        Raises:
            ValueError: it is not a list of 2 to MAX_NUMBERS whole numbers, or one is too long.
        """
        parts = text.replace(",", " ").split()
        are_numbers = all(part.isascii() and part.isdigit() for part in parts)
        if not are_numbers or not 2 <= len(parts) <= MAX_NUMBERS:
            raise ValueError(f"give 2 to {MAX_NUMBERS} whole numbers, such as 4 5 6 10")
        if max(map(len, parts)) > MAX_DIGITS:
            raise ValueError(f"give numbers of at most {MAX_DIGITS} digits, such as 4 5 6 10")
        return cls([int(part) for part in parts])

    def moves(self, state: str) -> list[Step]:
        """All combinations of two numbers; those with equal results once."""
        numbers = [Fraction(part) for part in state.split()]
        steps: dict[str, Step] = {}
        for first, second in combinations(range(len(numbers)), 2):
            rest = [n for at, n in enumerate(numbers) if at not in (first, second)]
            for move, result in _results(numbers[first], numbers[second]):
                left = _text([*rest, result])
                steps.setdefault(left, Step(f"{move} = {result}", left, self._status(left)))
        return list(steps.values())

    def step(self, state: str, proposal: str) -> Step | None:
        """Never called: all moves are listed."""
        raise AssertionError("all moves are listed")

    def describe(self, state: str) -> str:
        """The numbers that are left."""
        return f"Numbers left: {state}"

    def how_to_propose(self, state: str, attempt: int) -> str:
        """Never called: all moves are listed."""
        raise AssertionError("all moves are listed")

    def answer(self, path: Sequence[Step]) -> str:
        """The equations."""
        return "\n".join(step.move for step in path) or "no step was found"

    def board(self, path: Sequence[Step]) -> tuple[str, ...]:
        """There is none."""
        return ()

    def _status(self, state: str) -> Status:
        if " " in state:
            return Status.OPEN
        return Status.SOLVED if Fraction(state) == self._target else Status.DEAD


def _results(low: Fraction, high: Fraction) -> list[tuple[str, Fraction]]:
    """Each operation on two numbers, of which `low` is not the higher one, with its result."""
    results = [
        (f"{low} + {high}", low + high),
        (f"{high} - {low}", high - low),
        (f"{low} * {high}", low * high),
    ]
    if low:
        results.append((f"{high} / {low}", high / low))
    if high:
        results.append((f"{low} / {high}", low / high))
    return results


def _text(numbers: Sequence[Fraction] | map[Fraction]) -> str:
    return " ".join(str(number) for number in sorted(numbers))
