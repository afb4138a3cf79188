"""Where the sentences of a text begin and end. All functions are pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

# An end mark, perhaps closing quotes or brackets; no lower-case word follows, as in "e.g. a".
_END = re.compile(
    r"(?P<word>[^\s.!?]*)[.!?](?P<closing>[\"'*_`)\]\u2019\u201d]*)"
    r"(?:(?P<space>\s+)(?![a-z]+\b)|\Z)|[\u3002\uff01\uff1f]"
)
_COMPLETE = re.compile(r"[.!?\u3002\uff01\uff1f][\"'*_`)\]\u2019\u201d]*\s*\Z")
_ABBREVIATIONS = {
    "al",
    "approx",
    "ca",
    "cf",
    "ch",
    "dr",
    "eq",
    "fig",
    "figs",
    "mr",
    "mrs",
    "ms",
} | {*("nos", "p", "pp", "prof", "sec", "st", "tab", "vs")}


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each sentence; the last one may lack its end.

    One word alone, as in "8. Fairness", begins the next sentence; so does "Fig." in "Fig. 4".
    """
    start = 0
    for match in _END.finditer(text):
        space = match["space"]
        end = match.end() if space is None else match.start("space")
        is_inner = space is not None and (
            " " not in text[start:end].strip()
            or (not match["closing"] and match["word"].lstrip("(").lower() in _ABBREVIATIONS)
        )
        if not is_inner:
            if text[start:end].strip():
                yield start, end
            start = match.end()
    if text[start:].strip():
        yield start, len(text)


def sentences(text: str) -> list[str]:
    """The complete sentences of a text."""
    found = (text[start:end].strip() for start, end in sentence_spans(text))
    return [each for each in found if _COMPLETE.search(each)]


def ended(text: str, max_chars: int) -> str:
    """A text of at most max_chars that ends with a sentence, if that limit may have cut it.

    A shorter text is returned as it is. If no sentence is complete, it ends at a word, with " ...".
    """
    if len(text) < max_chars:
        return text
    text = text[:max_chars]
    complete = [end for start, end in sentence_spans(text) if _COMPLETE.search(text[start:end])]
    if complete:
        return text[: complete[-1]]
    whole_words = text.rpartition(" ")[0] or text
    return f"{whole_words.rstrip(' ,;:-')} ..."
