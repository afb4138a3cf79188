"""Whether one text supports another: the words that they share. All functions are pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from agents.tools.sentences import sentences
from agents.tools.terms import content_words, words

MIN_SUPPORT = 0.6
"""Share of a sentence's content words that its source must have, for a model that invents much."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_MIN_WORDS = 4


def shares_words(left: str, right: str) -> bool:
    """Whether two texts have a content word in common, in any of its forms."""
    return not content_words(left).isdisjoint(content_words(right))


def overlap(text: str, of: str) -> int:
    """Number of content words of `of` that are in a text."""
    return len(content_words(text) & content_words(of))


def is_supported(text: str, source: str) -> bool:
    """Whether MIN_SUPPORT of a text's content words, and at least one, are in a source."""
    found = content_words(text)
    return len(found & content_words(source)) >= max(MIN_SUPPORT * len(found), 1)


def supported_sentences(text: str, source: str, *, said: Collection[str] = ()) -> Iterator[str]:
    """The complete sentences of a model's text that a source supports, each once.

    MIN_SUPPORT of a sentence's content words are in the source, and all of its numbers. Questions,
    sentences of less than _MIN_WORDS words, and those that are in the source or in `said` word for
    word are left out.
    """
    numbers = set(_NUMBER.findall(source))
    before = {plain_words(each) for each in said}
    source_words = f" {plain_words(source)} "
    for sentence in sentences(text):
        plain = plain_words(sentence)
        if (
            not sentence.rstrip("\"'*_`)]").endswith("?")
            and len(words(sentence)) >= _MIN_WORDS
            and is_supported(sentence, source)
            and numbers.issuperset(_NUMBER.findall(sentence))
            and plain not in before
            and f" {plain} " not in source_words
        ):
            before.add(plain)
            yield sentence


def plain_words(text: str) -> str:
    """The words of a text without markup and punctuation, to compare texts by."""
    return " ".join(words(text))
