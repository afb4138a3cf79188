"""kill -9 before and after every write of a run: the resumed run has the same result.

Each run is a process forked from this one, which has imported everything and done a run already.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import pytest

from agents.deep_research.pipeline import deep_research
from agents.deep_research.report import Report
from agents.tools.corpus import Corpus
from orchestrator import Settings, flow, open_runtime, tool
from orchestrator.errors import OutcomeUnknown
from orchestrator.execution.step_execution import Happened
from orchestrator.testing import ScriptedEngine, crash_at
from tests.unit.agents.deep_research_samples import QUESTION, Model, open_corpus
from tests.unit.orchestrator.orchestrator_samples import store_url

pytestmark = pytest.mark.usefixtures("subprocesses")

RUN_ID = "the-run"

MODEL = Model(Reflection={"questions": ["Which share does a stage get?"]})
"""Gives the same answer to the same question, whatever it was asked before."""

Outcome = dict[str, Any]


def published(folder: str) -> list[str]:
    file = Path(folder) / "published"
    return file.read_text().splitlines() if file.exists() else []


def write_down(folder: str, title: str) -> str:
    with (Path(folder) / "published").open("a") as file:
        file.write(f"{title}\n")
    return f"published {title}"


async def look(folder: str, title: str) -> Happened | None:
    return Happened(f"published {title}") if title in published(folder) else None


@tool(effects="external")
def publish(folder: str, title: str) -> str:
    return write_down(folder, title)


@tool(effects="external", reconcile=look)
def publish_and_look(folder: str, title: str) -> str:
    return write_down(folder, title)


@flow
async def research(corpus: Corpus, folder: str) -> tuple[Report, str]:
    report = await deep_research(QUESTION, corpus, rounds=2, width=2)
    return report, await publish(folder, report.title)


@flow
async def research_and_look(corpus: Corpus, folder: str) -> tuple[Report, str]:
    report = await deep_research(QUESTION, corpus, rounds=2, width=2)
    return report, await publish_and_look(folder, report.title)


FLOWS = {"unknown": research, "reconciled": research_and_look}
FIRST_WRITE = {"unknown": 0, "reconciled": -8}
"""The flows differ in their last effect only, which takes fewer writes than eight."""


async def run_once(
    body: Any, folder: Path, crash: tuple[int, Literal["before", "after"]] | None
) -> Outcome:
    """Start or resume the run; counts its writes."""
    settings = Settings(store=store_url(folder), fit_every=0)
    async with open_runtime(settings, engine=ScriptedEngine(MODEL)) as runtime:
        writes = 0
        if crash is not None:
            crash_at(runtime.store, *crash)
        else:
            transaction = runtime.store.transaction

            def counted(**options: Any) -> Any:
                nonlocal writes
                writes += 1
                return transaction(**options)

            runtime.store.transaction = counted
        try:
            result = await runtime.run(
                body.options(run_id=RUN_ID, deadline="10m"), open_corpus(folder), str(folder)
            )
        except OutcomeUnknown as error:
            return {"unknown": str(error), "writes": writes}
        report, reply = result.value
        return {"report": json.loads(json.dumps(asdict(report))), "reply": reply, "writes": writes}


def in_a_process(work: Callable[[], Outcome]) -> Outcome | None:
    """The outcome of work in a forked process; None if that is killed."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.write(sending, json.dumps(work()).encode())
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert os.WEXITSTATUS(status) == 0, "see its traceback above"
    outcome: Outcome = json.loads(data)
    return outcome


@pytest.mark.parametrize("kind", FLOWS)
def test_a_run_that_is_killed_at_any_write_has_the_same_result_when_resumed(
    tmp_path: Path, kind: str
) -> None:
    body = FLOWS[kind]

    def once(folder: Path, crash: Any = None) -> Outcome | None:
        folder.mkdir(exist_ok=True)
        return in_a_process(lambda: asyncio.run(run_once(body, folder, crash)))

    # In this process: what a first run has to build once is there for all its forks.
    whole = tmp_path / "whole"
    whole.mkdir()
    uninterrupted = asyncio.run(run_once(body, whole, None))
    num_writes = uninterrupted["writes"]
    assert num_writes > 30
    num_unknown = 0
    for number in range(FIRST_WRITE[kind] % num_writes, num_writes):
        for when in ("before", "after"):
            folder = tmp_path / f"{number}-{when}"
            assert once(folder, (number, when)) is None
            resumed = once(folder)
            assert resumed is not None
            if "unknown" in resumed:
                num_unknown += 1
                assert "publish" in resumed["unknown"]
                continue
            assert resumed["report"] == uninterrupted["report"]
            assert resumed["reply"] == uninterrupted["reply"]
            assert published(str(folder)) == [uninterrupted["report"]["title"]]
    # Unknown: killed after the effect's start was recorded and before its end was.
    assert num_unknown == (2 if kind == "unknown" else 0)
