"""Tasks of two pipelines and when they arrive, for `benchmarks.end_to_end`."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.data_files import BadData
from benchmarks.game24 import drawn

DOCUMENTS = Path(__file__).resolve().parent.parent / "docs"

RESEARCH, TREES = "deep research", "trees of thoughts"
PIPELINES = (RESEARCH, TREES)

ROUNDS, WIDTH, BEAM = 1, 1, 2
"""Sizes of the runs: a run alone takes seconds on a CPU."""

NUM_PUZZLES = 160
PUZZLE_SEED = 0

LEAST_HEADING_WORDS = 2
"""A heading with fewer words makes no question."""

PATIENCE_S = 10.0
"""For how long after its deadline a run may end; then it counts as missed."""

_HEADING = re.compile(r"^##+ +(.+?) *$", re.MULTILINE)


class Task(NamedTuple):
    """What a run is asked: a question about the documents, or the numbers of a Game of 24."""

    pipeline: str
    text: str


class Arrival(NamedTuple):
    """A run that begins at a time of a cell, whatever else runs then.

    Attributes:
        at_s: seconds since the cell's first arrivals could come.
        deadline_s: end to end, from its arrival.
        is_counted: whether it arrives within the window.
    """

    at_s: float
    task: Task
    deadline_s: float
    is_counted: bool


def tasks() -> tuple[dict[str, list[Task]], dict[str, list[Task]]]:
    """The tasks of each pipeline to learn from, and others to measure.

    Raises:
        BadData: the documents have too few headings.
    """
    found = {RESEARCH: questions(DOCUMENTS), TREES: drawn(NUM_PUZZLES, PUZZLE_SEED)}
    if len(found[RESEARCH]) < 2:
        raise BadData(f"{DOCUMENTS} has fewer than two headings to ask about")
    halves = [
        {name: [Task(name, text) for text in texts[half::2]] for name, texts in found.items()}
        for half in (0, 1)
    ]
    return halves[0], halves[1]


def questions(folder: Path) -> list[str]:
    """A question about each heading of the documents, in the order of files and lines."""
    headings = dict.fromkeys(
        heading
        for path in sorted(folder.rglob("*.md"))
        for heading in _HEADING.findall(path.read_text(encoding="utf-8"))
        if len(heading.split()) >= LEAST_HEADING_WORDS
    )
    return [f"What do the documents say about this: {heading.rstrip('?')}?" for heading in headings]


def arrivals_of(
    measured: Mapping[str, Sequence[Task]],
    isolated_s: Mapping[str, float],
    *,
    rate_per_s: float,
    factors: tuple[float, float],
    warmup_s: float,
    window_s: float,
    seed: int,
) -> list[Arrival]:
    """A Poisson process of runs, half of each pipeline, until all counted ones have ended.

    Args:
        isolated_s: pipeline -> duration of a run alone.
        factors: a deadline is drawn evenly between these multiples of that.
    """
    choose = random.Random(seed)
    orders = {name: choose.sample(each, len(each)) for name, each in measured.items()}
    given = dict.fromkeys(orders, 0)
    window_end_s = warmup_s + window_s
    last_s = window_end_s + factors[1] * max(isolated_s.values()) + PATIENCE_S
    arrivals = []
    at_s = choose.expovariate(rate_per_s)
    while at_s < last_s:
        name = choose.choice(PIPELINES)
        task = orders[name][given[name] % len(orders[name])]
        given[name] += 1
        deadline_s = choose.uniform(*factors) * isolated_s[name]
        arrivals.append(Arrival(at_s, task, deadline_s, warmup_s <= at_s < window_end_s))
        at_s += choose.expovariate(rate_per_s)
    return arrivals
