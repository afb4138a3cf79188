"""A crossword of 5 by 5 without black squares: five words across, five down.

With a list of words, the moves are those words of the list that fit one slot, and the model says
how well each fits its clue. Without one, the model proposes words. Crossing letters are checked
here in either case.

Source: Yao et al. (2023), Tree of Thoughts, section 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from agents.tree_of_thoughts.board_svg import capitals
from agents.tree_of_thoughts.search import Continuation, Status, Step

SIZE = 5
EMPTY = "."

EXAMPLES = (
    "Crossword clues and their answers, each a word of five letters.\n\n"
    "Clue: Animal that neighs and is ridden\nAnswer: horse\n\n"
    "Clue: It is eaten in slices with butter\nAnswer: bread\n\n"
)
"""Two solved clues: they show the model that a word follows."""

NO_CLUE = "Something"
"""Stands for a clue that says nothing, to find out how probable a word is without its clue."""

_PROPOSAL = re.compile(r"\b([1-5])[ .-]*(across|down|[ad])\b\W*([^\W\d_]{5})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a word.

    Attributes:
        name: such as "2 down".
        cells: indexes into the board, row by row.
    """

    name: str
    clue: str
    cells: tuple[int, ...]


class Words:
    """A list of words that can be searched by pattern."""

    def __init__(self, words: Iterable[str]) -> None:
        self._all = frozenset(words)
        index: dict[tuple[int, str], set[str]] = {}
        for word in self._all:
            for place, letter in enumerate(word):
                index.setdefault((place, letter), set()).add(word)
        self._index = index

    def fitting(self, pattern: str) -> Set[str]:
        """The words that a pattern such as ".n..l" matches."""
        known = [(place, letter) for place, letter in enumerate(pattern) if letter != EMPTY]
        sets = sorted((self._index.get(each, set()) for each in known), key=len)
        return sets[0].intersection(*sets[1:]) if sets else self._all


@dataclass(frozen=True, slots=True)
class Crossing:
    """An open slot that crosses the one where a word is to be placed.

    Attributes:
        at: the place of the common cell in the word to be placed.
        words: letter in that cell -> the words that then fit the crossing slot.
    """

    slot: Slot
    at: int
    words: Mapping[str, Set[str]]

    @classmethod
    def of(cls, placed: Slot, other: Slot, fitting: Set[str]) -> Crossing:
        """The crossing of two slots; `fitting` are the words that fit the other one by now."""
        [cell] = set(placed.cells) & set(other.cells)
        place = other.cells.index(cell)
        words: dict[str, set[str]] = {}
        for word in fitting:
            words.setdefault(word[place], set()).add(word)
        return cls(other, placed.cells.index(cell), words)


