"""Plans on the real engine: they change no answer, leak nothing, and block no request."""

from __future__ import annotations

import random
from typing import Any

import pytest

from serving.engine.clients.embedded import EmbeddedEngine
from serving.policies.baselines.orderings import fcfs
from serving.policies.table import PolicySpec
from serving.slo import OnLate, Slo, SloKind
from serving.view import Plan, StepView
from tests.engine.vllm_driver import Chaos, Driver, Scripted

FCFS = PolicySpec("fcfs")


def tokens(seed: object, count: int) -> list[int]:
    """A prompt of random tokens."""
    choose = random.Random(str(seed))
    return [choose.randint(2, 4095) for _ in range(count)]


def mixed_prompts() -> list[list[int]]:
    """Short and long prompts, half of them with a common prefix."""
    choose = random.Random(7)
    common = tokens("common", 300)
    prompts = []
    for index in range(24):
        own = tokens(index, choose.choice([5, 40, 200, 450]))
        prompts.append(common + own if index % 2 else own)
    return prompts


def outputs(llm: Any, policy: Any) -> list[list[int]]:
    """Greedy answers to the mixed prompts, which arrive a few steps apart."""
    assert llm.reset_prefix_cache()
    driver = Driver(llm, policy)
    choose = random.Random(11)
    for index, prompt in enumerate(mixed_prompts()):
        driver.submit(str(index), prompt, max_tokens=choose.randint(10, 60))
        driver.steps(choose.randint(0, 3))
    driver.run()
    return [request.tokens for request in driver.requests.values()]


async def test_no_plan_changes_the_answers(engine: EmbeddedEngine) -> None:
    """Random pauses, preemptions and step budgets, compared with fcfs."""
    expected = await engine.call(lambda llm: outputs(llm, FCFS))
    assert all(expected)
    for seed in range(3):
        chaos = Chaos(seed)
        assert await engine.call(lambda llm, chaos=chaos: outputs(llm, chaos)) == expected
        assert chaos.paused > 50
        assert chaos.preempted > 10


EVENTS = 600


def random_events(llm: Any, seed: int) -> dict[str, int]:
    """Requests arrive, are aborted, are late, are rejected and dropped under random plans."""
    chaos = Chaos(seed, drop_chance=0.01)
    driver = Driver(llm, chaos)
    choose = random.Random(seed)
    free_blocks = driver.free_blocks
    aborted = rejected = 0
    while len(driver.requests) + aborted + rejected + chaos.dropped + chaos.preempted < EVENTS:
        kind = choose.random()
        name = f"{len(driver.requests):04}"
        size = choose.choice([3, 130, 300, 900])
        prompt, limit = tokens(choose.randint(0, 5), size), choose.randint(1, 30)
        if kind < 0.5:
            driver.submit(name, prompt, max_tokens=limit)
        elif kind < 0.6:
            slo = Slo(kind=SloKind.DEADLINE, deadline_s=8.0, on_late=OnLate.DROP)
            driver.submit(name, prompt, max_tokens=limit, slo=slo)
        elif kind < 0.65:
            rejected += 1
            driver.submit(name, prompt, max_tokens=limit, tags={"slo_weight": -1.0})
        elif unfinished := driver.unfinished():
            aborted += 1
            driver.abort(choose.choice(unfinished))
        driver.steps(choose.randint(0, 4))
    driver.run()
    assert driver.free_blocks == free_blocks
    reasons = [request.ended.finish_reason for request in driver.requests.values()]
    return {
        "aborted": aborted,
        "rejected": rejected,
        "dropped": chaos.dropped,
        "preempted": chaos.preempted,
        "finished": reasons.count("length"),
        "ended": len(reasons),
    }


@pytest.mark.parametrize("seed", [0, 1])
async def test_every_kv_block_is_freed(engine: EmbeddedEngine, seed: int) -> None:
    """The `engine` fixture also checks that no record of any request is left."""
    counts = await engine.call(lambda llm: random_events(llm, seed))
    assert min(counts.values()) >= 5, counts


async def test_a_paused_request_keeps_its_kv_cache_and_resumes_from_it(
    engine: EmbeddedEngine,
) -> None:
    def work(llm: Any) -> None:
        driver = Driver(llm, FCFS)
        driver.submit("a", tokens("a", 300), max_tokens=20)
        driver.submit("b", tokens("b", 300), max_tokens=20)
        script = Scripted(driver, "a")
        driver.steps(6)
        assert driver.running == ["a"]
        computed_tokens = driver.request("a").num_computed_tokens
        output_tokens = len(driver.requests["a"].tokens)

        script.run("b")
        driver.steps(6)
        assert driver.running == ["b", "a"]
        assert driver.request("a").num_computed_tokens == computed_tokens
        assert len(driver.requests["a"].tokens) == output_tokens
        assert len(driver.requests["b"].tokens) == 6

        script.run("a", "b")
        driver.step()
        assert driver.request("a").num_computed_tokens == computed_tokens + 1
        assert driver.request("a").num_preemptions == 0
        driver.run()

    await engine.call(work)


@pytest.mark.parametrize(("first", "last"), [("a", "b"), ("b", "a")])
async def test_the_last_paused_request_loses_its_slot_to_an_admitted_one(
    engine: EmbeddedEngine, first: str, last: str
) -> None:
    def work(llm: Any) -> None:
        driver = Driver(llm, FCFS)
        driver.scheduler.max_num_active_reqs = 2
        for name in "abc":
            driver.submit(name, tokens(name, 100), max_tokens=20)
        script = Scripted(driver, "a", "b")
        driver.steps(3)
        script.run("c", then=[first, last])
        driver.steps(3)
        assert driver.running == ["c", first]
        assert driver.request(first).num_preemptions == 0
        assert driver.request(last).num_preemptions == 1
        assert driver.requests["c"].tokens
        script.run("a", "b", "c")
        driver.run()

    await engine.call(work)


