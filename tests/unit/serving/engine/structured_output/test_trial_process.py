"""Trials of specifications in a process with limits. They need llguidance, and no vLLM."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from serving.engine.setup.random_model import VOCABULARY, ensure_random_model
from serving.engine.structured_output.specification import Specification, Tokenizer
from serving.engine.structured_output.trial_process import (
    MAX_WAITING,
    TrialNotPossible,
    TrialProcess,
)
from tests.places import ROOT

pytest.importorskip("llguidance")
pytestmark = pytest.mark.usefixtures("subprocesses")

WAIT_S = 30
SLOW = {"type": "integer", "multipleOf": 400_009}
LARGE = {"type": "array", "items": {"type": "integer"}, "minItems": 100_000_000}


def of_schema(schema: Any) -> Specification:
    return Specification("json", json.dumps(schema), any_whitespace=False)


def demo_tokenizer() -> Tokenizer:
    definition = (ensure_random_model() / "tokenizer.json").read_text(encoding="utf-8")
    return Tokenizer(definition, num_tokens=VOCABULARY, eos_token=0)


@pytest.fixture
def trials() -> Iterator[TrialProcess]:
    process = TrialProcess(demo_tokenizer)
    yield process
    process.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 (processes have no event)
            await asyncio.sleep(0.01)


def process_of(trials: TrialProcess) -> psutil.Process:
    assert trials._process is not None
    return psutil.Process(trials._process.pid)


async def test_a_schema_compiles_and_its_outcome_is_remembered(trials: TrialProcess) -> None:
    specification = of_schema({"type": "integer"})
    assert trials.outcome(specification) is None
    trial = await trials.compile(specification)
    assert trial.fault is None
    assert trials.outcome(specification) == trial


@pytest.mark.parametrize(
    ("schema", "limit"), [(SLOW, "takes more than 0.5 s"), (LARGE, "MiB of memory")]
)
async def test_a_schema_beyond_a_limit_is_refused_and_the_next_one_compiles(
    trials: TrialProcess, schema: Any, limit: str
) -> None:
    assert limit in str((await trials.compile(of_schema(schema))).fault)
    assert (await trials.compile(of_schema({"type": "null"}))).fault is None
    assert limit in str((await trials.compile(of_schema(schema))).fault)


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        ("json", '{"type": "no such type"}', "no such type"),
        ("json", "[", "invalid"),
        ("json_object", "", None),
        ("regex", "(", "unclosed"),
        ("regex", "a{3}", None),
        ("choice", '["a", "b"]', None),
        ("grammar", 'start: "a"', None),
        ("grammar", "::= nonsense", "invalid"),
        ("structural_tag", '{"format": {}}', "structures"),
        (
            "structural_tag",
            '{"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}]}',
            None,
        ),
        (
            "structural_tag",
            '{"triggers": ["<g"], "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}]}',
            "trigger",
        ),
    ],
)
async def test_every_kind_of_specification_can_be_tried(
    trials: TrialProcess, kind: str, text: str, fault: str | None
) -> None:
    trial = await trials.compile(Specification(kind, text, any_whitespace=False))
    assert (trial.fault is None) if fault is None else (fault in str(trial.fault))


async def test_a_grammar_in_another_syntax_is_translated(trials: TrialProcess) -> None:
    trial = await trials.compile(Specification("grammar", 'root ::= "a"', any_whitespace=False))
    assert trial.lark is not None
    again = await trials.compile(Specification("grammar", trial.lark, any_whitespace=False))
    assert (again.fault, again.lark) == (None, None)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: s\ns: s s | s s s | C | ""\nC: /./',  # 150 ms for the mask of each token
        'start: s\ns: s s | s s s | "a" | ""',  # more for each further token
    ],
)
async def test_a_grammar_whose_masks_take_long_is_refused(
    trials: TrialProcess, grammar: str
) -> None:
    trial = await trials.compile(Specification("grammar", grammar, any_whitespace=False))
    assert "masks of an answer" in str(trial.fault)


async def test_a_queue_of_slow_specifications_is_limited(trials: TrialProcess) -> None:
    slow = [of_schema(SLOW | {"minimum": number}) for number in range(MAX_WAITING + 3)]
    running = [asyncio.create_task(trials.compile(each)) for each in slow]
    ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    assert len(ended) == 3
    assert all("too many others" in str(task.exception()) for task in ended)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert (await trials.compile(of_schema({"type": "null"}))).fault is None


async def test_a_cancelled_trial_stops_and_is_not_remembered(trials: TrialProcess) -> None:
    await trials.compile(of_schema({}))
    process = process_of(trials)
    running = asyncio.create_task(trials.compile(of_schema(SLOW)))
    await until(lambda: bool(process.children()))
    [child] = process.children()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not child.is_running())
    assert trials.outcome(of_schema(SLOW)) is None
    assert (await trials.compile(of_schema({"type": "null"}))).fault is None


async def test_a_trial_that_waits_for_another_can_be_cancelled(trials: TrialProcess) -> None:
    running = asyncio.create_task(trials.compile(of_schema(SLOW)))
    waiting = asyncio.create_task(trials.compile(of_schema({"type": "null"})))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await running).fault is not None


async def test_a_schema_is_tried_without_a_tokenizer_that_llguidance_can_read() -> None:
    trials = TrialProcess(lambda: None)
    try:
        assert (await trials.compile(of_schema({"type": "integer"}))).fault is None
        assert (await trials.compile(of_schema({"type": "no such type"}))).fault is not None
    finally:
        trials.close()


async def test_a_killed_process_is_replaced(trials: TrialProcess) -> None:
    await trials.compile(of_schema({}))
    process = process_of(trials)
    process.kill()
    process.wait()
    assert (await trials.compile(of_schema({"type": "null"}))).fault is None


async def test_a_trial_that_runs_when_the_process_is_closed_fails() -> None:
    trials = TrialProcess(demo_tokenizer)
    await trials.compile(of_schema({}))
    process = process_of(trials)
    running = asyncio.create_task(trials.compile(of_schema(SLOW)))
    await until(lambda: bool(process.children()))
    trials.close()
    with pytest.raises(TrialNotPossible):
        await running
    assert not process.is_running()


async def test_a_tokenizer_that_cannot_be_read_fails_the_trial_and_not_the_next_one() -> None:
    def failing() -> Tokenizer:
        if not attempts:
            attempts.append(True)
            raise OSError("the file is gone")
        return demo_tokenizer()

    attempts: list[bool] = []
    trials = TrialProcess(failing)
    try:
        with pytest.raises(TrialNotPossible, match="the file is gone"):
            await trials.compile(of_schema({}))
        assert (await trials.compile(of_schema({}))).fault is None
    finally:
        trials.close()


PROGRAM = """
import asyncio
from serving.engine.structured_output.trial_process import TrialProcess
from tests.unit.serving.engine.structured_output.test_trial_process import (
    SLOW, demo_tokenizer, of_schema
)
trials = TrialProcess(demo_tokenizer)
asyncio.run(trials.compile(of_schema({})))
print("ready", flush=True)
asyncio.run(trials.compile(of_schema(SLOW)))
"""


@pytest.fixture
def caller() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE)
    with process:
        yield process
        process.kill()


async def test_a_trial_ends_when_its_caller_is_killed(caller: subprocess.Popen[bytes]) -> None:
    assert caller.stdout is not None
    assert await asyncio.to_thread(caller.stdout.readline) == b"ready\n"
    process = psutil.Process(caller.pid)
    await until(lambda: len(process.children(recursive=True)) == 2)
    started = process.children(recursive=True)
    caller.kill()
    _, left = await asyncio.to_thread(psutil.wait_procs, started, WAIT_S)
    assert left == []