class Crossword:
    """The task for ten clues. A state is the board: 25 letters, row by row, EMPTY where none is.

    Args:
        across, down: SIZE clues each, from the top and from the left.
        words: the words that may be used, in lower case; none: any word that the model proposes.
    """

    name = "Crossword"
    start_name = "empty board"
    goal = "Solve a crossword of 5 by 5: five words across, five words down, all different."

    def __init__(
        self, across: Sequence[str], down: Sequence[str], words: Sequence[str] = ()
    ) -> None:
        assert len(across) == len(down) == SIZE, "a clue for each row and column"
        rows = [tuple(range(SIZE * at, SIZE * (at + 1))) for at in range(SIZE)]
        columns = [tuple(range(at, SIZE * SIZE, SIZE)) for at in range(SIZE)]
        self.slots = tuple(
            Slot(f"{at + 1} {way}", clue, cells[at])
            for way, clues, cells in (("across", across, rows), ("down", down, columns))
            for at, clue in enumerate(clues)
        )
        self.start = EMPTY * SIZE * SIZE
        self.max_depth = self.num_judged = len(self.slots)
        self._words = tuple(words)

    def moves(self, state: str) -> Iterator[Step] | None:
        """The words for the slot that fewest words fit, such that each slot still has a word."""
        if not self._words:
            return None
        patterns = {slot: pattern_in(state, slot) for slot in self.slots}
        taken = {pattern for pattern in patterns.values() if EMPTY not in pattern}
        open_slots = [slot for slot, pattern in patterns.items() if EMPTY in pattern]
        fitting = {slot: self._list.fitting(patterns[slot]) - taken for slot in open_slots}
        if not open_slots:
            return iter(())
        slot = min(open_slots, key=lambda each: len(fitting[each]))
        crossings = [
            Crossing.of(slot, other, words)
            for other, words in fitting.items()
            if other is not slot and set(other.cells) & set(slot.cells)
        ]
        steps = (_placed(state, slot, word, crossings) for word in sorted(fitting[slot]))
        return (step for step in steps if step is not None)

    def step(self, state: str, proposal: str) -> Step | None:
        """What a proposal such as "2 down: arena" leads to; None if its letters do not fit."""
        found = _PROPOSAL.search(proposal)
        if found is None:
            return None
        number, way, word = found.groups()
        name = f"{number} {'across' if way[0] in 'aA' else 'down'}"
        slot = next(each for each in self.slots if each.name == name)
        pattern, word = pattern_in(state, slot), word.lower()
        if EMPTY not in pattern or not _fits(word, pattern):
            return None
        board = _with_word(state, slot, word)
        complete = [p for each in self.slots if EMPTY not in (p := pattern_in(board, each))]
        if len(set(complete)) < len(complete):
            return None
        return Step(f"{slot.name}: {word}", board, _status(board))

    def describe(self, state: str) -> str:
        """The board, and the clues that are left with the letters known of their words."""
        clues = "\n".join(
            f"{slot.name} ({pattern_in(state, slot)}): {slot.clue}"
            for slot in self.slots
            if EMPTY in pattern_in(state, slot)
        )
        return f"Board:\n{board_text(state)}\n\nClues, with the letters known so far:\n{clues}"

    def how_to_propose(self, state: str, attempt: int) -> str:
        """How the model writes a step; after the first attempt, for which slot."""
        open_slots = [slot for slot in self.slots if EMPTY in pattern_in(state, slot)]
        if not attempt or not open_slots:
            return (
                'Write one more word of the crossword, such as "2 down: house", and nothing else.'
            )
        slot = open_slots[(attempt - 1) % len(open_slots)]
        return (
            f"Write the word of {SIZE} letters for {slot.name}, of which {pattern_in(state, slot)} "
            f'is known: {slot.clue}. Answer in the form "{slot.name}: house", and nothing else.'
        )

    def answer(self, path: Sequence[Step]) -> str:
        """The board, and the clues with their words."""
        state = path[-1].state if path else self.start
        words = "\n".join(
            f"{slot.name:<8}  {pattern_in(state, slot)}  {slot.clue}" for slot in self.slots
        )
        return f"{board_text(state)}\n\n{words}"

    def board(self, path: Sequence[Step]) -> tuple[str, ...]:
        """The rows of the board."""
        return tuple((path[-1].state if path else self.start)[at : at + SIZE] for at in _ROW_STARTS)

    @cached_property
    def _list(self) -> Words:
        return Words(self._words)


_ROW_STARTS = range(0, SIZE * SIZE, SIZE)


def board_text(state: str) -> str:
    """The board in capital letters, a row a line."""
    return "\n".join(" ".join(capitals(state[at : at + SIZE])) for at in _ROW_STARTS)


def pattern_in(state: str, slot: Slot) -> str:
    """What a board has in a slot."""
    return "".join(state[cell] for cell in slot.cells)


def claim(slot: Slot, word: str) -> Continuation:
    """That a word fits a slot's clue, for the model to judge."""
    prompt, without = (f"{EXAMPLES}Clue: {clue}\nAnswer:" for clue in (slot.clue, NO_CLUE))
    return Continuation(prompt=prompt, without=without, option=word)


def _placed(state: str, slot: Slot, word: str, crossings: Sequence[Crossing]) -> Step | None:
    """The step that places a word; None if a crossing slot has no word left then."""
    board = _with_word(state, slot, word)
    completed = [(slot, word)]
    for crossing in crossings:
        left = crossing.words.get(word[crossing.at], frozenset())
        if len(left) <= sum(each in left for _, each in completed):
            return None
        pattern = pattern_in(board, crossing.slot)
        if EMPTY not in pattern:
            completed.append((crossing.slot, pattern))
    return Step(
        move=f"{slot.name}: {word}",
        state=board,
        status=_status(board),
        continuations=tuple(claim(each, found) for each, found in completed),
    )


def _with_word(state: str, slot: Slot, word: str) -> str:
    letters = list(state)
    for cell, letter in zip(slot.cells, word, strict=True):
        letters[cell] = letter
    return "".join(letters)


def _fits(word: str, pattern: str) -> bool:
    pairs = zip(word, pattern, strict=True)
    return len(word) == SIZE and all(known in (EMPTY, letter) for letter, known in pairs)


def _status(board: str) -> Status:
    return Status.OPEN if EMPTY in board else Status.SOLVED
