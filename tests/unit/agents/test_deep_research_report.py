"""The report as Markdown: complete, on its own lines, and harmless to a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.deep_research.notes import Note
from agents.deep_research.prompts import Draft, DraftSection, draft_from, plan_of, reflection_of
from agents.deep_research.report import (
    RANDOM_WEIGHTS,
    Report,
    assembled_report,
    to_markdown,
    written_report,
)
from agents.tools.passages import Passage
from agents.tools.quoting import Quote
from orchestrator.runtime.results import RunResult
from serving.generation import EngineInfo

INFO = EngineInfo(name="scripted", model="script", random_weights=False, max_model_tokens=100)

HOSTILE = "\x1b[31m\x07\x9b2J\u202e\u2028\r\n# heading\x00"

texts = st.text(max_size=30) | st.sampled_from([HOSTILE, "", " ", "\n", "plain"])


def a_note(number: int = 1, text: str = "it says so", **changes: str) -> Note:
    words = {"file": "a.md", "question": "why?", "quote": "it is so", "heading": ""} | changes
    passage = Passage(words["file"], 3, 5, "it is so\nand so\non", words["heading"])
    quote = Quote(3, words["quote"])
    return Note(number, words["question"], passage, quote, text, relevant=True)


def a_draft(*citations: int, **changes: str) -> Draft:
    words = {"title": "A title", "heading": "A heading", "text": "A text."} | changes
    section = DraftSection.model_construct(
        heading=words["heading"], text=words["text"], citations=list(citations)
    )
    return Draft.model_construct(title=words["title"], sections=[section])


def ended(report: Report, *, deadline_s: float | None = 60.0, elapsed_s: float = 5) -> str:
    """The Markdown of a run that ended in this report."""
    return to_markdown(RunResult(report, "run-1", deadline_s, elapsed_s, ()), INFO)


def test_a_written_report_cites_what_its_sections_cite_and_nothing_else() -> None:
    notes = [a_note(number, file=f"{number}.md") for number in (1, 2, 3)]
    report = written_report("why?", a_draft(3, 1, 3), notes, rounds=2, cut=["Something."])
    assert [citation.file for citation in report.citations] == ["1.md", "3.md"]
    assert report.sections[0].citations == (3, 1)
    assert (report.rounds, report.cut) == (2, ("Something.",))


def test_an_assembled_report_lists_every_note_under_its_question() -> None:
    notes = [a_note(1, "one"), a_note(2, "two", question="how?"), a_note(3, "three")]
    report = assembled_report("why?", notes, rounds=1, cut=[])
    assert [(section.heading, section.text) for section in report.sections] == [
        ("why?", "- one [1]\n- three [3]"),
        ("how?", "- two [2]"),
    ]
    assert len(report.citations) == 3


@given(texts, texts, texts, texts, texts, texts)
def test_no_control_character_of_a_model_or_a_document_reaches_the_markdown(
    title: str, heading: str, text: str, file: str, quote: str, question: str
) -> None:
    note = a_note(text=text, file=file, quote=quote, question=heading)
    draft = a_draft(1, title=title, heading=heading, text=text)
    for report in (
        written_report(question, draft, [note], rounds=1, cut=[text]),
        assembled_report(question, [note], rounds=1, cut=[text]),
    ):
        markdown = ended(report)
        assert all(c.isprintable() or c in "\n\t" for c in markdown)
        lines = markdown.split("\n")
        assert lines[0].startswith("# ")
        assert lines[2].startswith("*Question: ")
        assert "## Sources" in lines


def test_the_markdown_says_where_each_source_is_and_how_the_run_went() -> None:
    report = written_report("why?", a_draft(1), [a_note()], rounds=1, cut=["Round 2 was left out."])
    assert ended(report) == (
        "# A title\n\n*Question: why?*\n\n## A heading\n\nA text. [1]\n\n"
        '## Sources\n\n[1] `a.md:3`: "it is so"  \n\n'
        "## Left out\n\n- Round 2 was left out.\n\n---\n\n"
        "Run `run-1`: 5.0 s, in time for its deadline of 60.0 s; 0 stages, model script, "
        "engine scripted.\n"
    )


@pytest.mark.parametrize(
    ("deadline_s", "elapsed_s", "says"),
    [(None, 5, "no deadline"), (4.0, 5, "late for its deadline of 4.0 s")],
)
def test_the_markdown_says_whether_the_promise_was_kept(
    deadline_s: float | None, elapsed_s: float, says: str
) -> None:
    report = assembled_report("why?", [], rounds=0, cut=[])
    assert says in ended(report, deadline_s=deadline_s, elapsed_s=elapsed_s)


def test_text_of_random_weights_is_called_meaningless_before_it_begins() -> None:
    report = written_report("why?", a_draft(1), [a_note()], rounds=1, cut=[])
    result = RunResult(report, "run-1", None, 1.0, ())
    warned = to_markdown(result, replace(INFO, random_weights=True))
    assert warned.index(RANDOM_WEIGHTS) < warned.index("A text.")
    assert "(random weights)" in warned
    assert RANDOM_WEIGHTS not in to_markdown(result, INFO)


@given(width=st.integers(1, 20), sources=st.integers(1, 40))
def test_the_shapes_bound_every_list_and_every_text(width: int, sources: int) -> None:
    assert plan_of(width).model_json_schema()["properties"]["questions"]["maxItems"] == width
    assert reflection_of(width).model_json_schema()["properties"]["questions"]["maxItems"] == width
    schema = draft_from(sources).model_json_schema()
    citations = schema["$defs"]["DraftSection"]["properties"]["citations"]
    item = citations["items"]
    assert item.get("enum", [item.get("const")]) == list(range(1, sources + 1))
    assert citations["maxItems"] == min(sources, 6)
    for shape in (schema, schema["$defs"]["DraftSection"], plan_of(width).model_json_schema()):
        for part in shape["properties"].values():
            bounded = {"array": "maxItems", "string": "maxLength"}[part["type"]]
            assert part[bounded] > 0
