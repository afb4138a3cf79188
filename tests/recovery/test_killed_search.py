"""Tree of Thoughts, killed at random moments, goes on where it was and asks nothing twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_jsonable_python

from agents.tree_of_thoughts.pipeline import tree_of_thoughts
from orchestrator import Settings, open_runtime
from orchestrator.events import CallFinished, CallStarted, Event
from orchestrator.testing import ScriptedEngine
from serving.generation import GenerationRequest
from tests.unit.agents.tree_of_thoughts_samples import CROSSWORD, TEXT, settled, task_path
from tests.unit.orchestrator.orchestrator_samples import store_url

pytestmark = pytest.mark.usefixtures("subprocesses")

RUN_ID = "the-run"
TASKS = {"crossword": CROSSWORD, "text": TEXT, "game of 24": "4 5 6 10 11"}
KILLS = 4

Lines = list[dict[str, Any]]


async def search(folder: Path, puzzle: str, pipe: int) -> None:
    """Start or resume the search; writes a line for each question, each recorded answer, the end.

    Its deadline is so far away that it does not matter.
    """

    def write(**line: Any) -> None:
        os.write(pipe, f"{json.dumps(line)}\n".encode())

    def script(request: GenerationRequest) -> str:
        write(asked=repr((request.prompt, request.choices, request.seed)))
        return settled(request)

    paths: dict[int, str] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, CallStarted):
            paths[event.node] = event.path
        elif isinstance(event, CallFinished):
            write(recorded=paths[event.node], status=event.status)

    settings = Settings(store=store_url(folder), fit_every=0)
    engine = ScriptedEngine(script, token_s=0.001)
    async with open_runtime(settings, engine=engine, on_event=on_event) as runtime:
        flow = tree_of_thoughts.options(run_id=RUN_ID, deadline="10m")
        result = await runtime.run(flow, puzzle, beam=2)
        write(result=to_jsonable_python(result.value))


def in_a_process(folder: Path, puzzle: str, *, kill_after: int | None = None) -> Lines:
    """The lines of a forked process, which is killed after so many of them; None: it is not."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(receiving)
            asyncio.run(search(folder, puzzle, sending))
            code = 0
        finally:
            os._exit(code)
    os.close(sending)
    lines: Lines = []
    with os.fdopen(receiving, encoding="utf-8") as pipe:
        for line in pipe:
            lines.append(json.loads(line))
            if len(lines) == kill_after:
                os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) == (kill_after is not None)
    return lines


def those(lines: Lines, key: str) -> list[Any]:
    return [line[key] for line in lines if key in line]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("seed", range(2))
def test_a_search_that_is_killed_again_and_again_evaluates_nothing_twice(
    tmp_path: Path, task: str, seed: int
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    puzzle = TASKS[task]
    is_file = "kind" in puzzle
    expected = in_a_process(whole, str(task_path(whole, puzzle)) if is_file else puzzle)
    [result] = those(expected, "result")
    assert len(those(expected, "asked")) > 10

    file = task_path(killed, puzzle)
    puzzle = str(file) if is_file else puzzle
    chance, lines, num_cut = random.Random(seed), Lines(), 0
    for number in range(KILLS):
        left = len(expected) - len(lines)
        if left < 4:
            break
        new = in_a_process(killed, puzzle, kill_after=chance.randint(1, max(left // 2, 1)))
        num_cut += len(those(new, "asked")) - len(those(new, "recorded"))
        lines += new
        assert not those(lines, "result")
        if not number:
            file.unlink()  # its text is recorded
    lines += in_a_process(killed, puzzle)

    assert those(lines, "result") == [result]
    once, usual = Counter(those(lines, "recorded")), Counter(those(expected, "recorded"))
    # A kill may come between a record and its report, so some are missing; none may be twice.
    assert set(once.values()) == set(usual.values()) == {1}
    assert once.keys() <= usual.keys()
    again = Counter(those(lines, "asked")) - Counter(those(expected, "asked"))
    assert again.total() <= num_cut, "asked again is at most what a kill cut off"
    assert set(those(lines, "asked")) == set(those(expected, "asked"))
