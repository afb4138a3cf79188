"""Deep research on a scripted engine: its rounds, its bounds, its report by the deadline."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agents.deep_research.pipeline import (
    CALL_FAILURES,
    SOURCES_PER_QUESTION,
    deep_research,
    expected_stages,
)
from agents.deep_research.report import Report, to_json, to_markdown
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
from store.records import Status
from tests.unit.agents.deep_research_samples import (
    FURTHER,
    PLAN,
    QUESTION,
    READ,
    REFLECT,
    WRITE,
    Model,
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
    **options: int,
) -> tuple[RunResult[Report], Recorded]:
    """A run, and what was recorded of it."""
    used = engine or ScriptedEngine(model or Model())
    async with scripted_runtime(corpus.index_path.parent, used) as runtime:
        flow = deep_research.options(deadline=deadline)
        result = await runtime.run(flow, question, corpus, **options)
        return result, await recorded(runtime.store, result.run_id)


def assert_citations_resolve(report: Report, corpus: Corpus) -> None:
    assert report.citations
    numbers = [citation.number for citation in report.citations]
    assert numbers == sorted(set(numbers))
    for citation in report.citations:
        line = source_lines(corpus.folder / citation.file)[citation.line - 1]
        assert citation.quote.strip()
        assert citation.quote in line
    known = set(numbers)
    for section in report.sections:
        assert set(section.citations) <= known


async def test_a_full_run_ends_in_a_report_whose_citations_resolve(corpus: Corpus) -> None:
    result, found = await research(corpus, deadline="5m")
    report = result.value
    assert_citations_resolve(report, corpus)
    assert report.cut == ()
    assert report.rounds == 2
    assert report.question == QUESTION
    assert all(section.citations for section in report.sections)
    assert result.in_time
    assert found.still_running() == []
    assert {call.stage for call in found.calls} == set(range(expected_stages(2)))
    assert len(result.stages) == expected_stages(2)
    assert {path.split("[")[0].split("#")[0] for path in found.steps} == {
        *("plan", "read", "reflect", "write"),
    }


async def test_no_passage_is_read_twice_and_the_best_of_each_question_are(corpus: Corpus) -> None:
    model = Model()
    _, found = await research(corpus, model, rounds=3)
    reads = [call for call in found.calls if call.identity == "script:read"]
    assert len(reads) == model.asked[READ]
    searches = sum(call.identity == "search" for call in found.calls)
    assert 0 < len(reads) <= searches * SOURCES_PER_QUESTION


async def test_enough_ends_the_rounds(corpus: Corpus) -> None:
    model = Model(Reflection={"enough": True})
    result, _ = await research(corpus, model, rounds=5)
    assert result.value.rounds == 1
    assert model.asked[REFLECT] == 1
    assert result.value.cut == ()


async def test_no_further_question_ends_the_rounds_too(corpus: Corpus) -> None:
    result, _ = await research(corpus, Model(Reflection={"questions": []}), rounds=5)
    assert result.value.rounds == 1


@pytest.mark.parametrize(("rounds", "width"), [(1, 1), (1, 3), (2, 1), (4, 2)])
async def test_rounds_and_width_bound_the_searches(corpus: Corpus, rounds: int, width: int) -> None:
    model = Model()
    result, found = await research(corpus, model, rounds=rounds, width=width)
    assert result.value.rounds == model.asked[REFLECT] == rounds
    searches = Counter(call.stage for call in found.calls if call.identity == "search")
    assert len(searches) == rounds
    assert max(searches.values()) <= width + 1  # the question itself, and its parts


async def test_a_wider_plan_than_was_asked_for_is_not_followed(corpus: Corpus) -> None:
    model = Model(Plan={"questions": FURTHER}, Reflection={"enough": True})
    result, found = await research(corpus, model, width=2)
    assert sum(call.identity == "search" for call in found.calls) == 1
    assert "was not divided" in result.value.cut[0]


async def test_questions_that_repeat_are_looked_up_once(corpus: Corpus) -> None:
    repeated = [QUESTION, FURTHER[0], FURTHER[0]]
    model = Model(Plan={"questions": repeated}, Reflection={"questions": [FURTHER[1]] * 3})
    _, found = await research(corpus, model)
    searches = Counter(call.stage for call in found.calls if call.identity == "search")
    assert sorted(searches.values()) == [1, 2]


FAILURES = {
    StructuredOutputInvalid: "no json at all",
    PromptTooLong: PromptTooLong("r", 9, 8),
    RequestDropped: RequestDropped("r", "it came too late"),
    RequestFailed: RequestFailed("r", "the engine saw nan"),
}
SAYS = {
    PLAN: "The question was not divided: ",
    READ: " was not read: ",
    REFLECT: "The notes were not reflected on: ",
    WRITE: "The model wrote no report (",
}


def test_every_failure_of_a_call_is_tried_below() -> None:
    assert set(FAILURES) == set(CALL_FAILURES)


@pytest.mark.parametrize("failure", CALL_FAILURES, ids=lambda failure: failure.__name__)
@pytest.mark.parametrize("shape", SAYS)
async def test_a_call_that_fails_costs_its_part_and_the_report_says_so(
    corpus: Corpus, shape: str, failure: type[Exception]
) -> None:
    model = Model(**{shape: FAILURES[failure]})
    result, found = await research(corpus, model)
    report = result.value
    assert_citations_resolve(report, corpus)
    assert report.cut
    assert all(SAYS[shape] in sentence for sentence in report.cut)
    assert len(report.cut) == model.asked[shape]
    assert found.run.status is Status.COMPLETED
    markdown = to_markdown(result, ScriptedEngine(model).info)
    assert "## Left out" in markdown
    assert all(sentence in markdown for sentence in report.cut)


@pytest.mark.parametrize("shape", SAYS)
@pytest.mark.parametrize("answer", ["[]", "{}", "null", '{"questions": "x", "sections": [1]}'])
async def test_an_engine_that_ignores_the_shape_costs_that_part_and_no_more(
    corpus: Corpus, shape: str, answer: str
) -> None:
    result, _ = await research(corpus, Model(**{shape: answer}))
    assert_citations_resolve(result.value, corpus)
    assert result.value.cut


async def test_a_citation_of_a_source_that_there_is_not_is_refused(corpus: Corpus) -> None:
    def invent(draft: dict[str, Any]) -> dict[str, Any]:
        draft["sections"][0]["citations"] = [999]
        return draft

    result, _ = await research(corpus, Model(Draft=invent))
    assert_citations_resolve(result.value, corpus)
    assert "wrote no report" in result.value.cut[0]


async def test_an_engine_that_fails_at_everything_still_leaves_real_sources(
    corpus: Corpus,
) -> None:
    everything = dict.fromkeys([PLAN, READ, REFLECT, WRITE], RequestDropped("r", "late"))
    result, _ = await research(corpus, Model(**everything))
    assert_citations_resolve(result.value, corpus)


async def test_an_engine_that_dies_ends_the_run_by_name(corpus: Corpus) -> None:
    with pytest.raises(EngineDied):
        await research(corpus, Model(Reading=EngineDied("of old age")))


async def test_notes_that_are_not_relevant_are_used_only_where_there_is_no_other(
    corpus: Corpus,
) -> None:
    result, _ = await research(corpus, Model(Reading={"relevant": False}))
    assert_citations_resolve(result.value, corpus)
    read: list[bool] = []

    def first_only(reading: dict[str, Any]) -> dict[str, Any]:
        read.append(True)
        return reading | {"relevant": len(read) == 1}

    result, _ = await research(corpus, Model(Reading=first_only))
    assert len(result.value.citations) == 1


async def test_a_search_that_finds_nothing_ends_in_a_report_that_says_so(corpus: Corpus) -> None:
    model = Model(Plan={"questions": ["zzzz qqqq xxxx"]})
    result, _ = await research(corpus, model, question="zzzz?", deadline="5m")
    assert result.value.citations == ()
    assert [section.heading for section in result.value.sections] == ["Nothing found"]
    assert model.asked == {PLAN: 1}
    assert "Nothing found" in to_markdown(result, ScriptedEngine(model).info)


@pytest.mark.parametrize("question", ["", " ", "?", "\x1b[2J\x07", "a\nb # c", "\ud800"])
async def test_any_question_ends_in_a_report_on_one_line(corpus: Corpus, question: str) -> None:
    engine = ScriptedEngine(Model())
    result, _ = await research(corpus, question=question, engine=engine)
    markdown = to_markdown(result, engine.info)
    assert all(character.isprintable() or character == "\n" for character in markdown)
    assert sum(line.startswith("# ") for line in markdown.splitlines()) == 1


async def test_a_question_of_a_hundred_thousand_characters_ends_in_a_report(
    corpus: Corpus,
) -> None:
    question = "How is a deadline divided over stages? " * 2_600
    engine = ScriptedEngine(Model(), max_model_tokens=4096)
    result, _ = await research(corpus, question=question, engine=engine)
    assert_citations_resolve(result.value, corpus)
    assert len(result.value.title) < 200
    assert all(len(section.heading) < 200 for section in result.value.sections)
    assert len(result.value.cut) > 1


# Deadlines. The engine's speed is chosen so that the ratios hold on slow machines too.


async def test_a_deadline_cuts_rounds_and_not_the_report(corpus: Corpus) -> None:
    """An engine that needs a fifth of the deadline for a round cannot do twenty."""
    engine = ScriptedEngine(Model(Reading={"note": "it says so itself"}), token_s=0.02)
    result, found = await research(corpus, engine=engine, deadline=4.0, rounds=20)
    report = result.value
    assert_citations_resolve(report, corpus)
    assert 1 <= report.rounds < 20
    assert report.cut
    assert result.in_time
    assert found.run.status is Status.COMPLETED
    assert found.still_running() == []


@pytest.mark.parametrize("stalls", [PLAN, READ, REFLECT, WRITE])
async def test_a_call_that_never_ends_costs_what_it_was_for_and_not_the_report(
    corpus: Corpus, stalls: str
) -> None:
    class Stalling(ScriptedEngine):
        async def _pass_a_token(self) -> None:
            if self.requests[-1].schema["title"] == stalls:  # type: ignore[index]
                await asyncio.sleep(NEVER_S)

    engine = Stalling(Model())
    # Of the time that is left for writing, a twentieth is for handing over the notes; and a machine
    # that is slow has none for a second round.
    deadline_s, options = (2.5, {"rounds": 1}) if stalls == WRITE else (1.5, {})
    result, found = await research(corpus, engine=engine, deadline=deadline_s, **options)
    report = result.value
    assert_citations_resolve(report, corpus)
    assert len(report.cut) == 1
    assert result.in_time
    assert engine.num_running == 0
    assert engine.aborted
    assert found.still_running() == []


async def test_a_deadline_that_leaves_no_time_to_read_still_gives_real_sources(
    corpus: Corpus,
) -> None:
    engine = ScriptedEngine(Model(), token_s=NEVER_S)
    result, _ = await research(corpus, engine=engine, deadline=0.5)
    report = result.value
    assert_citations_resolve(report, corpus)
    assert report.rounds == 0
    assert "in round 1 of 2" in report.cut[0]


async def test_the_json_form_is_json_and_holds_what_a_program_needs(corpus: Corpus) -> None:
    engine = ScriptedEngine(Model())
    for deadline in (None, "5m"):
        result, _ = await research(corpus, engine=engine, deadline=deadline)
        document = to_json(result, engine.info)
        read = json.loads(json.dumps(document, allow_nan=False))
        assert (read["report"], read["run_id"]) == (document["report"], result.run_id)
        assert read["citations"] == document["citations"]
        assert set(document) == {
            *("question", "report", "citations", "rounds", "cut", "run_id", "deadline_s"),
            *("elapsed_s", "in_time", "stages", "engine"),
        }
        assert document["report"] == to_markdown(result, engine.info)
        engine = ScriptedEngine(Model())
