"""Support of a text by a source: shared words, its numbers, nothing that is said twice."""

from __future__ import annotations

import pytest

from agents.deep_research.support import is_supported, shares_words, supported_sentences

SOURCE = "A deadline of 60 s is divided over the stages of a run, e.g. by what each took before."


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("Deadlines.", "a deadline", True),
        ("It is the one that was.", "It is that.", False),  # stop words only
        ("a tool's", "a run's", False),
        ("", "deadline", False),
    ],
)
def test_texts_share_words_if_a_content_word_is_in_both(
    left: str, right: str, expected: bool
) -> None:
    assert shares_words(left, right) is shares_words(right, left) is expected


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("The deadline is divided over all stages.", True),
        ("The deadline of 60 s is divided over all stages.", True),
        ("The deadline of 70 s is divided over all stages.", False),
        ("Is the deadline divided over all stages?", False),
        ("The deadline is divided over all stages and", False),
        ("Deadlines are divided.", False),  # too short for a statement
        ("The deadline is divided, says the boiler's technician.", False),
        (SOURCE, False),
    ],
)
def test_a_sentence_is_kept_if_its_words_and_numbers_are_in_the_source(
    text: str, kept: bool
) -> None:
    assert list(supported_sentences(text, SOURCE)) == ([text] if kept else [])


def test_a_sentence_that_was_said_is_not_kept() -> None:
    text = "The deadline is divided over all stages."
    assert list(supported_sentences(f"{text} {text.upper()}", SOURCE)) == [text]
    assert (
        list(supported_sentences(text, SOURCE, said=["the deadline is divided over all stages"]))
        == []
    )


def test_a_text_without_content_words_supports_nothing_and_is_not_supported() -> None:
    assert not is_supported("It is so.", "It is so.")
    assert not is_supported("Deadlines", "")
