"""Runs: one start and one outcome for each id, and lookup by the beginning of an id."""

from __future__ import annotations

import asyncio
from datetime import UTC, timedelta
from typing import Any

import pytest

from store.errors import (
    AlreadyRecorded,
    InvalidAttributes,
    PayloadMissing,
    RunAmbiguous,
    RunChanged,
    RunExists,
    RunNotFound,
)
from store.records import RunOutcome, Status
from store.session import Store
from tests.unit.store.store_samples import NOON, a_full_run, a_run, a_step

COMPLETED = RunOutcome(Status.COMPLETED, NOON + timedelta(seconds=3), 3.0)


async def test_a_run_is_read_as_it_was_added(store: Store) -> None:
    async with store.transaction() as tx:
        hash_ = await tx.payloads.put(b"why?")
        run = a_full_run(input_payload=hash_)
        await tx.runs.add(run)
    async with store.reading() as tx:
        stored = await tx.runs.get("run-1")
    assert stored == run
    assert stored.started_at.tzinfo is UTC


async def test_a_finished_run_keeps_its_outcome(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        hash_ = await tx.payloads.put(b"because")
        outcome = RunOutcome(
            Status.FAILED, NOON, 1.5, hash_, error_type="Boom", error_message="it went off"
        )
        await tx.runs.finish("run-1", outcome)
        run = await tx.runs.get("run-1")
    assert run == a_run(
        status=Status.FAILED,
        finished_at=NOON,
        elapsed_s=1.5,
        error_type="Boom",
        error_message="it went off",
        result_payload=hash_,
    )


async def test_a_second_run_with_the_same_id_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run(flow="first"))
        with pytest.raises(RunExists):
            await tx.runs.add(a_run(flow="second"))
        assert (await tx.runs.get("run-1")).flow == "first"