async def test_paused_requests_that_hold_all_memory_are_evicted_one_by_one(
    engine: EmbeddedEngine,
) -> None:
    """Each of them holds a third of the blocks; an admitted request needs a third too."""

    def work(llm: Any) -> None:
        driver = Driver(llm, FCFS)
        blocks = driver.free_blocks
        third = tokens("third", (blocks // 3 - 1) * driver.scheduler.block_size + 1)
        for index, name in enumerate("abcde"):
            driver.submit(name, [index + 2, *third], max_tokens=30)
        script = Scripted(driver, "a", "b", "c")
        driver.steps(12)
        assert driver.running == ["a", "b", "c"]
        assert driver.free_blocks < blocks // 3

        script.run("d")
        driver.steps(10)
        assert driver.running == ["d", "a", "b"]
        script.run("d", "e")
        driver.steps(10)
        assert driver.running == ["d", "e", "a"]
        assert driver.request("a").num_preemptions == 0
        driver.run(limit=400)

    await engine.call(work)


async def test_a_paused_request_that_vllm_preempts_runs_again_when_it_is_admitted(
    engine: EmbeddedEngine,
) -> None:
    """If it stayed paused, it would hold its slot without running for as long as the plan."""

    def work(llm: Any) -> None:
        driver = Driver(llm, FCFS)
        block = driver.scheduler.block_size
        third = driver.free_blocks // 3 * block - 10  # each soon needs one more block
        for name in "abc":
            driver.submit(name, tokens(name, third), max_tokens=200)
        script = Scripted(driver, "a", "b", "c")
        driver.steps(12)
        script.run("a", "c")
        for _ in range(40):
            driver.step()
            if driver.request("b").num_preemptions:
                break
        assert driver.running == ["a", "c"]

        driver.abort("c")
        script.run("a", "b")
        driver.steps(5)
        assert "b" in driver.running
        output_tokens = len(driver.requests["b"].tokens)
        driver.steps(5)
        assert len(driver.requests["b"].tokens) == output_tokens + 5
        driver.abort("a")
        driver.abort("b")

    await engine.call(work)


async def test_a_preempted_request_frees_its_memory_at_once(engine: EmbeddedEngine) -> None:
    def work(llm: Any) -> None:
        driver = Driver(llm, FCFS)
        free_blocks = driver.free_blocks
        driver.submit("a", tokens("a", 400), max_tokens=30)
        driver.steps(3)
        driver.submit("b", tokens("b", 10), max_tokens=30)
        [first, second] = driver.engine_ids("ab")

        def evict(view: StepView) -> Plan:
            return Plan(order=(second, first), run=frozenset({second}), preempt=frozenset({first}))

        driver.use_policy(evict)
        driver.step()
        assert driver.running == ["b"]
        assert free_blocks - driver.free_blocks == 1
        driver.use_policy(FCFS)
        driver.run()
        assert [len(driver.requests[name].tokens) for name in "ab"] == [30, 30]

    await engine.call(work)


async def test_no_step_exceeds_the_token_budget_of_its_plan(
    engine: EmbeddedEngine,
) -> None:
    def steps_to_first_token(llm: Any, name: str, budget: int | None) -> int:
        driver = Driver(llm, lambda view: fcfs(view)._replace(step_tokens=budget))
        driver.submit(name, tokens(name, 320), max_tokens=2)
        steps = 0
        while not driver.requests[name].tokens:
            driver.step()
            steps += 1
        driver.run()
        return steps

    assert await engine.call(lambda llm: steps_to_first_token(llm, "a", 16)) == 20
    assert await engine.call(lambda llm: steps_to_first_token(llm, "b", None)) == 1


async def test_a_plan_is_valid_until_its_last_step_or_an_arrival_or_end(
    engine: EmbeddedEngine,
) -> None:
    def work(llm: Any) -> None:
        planned: list[int] = []

        def decide(view: StepView) -> Plan:
            planned.append(int(view.now_s))
            return fcfs(view)._replace(steps=10)

        driver = Driver(llm, decide)
        began = driver.scheduler.current_step
        driver.submit("a", tokens("a", 20), max_tokens=24)
        driver.steps(15)
        driver.submit("b", tokens("b", 20), max_tokens=100)
        driver.steps(10)
        driver.abort("b")
        driver.run()
        # At a's arrival, ten steps later, at b's arrival, and at a's end.
        assert [step - began for step in planned[:4]] == [0, 10, 15, 24]

    await engine.call(work)


async def test_a_plan_expires_when_a_deadline_passes(engine: EmbeddedEngine) -> None:
    """No request arrives or ends; the deadline passes within a plan of fifty steps."""

    def work(llm: Any) -> None:
        driver = Driver(llm, FCFS)
        slo = Slo(kind=SloKind.DEADLINE, deadline_s=17.0, on_late=OnLate.DROP)
        driver.submit("a", tokens("a", 20), max_tokens=100, slo=slo)
        driver.run()
        assert driver.requests["a"].ended.finish_reason == "abort"
        assert driver.steps_taken("a") in (17, 18)

    await engine.call(work)
