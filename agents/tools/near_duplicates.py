"""Near-duplicates: the same passage in several documents or formats, such as .md and its .html."""

import re

from agents.tools.passages import Passage
from agents.tools.terms import words

MIN_SHARED_ORDER = 0.8
"""Share of a passage's word triples that a duplicate must have in common."""

# Markdown that is invisible when it is rendered: images, targets of links, fences, comments.
_MARKUP = re.compile(
    r"!\[[^\]]*\]\([^)]*\)|(?<=\])\([^)]*\)|^ {0,3}(?:`{3,}|~{3,}).*$|<!--.*?-->", re.MULTILINE
)


class DistinctPassages:
    """Passages of which none repeats another.

    A passage repeats another if all its words occur there, mostly in the same order. Passages that
    differ in a single number or name are therefore distinct, and markup makes no difference.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[frozenset[str], frozenset[tuple[str, ...]]]] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, passage: Passage) -> bool:
        """Add a passage and return True, or return False if it repeats one that was added."""
        found = words(_MARKUP.sub(" ", passage.text))
        vocabulary = frozenset(found)
        triples = frozenset(zip(found, found[1:], found[2:], strict=False)) or {tuple(found)}
        for other_vocabulary, other_triples in self._kept:
            num_shared = len(triples & other_triples)
            if vocabulary <= other_vocabulary and num_shared >= MIN_SHARED_ORDER * len(triples):
                return False
        self._kept.append((vocabulary, frozenset(triples)))
        return True
