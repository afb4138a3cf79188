"""Deep research on a scripted engine: rounds, limits, failing calls and deadlines."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.deep_research.markdown import to_json, to_markdown
from agents.deep_research.pipeline import (
    CALL_FAILURES,
    deep_research,
    expected_stages,
)
from agents.deep_research.profiles import PROFILES
from agents.deep_research.report import Report
from agents.deep_research.support import shares_words
from agents.tools.corpus import Corpus
from agents.tools.readers import source_lines
from orchestrator.runtime.results import RunResult
from orchestrator.testing import ScriptedEngine
from serving.errors import (
    EngineDied,
    PromptTooLong,
    RequestDropped,
    RequestFailed,
    StructuredOutputInvalid,
)
from serving.generation import EngineInfo, GenerationRequest
from store.records import Status
from tests.unit.agents.corpus_samples import write
from tests.unit.agents.deep_research_samples import (
    FURTHER,
    PLAN,
    QUESTION,
    READ,
    REFLECT,
    WRITE,
    Model,
    PlainModel,
    open_corpus,
)
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Recorded,
    recorded,
    scripted_runtime,
)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return open_corpus(tmp_path)


async def research(
    corpus: Corpus,
    model: Model | None = None,
    *,
    question: str = QUESTION,
    deadline: str | float | None = None,
    engine: ScriptedEngine | None = None,
    **options: Any,
) -> tuple[RunResult[Report], Recorded]:
    """Run deep research; returns its result and its records."""
    run_engine = engine or ScriptedEngine(model or Model())
    async with scripted_runtime(corpus.index_path.parent, run_engine) as runtime:
        flow = deep_research.options(deadline=deadline)
        result = await runtime.run(flow, question, corpus, **options)
        return result, await recorded(runtime.store, result.run_id)


def assert_citations_resolve(report: Report, corpus: Corpus) -> None:
    assert report.citations
    numbers = [citation.number for citation in report.citations]
    assert numbers == sorted(set(numbers))
    for citation in report.citations:
        lines = source_lines(corpus.folder / citation.file)
        named = lines[citation.line - 1 : citation.end_line]
        assert citation.quote.strip()
        assert citation.quote in " ".join(line.strip() for line in named)
    known = set(numbers)
    for section in report.sections:
        assert set(section.citations) <= known


async def test_a_full_run_ends_in_a_report_whose_citations_resolve(corpus: Corpus) -> None:
    result, records = await research(corpus, deadline="5m")
    report = result.value
    assert_citations_resolve(report, corpus)
    assert report.cut == ()
    assert report.rounds == 2
    assert report.question == QUESTION
    assert all(section.citations for section in report.sections)
    assert result.in_time
    assert records.still_running() == []
    assert {call.stage for call in records.calls} == set(range(expected_stages(2)))
    assert len(result.stages) == expected_stages(2)
    assert {path.split("[")[0].split("#")[0] for path in records.steps} == {
        *("model-info", "plan", "read", "reflect", "write"),
    }


async def test_the_same_passage_in_several_formats_is_read_once(tmp_path: Path) -> None:
    text = "A deadline is divided over the stages of a run by what each took before."
    files: dict[str, str | bytes] = {
        "a.md": f"# Deadlines\n\n{text.replace('deadline', '**deadline**')}\n",
        "a.html": f"<h1>Deadlines</h1><p>{text}",
        "all.html": f"<h1>Runs</h1><p>A run has stages.<h1>Deadlines</h1><p>{text}",
    }
    corpus = Corpus.open(write(tmp_path / "documents", files), index_path=tmp_path / "index.db")
    model = Model()
    await research(corpus, model, rounds=2)
    assert model.asked[READ] == 2  # the section on deadlines, and the one on runs


async def test_the_best_passages_of_each_question_are_read_once(corpus: Corpus) -> None:
    model = Model()
    _, records = await research(corpus, model, rounds=3)
    reads = [call for call in records.calls if call.identity == "script:read"]
    assert len(reads) == model.asked[READ]
    searches = sum(call.identity == "search" for call in records.calls)
    assert 0 < len(reads) <= searches * PROFILES["large"].sources_per_question


async def test_research_ends_when_the_notes_are_enough(corpus: Corpus) -> None:
    model = Model(Reflection={"enough": True})
    result, _ = await research(corpus, model, rounds=5)
    assert result.value.rounds == 1
    assert model.asked[REFLECT] == 1
    assert result.value.cut == ()


async def test_research_ends_without_further_questions(corpus: Corpus) -> None:
    result, _ = await research(corpus, Model(Reflection={"questions": []}), rounds=5)
    assert result.value.rounds == 1


@pytest.mark.parametrize(("rounds", "width"), [(1, 1), (1, 3), (2, 1), (4, 2)])
async def test_rounds_and_width_limit_the_searches(corpus: Corpus, rounds: int, width: int) -> None:
    model = Model()
    result, records = await research(corpus, model, rounds=rounds, width=width)
    assert result.value.rounds == rounds
    assert model.asked[REFLECT] == rounds - 1  # a reflection after the last round has no use
    searches = Counter(call.stage for call in records.calls if call.identity == "search")
    assert len(searches) == rounds
    assert max(searches.values()) <= width + 1  # the question itself, and its sub-questions


async def test_a_plan_with_more_questions_than_the_width_is_refused(corpus: Corpus) -> None:
    model = Model(Plan={"questions": FURTHER}, Reflection={"enough": True})
    result, records = await research(corpus, model, width=2)
    assert sum(call.identity == "search" for call in records.calls) == 1
    assert "was not divided" in result.value.cut[0]


async def test_repeated_questions_are_looked_up_once(corpus: Corpus) -> None:
    repeated = [QUESTION, FURTHER[0], FURTHER[0]]
    model = Model(Plan={"questions": repeated}, Reflection={"questions": [FURTHER[1]] * 3})
    _, records = await research(corpus, model)
    searches = Counter(call.stage for call in records.calls if call.identity == "search")
    assert sorted(searches.values()) == [1, 2]


FAILURES = {
    StructuredOutputInvalid: "no json at all",
    PromptTooLong: PromptTooLong("r", 9, 8),
    RequestDropped: RequestDropped("r", "it came too late"),
    RequestFailed: RequestFailed("r", "the engine saw nan"),
}
SENTENCES = {
    PLAN: "The question was not divided: ",
    READ: " was not read: ",
    REFLECT: "The notes were not reflected on: ",
    WRITE: "The model wrote no report (",
}


def test_the_failures_cover_all_call_failures() -> None:
    assert set(FAILURES) == set(CALL_FAILURES)


@pytest.mark.parametrize("failure", CALL_FAILURES, ids=lambda failure: failure.__name__)
@pytest.mark.parametrize("title", SENTENCES)
async def test_the_report_names_the_part_that_a_failed_call_leaves_out(
    corpus: Corpus, title: str, failure: type[Exception]
) -> None:
    model = Model(**{title: FAILURES[failure]})
    result, records = await research(corpus, model)
    report = result.value
    assert_citations_resolve(report, corpus)
    assert report.cut
    assert all(SENTENCES[title] in sentence for sentence in report.cut)
    assert len(report.cut) == model.asked[title]
    assert records.run.status is Status.COMPLETED
    markdown = to_markdown(result, ScriptedEngine(model).info)
    assert "## Left out" in markdown
    assert all(sentence in markdown for sentence in report.cut)


@pytest.mark.parametrize("title", SENTENCES)
@pytest.mark.parametrize("answer", ["[]", "{}", "null", '{"questions": "x", "sections": [1]}'])
async def test_answers_that_do_not_fit_a_schema_leave_out_their_part_only(
    corpus: Corpus, title: str, answer: str
) -> None:
    result, _ = await research(corpus, Model(**{title: answer}))
    assert_citations_resolve(result.value, corpus)
    assert result.value.cut


async def test_a_draft_that_cites_a_source_that_does_not_exist_is_refused(corpus: Corpus) -> None:
    def invent(draft: dict[str, Any]) -> dict[str, Any]:
        draft["sections"][0]["citations"] = [999]
        return draft

    result, _ = await research(corpus, Model(Draft=invent))
    assert_citations_resolve(result.value, corpus)
    assert "wrote no report" in result.value.cut[0]


async def test_the_report_has_real_sources_even_if_all_calls_fail(
    corpus: Corpus,
) -> None:
    all_fail = dict.fromkeys([PLAN, READ, REFLECT, WRITE], RequestDropped("r", "late"))
    result, _ = await research(corpus, Model(**all_fail))
    assert_citations_resolve(result.value, corpus)


async def test_a_run_whose_engine_dies_raises_engine_died(corpus: Corpus) -> None:
    with pytest.raises(EngineDied):
        await research(corpus, Model(Reading=EngineDied("out of memory")))


async def test_irrelevant_notes_are_used_only_if_there_are_no_others(
    corpus: Corpus,
) -> None:
    result, _ = await research(corpus, Model(Reading={"relevant": False}))
    assert_citations_resolve(result.value, corpus)
    calls: list[bool] = []

    def first_only(reading: dict[str, Any]) -> dict[str, Any]:
        calls.append(True)
        return reading | {"relevant": len(calls) == 1}

    result, _ = await research(corpus, Model(Reading=first_only))
    assert len(result.value.citations) == 1


async def test_the_report_says_so_if_the_search_finds_nothing(corpus: Corpus) -> None:
    model = Model(Plan={"questions": ["zzzz qqqq xxxx"]})
    result, _ = await research(corpus, model, question="zzzz?", deadline="5m")
    assert result.value.citations == ()
    assert [section.heading for section in result.value.sections] == ["Nothing found"]
    assert model.asked == {PLAN: 1}
    assert "Nothing found" in to_markdown(result, ScriptedEngine(model).info)


@pytest.mark.parametrize("question", ["", " ", "?", "\x1b[2J\x07", "a\nb # c", "\ud800"])
async def test_the_title_of_a_report_on_any_question_is_one_printable_line(
    corpus: Corpus, question: str
) -> None:
    engine = ScriptedEngine(Model())
    result, _ = await research(corpus, question=question, engine=engine)
    markdown = to_markdown(result, engine.info)
    assert all(character.isprintable() or character == "\n" for character in markdown)
    assert sum(line.startswith("# ") for line in markdown.splitlines()) == 1


async def test_a_question_of_a_hundred_thousand_characters_gets_a_report(
    corpus: Corpus,
) -> None:
    question = "How is a deadline divided over stages? " * 2_600
    engine = ScriptedEngine(Model(), max_model_tokens=4096)
    result, _ = await research(corpus, question=question, engine=engine)
    assert_citations_resolve(result.value, corpus)
    assert len(result.value.title) < 200
    assert all(len(section.heading) < 200 for section in result.value.sections)
    assert len(result.value.cut) > 1


async def test_a_note_that_shares_no_word_with_its_passage_is_dropped(corpus: Corpus) -> None:
    calls: list[bool] = []

    def first_is_true(reading: dict[str, Any]) -> dict[str, Any]:
        calls.append(True)
        return reading if len(calls) == 1 else reading | {"note": "Relevant, certainly!"}

    result, _ = await research(corpus, Model(Reading=first_is_true), rounds=1)
    assert len(result.value.citations) == 1


async def test_the_draft_of_a_large_model_cites_only_sources_that_share_words_with_it(
    corpus: Corpus,
) -> None:
    def about_nothing(draft: dict[str, Any]) -> dict[str, Any]:
        first = draft["sections"][0]
        nothing = first | {
            "heading": "Zebras",
            "text": "Zebras wear stripes in the savanna, daily.",
        }
        scheduler = first | {
            "heading": "Late",
            "text": "Late work is what the scheduler puts last.",
        }
        return draft | {"sections": [scheduler, nothing]}

    result, _ = await research(corpus, Model(Draft=about_nothing), width=3)
    report = result.value
    assert_citations_resolve(report, corpus)
    late, zebras = report.sections
    quotes = {citation.number: citation.quote for citation in report.citations}
    assert late.citations
    assert all("scheduler" in quotes[number] for number in late.citations)
    assert zebras.citations == ()
    assert report.cut == ("No source supports the section 'Zebras'.",)


@pytest.mark.parametrize(
    ("parameters", "expected"), [(None, "large"), (135_000_000, "small"), (70 * 10**9, "large")]
)
async def test_the_profile_follows_the_size_of_the_model(
    corpus: Corpus, parameters: int | None, expected: str
) -> None:
    class Sized(ScriptedEngine):
        @property
        def info(self) -> EngineInfo:
            return replace(super().info, parameters=parameters)

    engine = Sized(PlainModel() if expected == "small" else Model())
    result, _ = await research(corpus, engine=engine)
    assert_citations_resolve(result.value, corpus)
    with_schema = {request.schema is not None for request in engine.requests}
    assert with_schema == {expected == "large"}


async def test_a_resumed_run_keeps_its_profile(corpus: Corpus) -> None:
    """Also if the engine meanwhile has another model: its prompts would be other calls."""
    folder = corpus.index_path.parent
    flow = deep_research.options(run_id="the-run")
    killed = ScriptedEngine(PlainModel(fail_at=4))
    with pytest.raises(EngineDied):
        async with scripted_runtime(folder, killed) as runtime:
            await runtime.run(flow, QUESTION, corpus, profile="small")
    engine = ScriptedEngine(PlainModel())
    async with scripted_runtime(folder, engine) as runtime:
        result = await runtime.resume("the-run", deep_research)
    assert_citations_resolve(result.value, corpus)
    assert {request.schema for request in engine.requests} == {None}


# A small model


async def small_report(corpus: Corpus, model: PlainModel, **options: Any) -> Report:
    result, _ = await research(corpus, engine=ScriptedEngine(model), profile="small", **options)
    assert_citations_resolve(result.value, corpus)
    return result.value


async def test_the_report_of_a_small_model_has_quotes_that_share_a_word_with_their_heading(
    corpus: Corpus,
) -> None:
    report = await small_report(corpus, PlainModel())
    quotes = {citation.number: citation.quote for citation in report.citations}
    assert report.sections
    for section in report.sections:
        assert section.quotes
        assert all(shares_words(section.heading, quotes[number]) for number in section.quotes)
    assert len(set(quotes.values())) == len(quotes)
    first = quotes[report.sections[0].quotes[0]]
    assert first == "A deadline is divided over the stages of a run by what each took before."


@pytest.mark.parametrize(
    "nonsense",
    [
        "It is relevant to the question.",
        "Zebras wear stripes in the savanna.",
        "The deadline is divided over 17 stages of a run.",
        "Is the deadline divided over the stages of a run?",
        "A deadline is divided over the stages of a run by what each took before.",
        "a deadline that is divided over the stages and the stages and the",
        "",
    ],
)
async def test_what_a_small_model_says_without_support_is_not_in_the_report(
    corpus: Corpus, nonsense: str
) -> None:
    report = await small_report(corpus, PlainModel(says=nonsense))
    assert [section.text for section in report.sections] == [""] * len(report.sections)


async def test_what_a_small_model_says_with_support_is_said_once(corpus: Corpus) -> None:
    said = "The deadline is divided over all stages of the run."
    report = await small_report(corpus, PlainModel(says=said))
    texts = " ".join(section.text for section in report.sections)
    assert texts.count(said) == 1


async def test_an_answer_stands_with_the_quote_that_supports_it(corpus: Corpus) -> None:
    said = "The scheduler orders late requests by their sub-deadline last."

    class Answering(PlainModel):
        def __call__(self, request: GenerationRequest) -> str:
            prompt: Any = request.prompt[-1]
            return said if "Answer from this text" in prompt.content else super().__call__(request)

    question = "How are requests ordered, and how is a deadline divided over the stages?"
    engine = ScriptedEngine(Answering(says="No."))
    result, _ = await research(corpus, engine=engine, question=question, profile="small")
    quotes = {citation.number: citation.quote for citation in result.value.citations}
    [section] = [each for each in result.value.sections if said in each.text]
    cited = int(section.text.partition(f"{said} [")[2].partition("]")[0])
    assert "scheduler orders requests" in quotes[cited]


async def test_questions_of_a_small_model_are_looked_up_if_they_are_about_the_question(
    corpus: Corpus,
) -> None:
    asked = "Which deadline do the stages of a run get?"
    for question, times in ((asked, 2), ("What is your favourite colour?", 1), (QUESTION, 1)):
        engine = ScriptedEngine(PlainModel(asks=question))
        _, records = await research(corpus, engine=engine, profile="small", rounds=1)
        assert sum(call.identity == "search" for call in records.calls) == times


async def test_all_prompts_for_a_small_model_begin_alike(corpus: Corpus) -> None:
    engine = ScriptedEngine(PlainModel())
    await research(corpus, engine=engine, profile="small")
    beginnings = {tuple(request.prompt[:-1]) for request in engine.requests}  # type: ignore[arg-type]
    assert len(beginnings) == 1
    assert len(str(beginnings)) > 600  # about 128 tokens
    assert {request.temperature for request in engine.requests} == {0.0}


# Deadlines. The engine's speed is such that the tests pass on slow machines, too.


@pytest.mark.slow
async def test_a_deadline_leaves_out_rounds_and_not_the_report(corpus: Corpus) -> None:
    """A round takes a fifth of the deadline, so that twenty rounds are impossible."""
    engine = ScriptedEngine(Model(Reading={"note": "it says so itself"}), token_s=0.02)
    result, records = await research(corpus, engine=engine, deadline=4.0, rounds=20)
    report = result.value
    assert_citations_resolve(report, corpus)
    assert 1 <= report.rounds < 20
    assert report.cut
    assert result.in_time
    assert records.run.status is Status.COMPLETED
    assert records.still_running() == []


@pytest.mark.slow
@pytest.mark.parametrize("stalled", [PLAN, READ, REFLECT, WRITE])
async def test_a_call_that_never_ends_leaves_out_its_part_and_not_the_report(
    corpus: Corpus, stalled: str
) -> None:
    class Stalling(ScriptedEngine):
        async def _pass_a_token(self) -> None:
            if self.requests[-1].schema["title"] == stalled:  # type: ignore[index]
                await asyncio.sleep(NEVER_S)

    engine = Stalling(Model())
    # A slow machine has no time for a second round.
    deadline_s, options = (4.0, {"rounds": 1}) if stalled == WRITE else (3.0, {})
    result, records = await research(corpus, engine=engine, deadline=deadline_s, **options)
    report = result.value
    assert_citations_resolve(report, corpus)
    assert len(report.cut) == 1
    assert result.in_time
    assert engine.num_running == 0
    assert engine.aborted
    assert records.still_running() == []


async def test_the_report_has_real_sources_even_if_there_is_no_time_to_read(
    corpus: Corpus,
) -> None:
    engine = ScriptedEngine(Model(), token_s=NEVER_S)
    result, _ = await research(corpus, engine=engine, deadline=1.0)
    report = result.value
    assert_citations_resolve(report, corpus)
    assert report.rounds == 0
    assert any("in round 1 of 2" in sentence for sentence in report.cut)


async def test_the_json_form_is_valid_json_with_all_documented_keys(corpus: Corpus) -> None:
    engine = ScriptedEngine(Model())
    for deadline in (None, "5m"):
        result, _ = await research(corpus, engine=engine, deadline=deadline)
        document = to_json(result, engine.info)
        parsed = json.loads(json.dumps(document, allow_nan=False))
        assert (parsed["report"], parsed["run_id"]) == (document["report"], result.run_id)
        assert parsed["citations"] == document["citations"]
        assert set(document) == {
            *("question", "report", "citations", "rounds", "cut", "run_id", "deadline_s"),
            *("elapsed_s", "in_time", "stages", "engine"),
        }
        assert document["report"] == to_markdown(result, engine.info)
        engine = ScriptedEngine(Model())
