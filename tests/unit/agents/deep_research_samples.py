"""Documents to research, and a model that answers each prompt of the pipeline by its schema."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from agents.tools.corpus import Corpus
from serving.errors import EngineDied
from serving.generation import GenerationRequest
from tests.unit.agents.corpus_samples import write
from tests.unit.orchestrator.schema_answers import fitting_answer

QUESTION = "How is a deadline divided over the stages of a run?"
FURTHER = ["Which share does a stage get?", "What does the scheduler do?", "When is work late?"]

PLAN, READ, REFLECT, WRITE = "Plan", "Reading", "Reflection", "Draft"
"""The titles of the answers' schemas."""


def open_corpus(folder: Path) -> Corpus:
    """A corpus of four documents with four sections each; three are about the question."""
    topics = {
        "deadline": "A deadline is divided over the stages of a run by what each took before.",
        "stage": "Each stage gets a share of the time that is left when it begins.",
        "scheduler": "The scheduler orders requests by their sub-deadline; late work comes last.",
        "garden": "Roses want sun, and a gardener divides their roots in autumn.",
    }
    files: dict[str, str | bytes] = {
        f"{topic}.md": f"# On the {topic}\n\n"
        + "\n\n".join(f"## Part {part}\n\n{text} This is part {part}." for part in range(4))
        for topic, text in topics.items()
    }
    documents = write(folder / "documents", files)
    return Corpus.open(documents, index_path=folder / "index.db")


class Model:
    """Answers each request with a valid answer of its schema, unless it is changed.

    Args:
        changes: title of a schema -> an exception to raise, a text to answer, fields of the answer,
            or a function from the answer to another one.
    Attributes:
        asked: title of a schema -> number of requests.
    """

    def __init__(self, **changes: Any) -> None:
        self.asked: Counter[str] = Counter()
        self._changes = changes

    def __call__(self, request: GenerationRequest) -> str:
        assert request.schema is not None
        title = str(request.schema["title"])
        self.asked[title] += 1
        answer = fitting_answer(request.schema)
        max_items = request.schema["properties"].get("questions", {}).get("maxItems", 0)
        if title == PLAN:
            answer["questions"] = FURTHER[:max_items]
        if title == REFLECT:
            answer = {"enough": False, "questions": [f"{self.asked[title]}: {FURTHER[1]}"]}
        if title == READ:
            prompt = request.prompt[-1].content  # type: ignore[union-attr]
            passage = prompt.partition(":\n")[2].rpartition("\n\n")[0]
            answer["note"] = f"It says: {' '.join(passage.split())}"[:300]
        if title == WRITE:
            for section in answer["sections"]:
                section["text"] = "A deadline is divided over the stages; the scheduler knows it."
        change = self._changes.get(title)
        if isinstance(change, Exception):
            raise change
        if isinstance(change, str):
            return change
        if callable(change):
            answer = change(answer)
        return json.dumps(answer | (change if isinstance(change, dict) else {}))


class PlainModel:
    """Answers the prompts for a small model.

    Args:
        says: of a quote, in plain words, and as an answer to the question.
        asks: a question about any text.
        fail_at: number of the request, from 1, at which the engine dies.
    """

    def __init__(
        self,
        *,
        says: str = "The deadline is divided over all stages of the run.",
        asks: str = FURTHER[0],
        fail_at: int = 0,
    ) -> None:
        self._says, self._asks = says, asks
        self._fail_at, self._asked = fail_at, 0

    def __call__(self, request: GenerationRequest) -> str:
        self._asked += 1
        if self._asked == self._fail_at:
            raise EngineDied("out of memory")
        prompt: Any = request.prompt[-1]
        return self._asks if prompt.content.startswith("Ask a question about: ") else self._says
