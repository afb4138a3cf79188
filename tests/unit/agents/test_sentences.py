"""Where sentences begin and end: also after abbreviations, numbers and names in lower case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.tools.sentences import ended, sentence_spans, sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is so. Then it ends.", ["It is so.", "Then it ends."]),
        ("It is so, e.g. here. It ends", ["It is so, e.g. here.", "It ends"]),
        ("As Fig. 4 says, it is so. It ends.", ["As Fig. 4 says, it is so.", "It ends."]),
        ("Wu et al. 2025 say so. It ends.", ["Wu et al. 2025 say so.", "It ends."]),
        ("It is combined. vLLM decides.", ["It is combined.", "vLLM decides."]),
        ("**8. Fairness**, if so. It ends.", ["**8. Fairness**, if so.", "It ends."]),
        ('He says "so." It (ends.) Then', ['He says "so."', "It (ends.)", "Then"]),
        ("\u5b83\u662f\u3002\u5b83\u3002", ["\u5b83\u662f\u3002", "\u5b83\u3002"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_a_text_is_divided_into_its_sentences(text: str, expected: list[str]) -> None:
    assert [text[start:end].strip() for start, end in sentence_spans(text)] == expected


def test_only_complete_sentences_are_sentences() -> None:
    assert sentences("It is so. It has no") == ["It is so."]


@given(text=st.text("aB.! \n", max_size=60))
def test_the_sentences_together_are_the_text(text: str) -> None:
    assert "".join("".join(text[a:b] for a, b in sentence_spans(text)).split()) == "".join(
        text.split()
    )


def test_a_long_text_without_an_end_takes_no_time() -> None:
    assert sentences("word " * 200_000) == []


@given(text=st.text("aB. !?\n", max_size=60), max_chars=st.integers(1, 60))
def test_a_text_that_a_limit_cuts_ends_with_a_sentence_or_a_word(text: str, max_chars: int) -> None:
    result = ended(text, max_chars)
    cut = text[:max_chars]
    if len(text) < max_chars:
        assert result == text
    elif not result.endswith(" ..."):
        assert cut.startswith(result)
        assert result.rstrip()[-1] in ".!?"
    elif " " in cut.strip():
        kept = result.removesuffix(" ...")
        assert cut.startswith(kept)
        assert not kept or not (kept[-1] + cut[len(kept) : len(kept) + 1]).isalnum()
