"""Quoting: a quote is verbatim, from its lines, and the sentence that matches best."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.tools.passages import Passage
from agents.tools.quoting import Quote, best_quote
from tests.unit.agents.corpus_samples import law

LINE = st.one_of(
    st.sampled_from(["", "# Deadlines", "```", "|---|---|", "deadlines matter most here", "- x"]),
    st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=40),
    st.text("ab. \u3002", min_size=100, max_size=500),
)
TEXT = st.lists(LINE, min_size=1).map("\n".join).filter(lambda text: bool(text.strip()))


def quote(text: str, query: str, **settings: int) -> Quote:
    return best_quote(passage(text), query, **settings)


def passage(text: str, file: str = "a.md", heading: str = "") -> Passage:
    return Passage(file, 10, 10 + text.count("\n"), text, heading)


@pytest.mark.parametrize("file", ["a.md", "a.html"])
@law
@given(text=TEXT, query=st.one_of(st.text(), st.just("deadlines")), max_chars=st.integers(1, 300))
def test_a_quote_is_verbatim_in_its_lines(file: str, text: str, query: str, max_chars: int) -> None:
    result = best_quote(passage(text, file), query, max_chars=max_chars)
    assert result.text.strip()
    assert len(result.text) <= max_chars
    lines = text.split("\n")[result.line - 10 : result.end_line - 9]
    assert result.text in " ".join([lines[0].rstrip(), *(line.strip() for line in lines[1:])])
    if len(lines) == 1:
        assert result.text in lines[0]


def test_the_sentence_that_shares_most_terms_with_the_query_is_quoted() -> None:
    text = "Runs have stages.\nThe deadline is divided over stages.\nA deadline is a time."
    assert quote(text, "How is a deadline divided over the stages?") == Quote(
        11, "The deadline is divided over stages.", 11
    )


def test_word_forms_count_as_the_same_word() -> None:
    assert quote("Nothing of note is here.\nIt schedules requests.", "scheduling").line == 11


@pytest.mark.parametrize(
    "noise", ["# Deadline divided", "```deadline divided", "Deadline divided\n===", "", "|--|--|"]
)
def test_headings_fences_and_rules_are_not_quoted_if_there_is_prose(noise: str) -> None:
    text = f"{noise}\nNothing is said about it here."
    if noise.startswith("```"):
        text = f"Nothing is said about it here.\n{noise}\nx\n```"
    assert quote(text, "deadline divided").text == "Nothing is said about it here."


def test_the_heading_of_a_page_is_not_quoted_if_there_is_prose() -> None:
    page = passage("Deadlines\nWhat they are.", "a.html", heading="Deadlines")
    assert best_quote(page, "deadlines").text == "What they are."


def test_a_passage_of_headings_only_is_quoted_by_a_heading() -> None:
    assert quote("# Alpha\n## Beta deadline", "deadline") == Quote(11, "## Beta deadline", 11)


def test_prose_is_preferred_to_code_with_the_same_terms() -> None:
    text = "```\ndeadline divided = 1 + 2\n```\nThe deadline is divided."
    assert quote(text, "deadline divided").line == 13


def test_a_blank_line_of_code_is_not_quoted() -> None:
    assert quote("```\n\n}\n", "zebra").text != ""


def test_list_marks_and_indents_are_not_quoted() -> None:
    assert quote("  - 1. the item itself", "item").text == "the item itself"


def test_a_long_line_is_quoted_by_its_best_sentence() -> None:
    line = "First comes this. " * 20 + "The deadline is divided here! " + "Then that. " * 20
    assert quote(line, "deadline divided").text == "The deadline is divided here!"


def test_a_long_sentence_is_quoted_around_its_term() -> None:
    line = "word " * 200 + "deadline " + "word " * 200
    result = quote(line, "deadline", max_chars=80)
    assert "deadline" in result.text
    assert result.text.startswith("word")
    assert result.text.endswith("word")


def test_without_a_shared_term_the_first_statement_is_quoted() -> None:
    assert quote("# Title\n\nOK!\n\nThe first real statement is here.", "zebra").line == 14


def test_a_comment_in_a_line_of_markdown_is_not_quoted() -> None:
    line = "It is divided. <!-- deadline deadline --> The deadline is divided too."
    assert quote(line, "deadline").text == "The deadline is divided too."
    assert quote("text  <!-- deadline -->", "deadline").text == "text"


def test_a_sentence_over_several_lines_is_quoted_whole() -> None:
    text = (
        "- It is first. A deadline is\n  divided over stages,\n  e.g. by time. Then\n  it is used."
    )
    assert quote(text, "deadline divided") == Quote(
        10, "A deadline is divided over stages, e.g. by time.", 12
    )


def test_an_item_of_a_list_is_not_joined_to_the_next() -> None:
    text = "- the deadline\n- is divided\n\n> quoted\n> lines"
    assert quote(text, "deadline divided").text == "the deadline"
    assert quote(text, "lines") == Quote(14, "lines", 14)


def test_of_a_sentence_that_is_too_long_a_line_is_quoted() -> None:
    text = "many words\n" * 20 + "about a deadline and\n" + "more words\n" * 20
    assert quote(text, "deadline", max_chars=40) == Quote(30, "about a deadline and", 30)


def test_a_statement_is_preferred_to_a_row_of_a_table() -> None:
    text = "| deadline | divided |\n|---|---|\n| a deadline | divided |\n\nThe deadline is divided."
    assert quote(text, "deadline divided").line == 14


def test_a_sentence_may_begin_with_a_name_in_lower_case() -> None:
    text = "It is combined. vLLM decides in a step. Then it ends."
    assert quote(text, "vLLM").text == "vLLM decides in a step."


def test_a_number_or_a_word_in_front_is_not_a_sentence() -> None:
    text = "**8. Fairness**, if asked for: values differ. Yes. It is so."
    assert quote(text, "fairness").text == "**8. Fairness**, if asked for: values differ."


def test_the_head_of_a_table_is_not_quoted_if_there_is_a_row() -> None:
    text = "| boiler | pressure |\n|---|---|\n| main | 3 bar |"
    assert quote(text, "boiler pressure").text == "| main | 3 bar |"


def test_a_whole_sentence_is_preferred_to_the_end_of_one() -> None:
    text = "divided over stages of the run by time. A deadline is divided."
    assert quote(text, "deadline divided stages").text == "A deadline is divided."


def test_of_equal_sentences_the_one_about_the_heading_is_quoted() -> None:
    found = passage("It is divided by time. A budget is divided, too.", heading="Budgets")
    assert best_quote(found, "divided").text == "A budget is divided, too."
