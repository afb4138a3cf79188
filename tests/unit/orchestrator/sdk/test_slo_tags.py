"""slo_tags: what an OpenAI client sends says what a call of llm would say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import OutsideRun, flow, gather, llm, slo_tags, step, within
from orchestrator.testing import ScriptedEngine
from serving.slo import Slo, SloKind, from_tags
from tests.unit.orchestrator.orchestrator_samples import answer_ok, scripted_runtime, the_run
from tests.unit.orchestrator.virtual_time import LoopClock, run_in_virtual_time


def carried() -> Slo:
    """The SLO that a request sent here and now would carry."""
    return from_tags(slo_tags().get("vllm_xargs"))


def slos_of(folder: Path, body: Any, **options: Any) -> tuple[Any, list[Slo]]:
    """What a flow returns, and the SLOs of its calls of llm; in virtual time."""
    engine = ScriptedEngine(answer_ok, token_s=1.0)

    async def run() -> Any:
        async with scripted_runtime(folder, engine, clock=LoopClock()) as runtime:
            tagged = flow(name="tagged", **options)(body).options(user="ada")
            return (await runtime.run(tagged)).value

    value = run_in_virtual_time(run())
    return value, [request.slo for request in engine.requests]


def test_the_tags_are_those_of_a_call_of_llm_that_would_begin_here(tmp_path: Path) -> None:
    async def body() -> list[Slo]:
        first = carried()
        await llm("a")
        second = carried()
        await llm("b")
        return [first, second, carried()]

    tags, slos = slos_of(tmp_path, body, deadline="60s")
    assert [slo.stage for slo in tags] == [0, 1, 2]
    for tagged, slo in zip(tags, slos, strict=False):
        assert tagged.kind is SloKind.COMPOUND
        assert (tagged.program, tagged.user) == (slo.program, "ada")
        assert tagged.final_s == slo.final_s
        assert tagged.deadline_s == slo.deadline_s
    assert tags[2].final_s == pytest.approx(60 - 6)


def test_asking_for_tags_changes_nothing_of_later_calls(tmp_path: Path) -> None:
    async def plain() -> None:
        await gather(llm("a"), llm("b"))
        await llm("c")

    async def asking() -> None:
        slo_tags()
        await gather(llm("a"), llm("b"))
        slo_tags()
        slo_tags()
        await llm("c")

    slos = [
        slos_of(tmp_path / name, body, deadline="60s", stages=3)[1]
        for name, body in [("plain", plain), ("asking", asking)]
    ]
    assert [(slo.stage, slo.deadline_s) for slo in slos[0]] == [
        (slo.stage, slo.deadline_s) for slo in slos[1]
    ]


def test_under_a_shorter_limit_the_tags_are_those_of_its_program(tmp_path: Path) -> None:
    async def body() -> list[Slo]:
        around = carried()
        async with within("5s"):
            return [around, carried()]

    around, limited = slos_of(tmp_path, body, deadline="60s")[0]
    assert (around.final_s, limited.final_s) == (60, 5)
    assert limited.program.startswith(f"{around.program}+")


def test_without_a_deadline_only_the_user_is_said(tmp_path: Path) -> None:
    async def body() -> dict[str, Any]:
        return slo_tags()

    assert slos_of(tmp_path, body)[0] == {"vllm_xargs": {"slo_user": "ada"}}


async def test_without_deadline_and_user_the_tags_are_empty(tmp_path: Path) -> None:
    @flow
    async def plain() -> dict[str, Any]:
        return slo_tags()

    async with scripted_runtime(tmp_path) as runtime:
        assert (await runtime.run(plain)).value == {}


async def test_a_step_in_a_thread_gets_tags_and_no_call_is_recorded(tmp_path: Path) -> None:
    @step
    def in_thread() -> dict[str, Any]:
        return slo_tags()

    @flow(deadline="60s")
    async def threaded() -> dict[str, Any]:
        return await in_thread()

    async with scripted_runtime(tmp_path) as runtime:
        tags = from_tags((await runtime.run(threaded)).value["vllm_xargs"])
        record = await the_run(runtime.store)
    assert tags.program == record.run.id
    assert tags.final_s is not None
    assert 0 < tags.final_s <= 60
    assert list(record.calls) == []


def test_outside_a_run_there_are_no_tags() -> None:
    with pytest.raises(OutsideRun, match=r"slo_tags\(\)"):
        slo_tags()
