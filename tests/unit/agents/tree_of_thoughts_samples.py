"""Tasks for tests of Tree of Thoughts, and a model whose answers depend on the question alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

from serving.generation import GenerationRequest

ACROSS = ("A small mistake", "Where gladiators fought", "Finds submarines", "A message", "A race")
DOWN = ("A beam of light", "A smell", "Of punishment", "A slow animal", "Not late")
ANSWERS = ("lapse", "arena", "sonar", "email", "rally", "laser", "aroma", "penal", "snail", "early")
OTHERS = ("table", "lemon", "adore", "edema", "serum", "pearl", "loyal", "eager", "noble", "risen")

CROSSWORD = (
    f'kind = "crossword"\nacross = {list(ACROSS)}\ndown = {list(DOWN)}\n'
    f'words = "{" ".join(ANSWERS + OTHERS)}"\n'
)
TEXT = """
kind = "text"
goal = "Write a story."
start = "It rained."
steps = 3
[check]
excludes = ["snow"]
"""


def task_path(folder: Path, text: str) -> Path:
    """A task file in a folder."""
    path = folder / "task.toml"
    path.write_text(text, encoding="utf-8")
    return path


def settled(request: GenerationRequest) -> str:
    """A choice or a line that looks random, but is the same for the same request."""
    asked = repr((request.prompt, request.choices, request.seed))
    number = int(hashlib.sha256(asked.encode()).hexdigest(), 16)
    if request.choices:
        return request.choices[number % len(request.choices)]
    return f"Then came number {number % 1000}."


def knowing(request: GenerationRequest) -> str:
    """A model that knows the crossword's answers: it chooses one wherever it can."""
    assert isinstance(request.prompt, str)
    for clue, word in zip(ACROSS + DOWN, ANSWERS, strict=True):
        if f"Clue: {clue}\n" in request.prompt and f" {word}" in request.choices:
            return f" {word}"
    return settled(request)
