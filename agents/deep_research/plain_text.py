"""Deep research with a small model: short prompts, plain text, and only what a source supports.

A model of few parameters cannot plan or judge, and invents. So each quote is chosen by the words
that it shares with the question; the model says it in plain words, and of what it says only
sentences that the quote supports are kept.

All prompts begin with the same turns, which show the three kinds of answers. Together they fill a
block of the engine's prefix cache (128 tokens on a CPU), so they are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agents.deep_research.notes import Note, Reading
from agents.deep_research.report import Report, by_relevance, quoted_report
from agents.deep_research.support import (
    is_supported,
    overlap,
    shares_words,
    supported_sentences,
)
from agents.tools.passages import Passage
from agents.tools.quoting import best_quote
from agents.tools.sentences import sentences
from agents.tools.terms import content_words
from orchestrator import gather, llm
from serving.generation import Message

SYSTEM = (
    "You help people to read technical documents. Answer in one short sentence of plain words. "
    "Say only what the text says."
)

SHARED_TURNS = (
    Message("system", SYSTEM),
    Message(
        "user",
        "Say in plain words: A check of the boiler is mandated each spring, and is carried out by "
        "two technicians.",
    ),
    Message("assistant", "Two technicians must check the boiler each spring."),
    Message("user", "Ask a question about: the boiler is switched off until the valve is replaced"),
    Message("assistant", "Why is the boiler switched off until the valve is replaced?"),
    Message(
        "user",
        "What happens if a valve leaks? Answer from this text: If a valve leaks, the boiler is "
        "switched off until the valve has been replaced.",
    ),
    Message("assistant", "The boiler stays off until a leaking valve has been replaced."),
)

ANSWER_TOKENS = 60
ANSWER_SOURCES = 3
"""Quotes from which the question as a whole is answered."""

MIN_SHARED_WORDS = 2
"""Of a relevant passage's heading and quote with the question; one alone is often by chance."""

REPETITION_PENALTY = 1.1
"""Without one a small model soon repeats a phrase for ever at temperature 0."""


async def plan(question: str, width: int) -> list[str]:
    """The question that the model asks about the question, if it is another one."""
    return await _further_questions([question], question, width)


async def read(question: str, passage: Passage) -> Reading:
    """The passage's best quote for the question, and what the model says about it."""
    quote = best_quote(passage, question)
    answer = await _ask(f"Say in plain words: {quote.text}")
    text = " ".join(supported_sentences(answer, quote.text))
    needed = min(MIN_SHARED_WORDS, len(content_words(question)))
    is_relevant = overlap(f"{passage.heading} {quote.text}", question) >= needed
    return Reading(quote, text, is_relevant)


async def reflect(question: str, width: int, sources: Sequence[Note]) -> list[str]:
    """Questions about what the best sources say."""
    quotes = [note.quote.text for note in sources]
    return await _further_questions(quotes, question, width)


async def write(question: str, sources: Sequence[Note], rounds: int, cut: Sequence[str]) -> Report:
    """The quotes by section, and what the model answers to the question as a whole.

    Each sentence of the answer stands with the quote that supports it best, if there is one.
    """
    best = by_relevance(sources, question)[:ANSWER_SOURCES]
    texts = " ".join(note.quote.text for note in best)
    answer = await _ask(f"{question} Answer from this text: {texts}")
    said = {note.number: note.text for note in sources}
    for sentence in sentences(answer):
        supporting = [
            note
            for note in best
            if any(supported_sentences(sentence, note.quote.text, said=sentences(note.text)))
        ]
        if supporting and shares_words(sentence, question):
            note = max(supporting, key=lambda note: overlap(note.quote.text, sentence))
            said[note.number] = f"{said[note.number]} {sentence}".strip()
    notes = [replace(note, text=said[note.number]) for note in sources]
    return quoted_report(question, notes, rounds=rounds, cut=cut)


async def _further_questions(texts: Sequence[str], question: str, width: int) -> list[str]:
    """What the model asks about each text, if most of it is about the text and the question."""
    texts = texts[:width]
    answers = await gather(*(_ask(f"Ask a question about: {text}") for text in texts))
    return [
        asked
        for asked, text in zip(answers, texts, strict=True)
        if asked.endswith("?")
        and shares_words(asked, question)
        and is_supported(asked, f"{question} {text}")
        and content_words(asked) != content_words(question)
    ]


async def _ask(prompt: str) -> str:
    answer = await llm(
        [*SHARED_TURNS, Message("user", prompt)],
        max_tokens=ANSWER_TOKENS,
        temperature=0.0,
        repetition_penalty=REPETITION_PENALTY,
        stop=["\n"],
    )
    return answer.strip()
