"""The report as Markdown: complete, and without control characters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.deep_research.markdown import RANDOM_WEIGHTS, to_markdown
from agents.deep_research.marks import one_line
from agents.deep_research.notes import Note
from agents.deep_research.prompts import (
    TEXT_CHARS,
    Draft,
    DraftSection,
    draft_from,
    plan_of,
    reflection_of,
)
from agents.deep_research.report import Report, quoted_report, written_report
from agents.tools.passages import Passage
from agents.tools.quoting import Quote
from orchestrator.runtime.results import RunResult
from serving.generation import EngineInfo

INFO = EngineInfo(name="scripted", model="script", random_weights=False, max_model_tokens=100)

HOSTILE = "\x1b[31m\x07\x9b2J\u202e\u2028\r\n# heading\x00"

texts = st.text(max_size=30) | st.sampled_from([HOSTILE, "", " ", "\n", "plain"])


def a_note(number: int = 1, text: str = "it says so.", **changes: str) -> Note:
    fields = {
        "file": "a.md",
        "question": "why?",
        "quote": "it is a heading",
        "heading": "",
    } | changes
    passage = Passage(fields["file"], 3, 5, "it is a heading\nand so\non", fields["heading"])
    quote = Quote(3, fields["quote"], 3)
    return Note(number, fields["question"], passage, quote, text, relevant=True)


def a_draft(*citations: int, **changes: str) -> Draft:
    fields = {"title": "A title", "heading": "A heading", "text": "A text."} | changes
    section = DraftSection.model_construct(
        heading=fields["heading"], text=fields["text"], citations=list(citations)
    )
    return Draft.model_construct(title=fields["title"], sections=[section])


def markdown_of(report: Report, *, deadline_s: float | None = 60.0, elapsed_s: float = 5) -> str:
    """The Markdown of a run with this report as its result."""
    return to_markdown(RunResult(report, "run-1", deadline_s, elapsed_s, ()), INFO)


def test_a_written_report_lists_only_the_sources_that_its_sections_cite() -> None:
    notes = [a_note(number, file=f"{number}.md") for number in (1, 2, 3)]
    report = written_report("why?", a_draft(3, 1, 3), notes, rounds=2, cut=["Something."])
    assert [citation.file for citation in report.citations] == ["1.md", "3.md"]
    assert report.sections[0].citations == (3, 1)
    assert (report.rounds, report.cut) == (2, ("Something.",))


@pytest.mark.parametrize(
    ("text", "shown", "citations"),
    [
        ("It is so [9].", "It is so. [1]", (1,)),
        ("It is so [2]. And so[1].", "It is so [2]. And so[1].", (1, 2)),
        ("It is so [2, 9, 3].", "It is so [2][3]. [1]", (1, 2, 3)),
        ("It is so [2-4][7-9].", "It is so [2][3]. [1]", (1, 2, 3)),
        ("It is so \u30102\u3011.", "It is so [2]. [1]", (1, 2)),
        ("See [9](a.md), `a[9]` and [x9].", "See [9](a.md), `a[9]` and [x9]. [1]", (1,)),
        ("It is so [5-].", "It is so [5-]. [1]", (1,)),
        ("[1-2-9999,] [1-2-3]", "[1-2-9999,] [1-2-3] [1]", (1,)),
        ("In [2024] arr[0] is x[9].", "In [2024] arr[0] is x[9]. [1]", (1,)),
    ],
)
def test_marks_in_the_text_and_the_list_of_sources_agree(
    text: str, shown: str, citations: tuple[int, ...]
) -> None:
    notes = [a_note(number, file=f"{number}.md") for number in (1, 2, 3)]
    report = written_report("why?", a_draft(1, text=text), notes, rounds=1, cut=[])
    assert report.sections[0].citations == citations
    assert [citation.number for citation in report.citations] == sorted(citations)
    assert f"\n{shown}\n" in markdown_of(report)


def test_marks_that_a_model_wrote_in_titles_and_notes_are_dropped() -> None:
    draft = a_draft(1, title="A title [9]", heading="A heading [1]")
    report = written_report("why?", draft, [a_note()], rounds=1, cut=[])
    assert (report.title, report.sections[0].heading) == ("A title", "A heading")
    note = a_note(text="Its text says so [2].", heading="On a heading")
    quoted = quoted_report("why?", [note], rounds=1, cut=[])
    assert quoted.sections[0].text == "Its text says so. [1]"
    assert quoted.sections[0].citations == (1,)


def test_a_source_is_cited_only_by_sections_with_which_it_shares_a_word() -> None:
    notes = [a_note(1, "No.", quote="Roses are red."), a_note(2), a_note(3, quote="a text")]
    report = written_report("why?", a_draft(1, 3), notes, rounds=1, cut=[])
    assert report.sections[0].citations == (3,)
    report = written_report("why?", a_draft(1), notes, rounds=1, cut=[])
    assert report.sections[0].citations == (2,)  # of those that share most words, the first
    report = written_report("why?", a_draft(1), notes[:1], rounds=1, cut=[])
    assert report.sections[0].citations == report.citations == ()
    assert report.cut == ("No source supports the section 'A heading'.",)


def test_a_text_that_its_limit_cut_ends_with_a_sentence() -> None:
    text = f"A text is here. {'And so on ' * 80}"[:TEXT_CHARS]
    report = written_report("why?", a_draft(1, text=text), [a_note()], rounds=1, cut=[])
    assert report.sections[0].text == "A text is here."
    text = f"A text is here {'And so on ' * 80}"[:TEXT_CHARS]
    report = written_report("why?", a_draft(1, text=text), [a_note()], rounds=1, cut=[])
    assert report.sections[0].text.endswith("so on And ...")


QUESTION = "Why is a deadline divided over stages?"


def test_a_report_of_quotes_has_a_section_for_each_heading_and_the_best_quotes_first() -> None:
    notes = [
        a_note(1, "One.", question=QUESTION, heading="Stages", quote="Stages have names."),
        a_note(2, "Two is so.", heading="Deadlines", quote="A deadline is divided over stages."),
        a_note(3, heading="Stages", quote="Stages are divided."),
        a_note(4, heading="Stages", quote="**Stages** are divided!"),
        a_note(5, heading="Nothing of it", question=QUESTION, quote="The deadline is a time."),
        a_note(6, heading="Roses", quote="They are red."),
    ]
    report = quoted_report(QUESTION, notes, rounds=1, cut=[])
    shown = [(each.heading, each.quotes, each.text) for each in report.sections]
    assert shown == [
        ("Deadlines", (1,), "Two is so. [1]"),
        ("Stages", (2, 3), "it says so. [2] One. [3]"),
        ("Nothing of it: deadline", (4,), ""),
    ]
    assert [citation.quote for citation in report.citations] == [
        "A deadline is divided over stages.",
        "Stages are divided.",
        "Stages have names.",
        "The deadline is a time.",
    ]
    markdown = markdown_of(report)
    assert '> "Stages have names." [3]' in markdown
    assert markdown.count("Stages have names.") == 1


def test_a_row_of_a_table_comes_after_a_sentence_with_the_same_words() -> None:
    notes = [
        a_note(1, heading="Stages", quote="| stages | divided |"),
        a_note(2, heading="Stages", quote="Stages are divided."),
    ]
    report = quoted_report(QUESTION, notes, rounds=1, cut=[])
    assert report.citations[0].quote == "Stages are divided."


@pytest.mark.parametrize(
    ("question", "quote", "heading"),
    [
        ("What is R?", "R is a language.", "R"),
        ("To be or not to be?", "It is not to be.", "To, be, not"),
        ("zzz", "It matched by its heading only.", "On zzz"),
    ],
)
def test_a_passage_that_was_found_is_quoted_under_some_heading(
    question: str, quote: str, heading: str
) -> None:
    title = "On zzz" if question == "zzz" else ""
    note = a_note(question=question, quote=quote, heading=title)
    report = quoted_report(question, [note], rounds=1, cut=[])
    assert [section.heading for section in report.sections] == [heading]


def test_marks_of_a_document_in_a_heading_are_dropped() -> None:
    note = a_note(heading="Keys [1] and names", quote="Keys have names.")
    report = quoted_report("Which keys?", [note], rounds=1, cut=[])
    assert report.sections[0].heading == "Keys and names"


@given(texts, texts, texts, texts, texts, texts)
def test_control_characters_of_models_and_documents_are_not_in_the_markdown(
    title: str, heading: str, text: str, file: str, quote: str, question: str
) -> None:
    note = a_note(text=text, file=file, quote=quote, question=heading)
    draft = a_draft(1, title=title, heading=heading, text=text)
    for report in (
        written_report(question, draft, [note], rounds=1, cut=[text]),
        quoted_report(question, [note], rounds=1, cut=[text]),
    ):
        markdown = markdown_of(report)
        assert all(c.isprintable() or c in "\n\t" for c in markdown)
        lines = markdown.split("\n")
        assert lines[0].startswith("# ")
        assert lines[2].startswith("*Question: ") or report.title == one_line(question)
        assert ("## Sources" in lines) == bool(report.citations)


def test_the_markdown_has_the_sources_what_was_left_out_and_the_run() -> None:
    report = written_report("why?", a_draft(1), [a_note()], rounds=1, cut=["Round 2 was left out."])
    assert markdown_of(report) == (
        "# A title\n\n*Question: why?*\n\n## A heading\n\nA text. [1]\n\n"
        '## Sources\n\n[1] `a.md:3`: "it is a heading"  \n\n'
        "## Left out\n\n- Round 2 was left out.\n\n---\n\n"
        "Run `run-1`: 5.0 s, in time for its deadline of 60.0 s; 0 stages, model script, "
        "engine scripted.\n"
    )


@pytest.mark.parametrize(
    ("deadline_s", "elapsed_s", "expected"),
    [(None, 5, "no deadline"), (4.0, 5, "late for its deadline of 4.0 s")],
)
def test_the_markdown_says_whether_the_deadline_was_met(
    deadline_s: float | None, elapsed_s: float, expected: str
) -> None:
    report = quoted_report("why?", [], rounds=0, cut=[])
    assert expected in markdown_of(report, deadline_s=deadline_s, elapsed_s=elapsed_s)


def test_a_report_of_a_model_with_random_weights_begins_with_a_warning() -> None:
    report = written_report("why?", a_draft(1), [a_note()], rounds=1, cut=[])
    result = RunResult(report, "run-1", None, 1.0, ())
    markdown = to_markdown(result, replace(INFO, random_weights=True))
    assert markdown.index(RANDOM_WEIGHTS) < markdown.index("A text.")
    assert "(random weights)" in markdown
    assert RANDOM_WEIGHTS not in to_markdown(result, INFO)


@given(width=st.integers(1, 20), sources=st.integers(1, 40))
def test_the_schemas_limit_every_list_and_every_text(width: int, sources: int) -> None:
    assert plan_of(width).model_json_schema()["properties"]["questions"]["maxItems"] == width
    assert reflection_of(width).model_json_schema()["properties"]["questions"]["maxItems"] == width
    schema = draft_from(sources).model_json_schema()
    citations = schema["$defs"]["DraftSection"]["properties"]["citations"]
    item = citations["items"]
    assert item.get("enum", [item.get("const")]) == list(range(1, sources + 1))
    assert citations["maxItems"] == min(sources, 6)
    for each in (schema, schema["$defs"]["DraftSection"], plan_of(width).model_json_schema()):
        for part in each["properties"].values():
            limit = {"array": "maxItems", "string": "maxLength"}[part["type"]]
            assert part[limit] > 0