async def test_the_outcome_of_a_run_is_never_overwritten(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.runs.finish("run-1", COMPLETED)
        with pytest.raises(AlreadyRecorded):
            await tx.runs.finish("run-1", RunOutcome(Status.CANCELLED, NOON, 9.0))
        assert (await tx.runs.get("run-1")).status is Status.COMPLETED


async def test_an_unknown_run_can_neither_be_finished_nor_read(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(RunNotFound):
            await tx.runs.finish("unknown", COMPLETED)
        with pytest.raises(RunNotFound):
            await tx.runs.get("unknown")


async def test_a_run_cannot_refer_to_a_payload_that_is_not_stored(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(PayloadMissing, match="feed"):
            await tx.runs.add(a_run(input_payload="feed"))
        await tx.runs.add(a_run())
        with pytest.raises(PayloadMissing, match="f00d"):
            await tx.runs.finish(
                "run-1", RunOutcome(Status.COMPLETED, NOON, 1.0, result_payload="f00d")
            )
        assert (await tx.runs.get("run-1")).status is Status.RUNNING


async def test_a_run_is_found_by_a_unique_prefix_of_its_id(store: Store) -> None:
    async with store.transaction() as tx:
        for run_id in ("abc1", "abd2", "ABD3", "a%", "a_b"):
            await tx.runs.add(a_run(run_id))
        assert (await tx.runs.find("abd")).id == "abd2"
        assert (await tx.runs.find("AB")).id == "ABD3"
        assert (await tx.runs.find("a%")).id == "a%"
        assert (await tx.runs.find("a_")).id == "a_b"
        with pytest.raises(RunAmbiguous) as ambiguous:
            await tx.runs.find("ab")
        assert set(ambiguous.value.args[1]) == {"abc1", "abd2"}
        with pytest.raises(RunNotFound):
            await tx.runs.find("b")


async def test_a_full_id_is_never_ambiguous(store: Store) -> None:
    async with store.transaction() as tx:
        for number in range(20):
            await tx.runs.add(a_run(f"run-1{number}", started_at=NOON + timedelta(number)))
        await tx.runs.add(a_run("run-1"))
        assert (await tx.runs.find("run-1")).id == "run-1"


async def test_runs_are_listed_newest_first(store: Store) -> None:
    async with store.transaction() as tx:
        assert await tx.runs.latest() is None
        for run_id, minute in (("old", 1), ("new", 3), ("twin-a", 2), ("twin-b", 2)):
            await tx.runs.add(a_run(run_id, started_at=NOON + timedelta(minutes=minute)))
        await tx.runs.finish("twin-a", COMPLETED)
        listed = [run.id for run in await tx.runs.newest()]
        assert listed == ["new", "twin-b", "twin-a", "old"]
        assert [run.id for run in await tx.runs.newest(limit=2)] == listed[:2]
        assert [run.id for run in await tx.runs.newest(status=Status.COMPLETED)] == ["twin-a"]
        latest = await tx.runs.latest()
        assert latest is not None
        assert latest.id == "new"


async def test_characters_that_databases_refuse_are_replaced_in_error_messages(
    store: Store,
) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        outcome = RunOutcome(
            Status.FAILED,
            NOON,
            1.0,
            error_type="Bad",
            error_message="nul \x00 and half \ud83d a pair",
        )
        await tx.runs.finish("run-1", outcome)
        message = (await tx.runs.get("run-1")).error_message
    assert message == "nul \ufffd and half ? a pair"


async def test_a_key_with_characters_that_databases_refuse_is_found(store: Store) -> None:
    odd = "nul \x00 half \ud83d"
    async with store.transaction() as tx:
        await tx.runs.add(a_run(odd, flow=odd))
        assert (await tx.runs.get(odd)).flow == "nul \ufffd half ?"
        assert (await tx.runs.find(odd[:5])).flow == "nul \ufffd half ?"


async def test_attributes_that_are_not_json_are_refused(store: Store) -> None:
    for value in (object(), float("nan"), float("inf"), b"bytes"):
        async with store.transaction() as tx:
            with pytest.raises(InvalidAttributes):
                await tx.runs.add(a_run(attributes={"odd": value}))


async def test_a_lease_is_renewed_only_for_the_current_attempt(store: Store) -> None:
    runs = [a_run("current"), a_run("resumed", attempts=2)]
    async with store.transaction() as tx:
        for run in runs:
            await tx.runs.add(run)
        leased = await tx.runs.lease({"current": 1, "resumed": 1, "removed": 1}, NOON)
        assert list(leased) == ["current"]
        assert (await tx.runs.get("current")).leased_until == NOON
        assert await tx.runs.get("resumed") == runs[1]


async def test_an_earlier_attempt_cannot_finish_a_resumed_run(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run(attempts=2))
        with pytest.raises(RunChanged):
            await tx.runs.finish("run-1", COMPLETED)
        assert await tx.runs.get("run-1") == a_run(attempts=2)
        await tx.runs.finish("run-1", COMPLETED, attempts=2)


async def test_a_write_of_an_earlier_attempt_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run(attempts=2))
        await tx.runs.require_attempt("run-1", 2)
        for run_id, attempts in (("run-1", 1), ("removed", 1)):
            with pytest.raises(RunChanged):
                await tx.runs.require_attempt(run_id, attempts)


async def test_a_resume_waits_for_a_write_that_has_begun_and_then_sees_it(store: Store) -> None:
    run, resumed = a_run(), a_run(attempts=2)
    async with store.transaction() as tx:
        await tx.runs.add(run)

    async def resume() -> int:
        async with store.transaction() as tx:
            await tx.runs.resume(run, resumed)
            return len(await tx.journal.of_run("run-1"))

    async with store.transaction() as tx:
        await tx.runs.require_attempt("run-1", 1)
        resuming = asyncio.create_task(resume())
        await asyncio.wait([resuming], timeout=0.1)
        assert not resuming.done()
        await tx.journal.start(a_step())
    assert await resuming == 1


async def test_a_run_is_asked_to_be_cancelled_while_it_goes_on_until_it_is_resumed(
    store: Store,
) -> None:
    going_on, ended = a_run("going-on"), a_run("ended", status=Status.FAILED)
    async with store.transaction() as tx:
        for run in (going_on, ended, a_run("other")):
            await tx.runs.add(run)
        assert await tx.runs.request_cancel("going-on", NOON)
        assert await tx.runs.request_cancel("going-on", NOON + timedelta(seconds=1))
        assert not await tx.runs.request_cancel("ended", NOON)
        assert not await tx.runs.request_cancel("unknown", NOON)
        assert (await tx.runs.get("going-on")).cancel_requested_at == NOON
        assert list(await tx.runs.to_cancel(["going-on", "ended", "other"])) == ["going-on"]
        assert list(await tx.runs.to_cancel(["other"])) == []
        await tx.runs.resume(going_on, a_run("going-on", attempts=2, deadline_s=90.0))
        resumed = await tx.runs.get("going-on")
        assert (resumed.cancel_requested_at, resumed.deadline_s) == (None, 90.0)
        assert list(await tx.runs.to_cancel(["going-on"])) == []


async def test_the_newest_runs_are_filtered_by_flow_user_and_status_together(store: Store) -> None:
    async with store.transaction() as tx:
        for number, (flow, user) in enumerate([("a", "ann"), ("a", "ben"), ("b", "ben")]):
            started_at = NOON + timedelta(seconds=number)
            await tx.runs.add(a_run(f"r{number}", flow=flow, slo_user=user, started_at=started_at))

        async def ids(**filters: Any) -> list[str]:
            return [run.id for run in await tx.runs.newest(**filters)]

        assert await ids(flow="a") == ["r1", "r0"]
        assert await ids(user="ben") == ["r2", "r1"]
        assert await ids(flow="a", user="ben") == ["r1"]
        assert await ids(flow="a", limit=1) == ["r1"]
        assert await ids(flow="a", status=Status.FAILED) == []


ODD = """ a".'b]{,}[$\\ö"""


async def test_the_newest_runs_are_those_with_all_tags_that_are_asked_for(store: Store) -> None:
    tags: list[dict[str, str]] = [
        {},
        {"team": "sea"},
        {"team": "sea", "kind": "trial", "": ""},
        {"sea": "team", ODD: ODD},
    ]
    async with store.transaction() as tx:
        for number, given in enumerate(tags):
            started_at = NOON + timedelta(seconds=number)
            attributes = {"tags": given} if given else {}
            await tx.runs.add(a_run(f"r{number}", started_at=started_at, attributes=attributes))
        await tx.runs.add(a_run("former", flow="other", attributes={"tags": "none", "team": "sea"}))

        async def ids(**filters: Any) -> list[str]:
            return [run.id for run in await tx.runs.newest(**filters)]

        assert await ids(tags={"team": "sea"}) == ["r2", "r1"]
        assert await ids(tags={"team": "sea", "kind": "trial"}) == ["r2"]
        assert await ids(tags={"team": "sea"}, limit=1) == ["r2"]
        assert await ids(tags={"team": "sea"}, flow="other") == []
        assert await ids(tags={"team": "land"}) == []
        assert await ids(tags={"team": ""}) == []
        assert await ids(tags={"": ""}) == ["r2"]
        assert await ids(tags={ODD: ODD}) == ["r3"]
        assert await ids(tags={"0": "sea"}) == []
        assert await ids(tags={}, flow="research") == ["r3", "r2", "r1", "r0"]
