"""The prompt prefixes of programs that a replica has probably cached: what it was sent lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_CHARACTERS = 512
"""Characters of a block; a shorter prompt is computed in less time than it takes to route it."""

MAX_BLOCKS_OF_PROMPT = 512
"""Blocks of a prompt that are compared: 256 Ki characters, so that a huge one costs 0.3 ms."""

MAX_BLOCKS = 100_000
"""Blocks that are known of a replica, of 100 bytes each; more than its KV cache holds."""


def blocks_of(program: str, prompt: str) -> tuple[int, ...]:
    """A key for each full block of a program's prompt; equal keys mean equal text up to there.

    A request without a program has none: only programs stay where they are.
    """
    if not program:
        return ()
    keys, key = [], hash(program)
    end = min(len(prompt), MAX_BLOCKS_OF_PROMPT * BLOCK_CHARACTERS)
    for start in range(0, end - BLOCK_CHARACTERS + 1, BLOCK_CHARACTERS):
        key = hash((key, prompt[start : start + BLOCK_CHARACTERS]))
        keys.append(key)
    return tuple(keys)


class SentPrefixes:
    """The blocks that were sent to one replica; the least recently used are forgotten first."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, blocks: Sequence[int]) -> None:
        """Remember a prompt that the replica has begun to answer."""
        for block in reversed(blocks):  # the beginning of a prompt is used last, and forgotten last
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > MAX_BLOCKS:
            self._blocks.popitem(last=False)

    def shared_characters(self, blocks: Sequence[int]) -> int:
        """How much of a prompt's beginning the replica was sent before, in characters."""
        count = 0
        for block in blocks:
            if block not in self._blocks:
                break
            count += 1
        return count * BLOCK_CHARACTERS

    def clear(self) -> None:
        """Forget all: the replica began anew."""
        self._blocks.clear()
