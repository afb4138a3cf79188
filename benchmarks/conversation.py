"""A conversation that grows by 2.2 kB a turn: words from a fixed seed, no two turns alike."""

from __future__ import annotations

import random

TURNS = 100
TURN_BYTES = 2200

_SYLLABLES = [
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ha",
    "je",
    "ki",
    "lo",
    "mu",
    "na",
    "pe",
    "qui",
    "ro",
    "su",
    "ta",
    "ve",
    "wi",
    "xo",
    "yu",
]


def turns() -> list[str]:
    """What is said, turn by turn."""
    rng = random.Random(7)
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(3000)]
    said = []
    for _ in range(TURNS):
        text = ""
        while len(text) < TURN_BYTES:
            text += rng.choice(words) + " "
        said.append(text[:TURN_BYTES])
    return said
