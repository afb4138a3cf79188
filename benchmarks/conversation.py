"""A conversation that grows by 2.2 kB per turn: random words, fixed seed, all turns differ."""

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
    """The texts of all turns."""
    rng = random.Random(7)
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(3000)]
    texts = []
    for _ in range(TURNS):
        text = ""
        while len(text) < TURN_BYTES:
            text += rng.choice(words) + " "
        texts.append(text[:TURN_BYTES])
    return texts
