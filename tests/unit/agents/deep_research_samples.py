"""Documents to research, and a model that answers each question of the pipeline by its shape."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from agents.tools.corpus import Corpus
from serving.generation import GenerationRequest
from tests.unit.agents.corpus_samples import write
from tests.unit.orchestrator.schema_answers import fitting_answer

QUESTION = "How is a deadline divided over the stages of a run?"
FURTHER = ["Which share does a stage get?", "What does the scheduler do?", "When is work late?"]

# What the model is asked for, by the title of the shape that its answer must have.
PLAN, READ, REFLECT, WRITE = "Plan", "Reading", "Reflection", "Draft"


def open_corpus(folder: Path) -> Corpus:
    """Four documents that have something to say, in sixteen parts."""
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
    """Answers by the shape that is asked for; what it says to one of them can be changed."""

    def __init__(self, **changed: Any) -> None:
        self.asked: Counter[str] = Counter()
        self._changed = changed

    def __call__(self, request: GenerationRequest) -> str:
        assert request.schema is not None
        shape = str(request.schema["title"])
        self.asked[shape] += 1
        answer = fitting_answer(request.schema)
        most = request.schema["properties"].get("questions", {}).get("maxItems", 0)
        if shape == PLAN:
            answer["questions"] = FURTHER[:most]
        if shape == REFLECT:
            answer = {"enough": False, "questions": [f"{self.asked[shape]}: {FURTHER[1]}"]}
        change = self._changed.get(shape)
        if isinstance(change, Exception):
            raise change
        if isinstance(change, str):
            return change
        if callable(change):
            answer = change(answer)
        return json.dumps(answer | (change if isinstance(change, dict) else {}))
