"""Queues: which run is claimed next, within which limits, and what becomes of lost ones."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, text, update

from store.errors import QueueDraining, RunExists, RunNotFound, RunNotQueueable
from store.models import Run
from store.queue.claims import WORKER_LOST
from store.queue.conditions import IS_QUEUED, ORDER
from store.queue.records import QueueCounts, QueueRecord
from store.records import NEVER_DUE, RunOutcome, Status
from store.session import Store
from tests.unit.store.queue_samples import HERE, a_queued_run, ids_of, submit, take
from tests.unit.store.store_samples import a_run

HOUR = timedelta(hours=1)


def now() -> datetime:
    return datetime.now(UTC)


async def status_of(store: Store, run_id: str = "run-1") -> Status:
    async with store.reading() as tx:
        return (await tx.runs.get(run_id)).status


async def expire(store: Store, *run_ids: str) -> None:
    """Let the leases of claimed runs expire, as if their worker had been silent."""
    async with store.transaction() as tx:
        runs = [await tx.runs.get(run_id) for run_id in run_ids]
        await tx.runs.lease({run.id: run.attempts for run in runs}, now() - HOUR)


async def reclaim(store: Store) -> dict[str, Status]:
    async with store.transaction() as tx:
        return {each.run_id: each.status for each in await tx.claims.reclaim(wall=now())}


async def end(store: Store, run_id: str, status: Status = Status.COMPLETED) -> None:
    async with store.transaction() as tx:
        attempts = (await tx.runs.get(run_id)).attempts
        await tx.runs.finish(run_id, RunOutcome(status, now(), 1.0), attempts=attempts)


async def test_runs_are_claimed_by_priority_then_deadline_then_submission(store: Store) -> None:
    began = now() - HOUR
    runs = [
        a_queued_run(
            f"run-{number}",
            rank=rank,
            due_at=NEVER_DUE if due is None else began + timedelta(minutes=due),
            started_at=began + timedelta(seconds=submitted),
        )
        for number, (rank, due, submitted) in enumerate(
            itertools.product((-2, 0, 1), (5, 9, None), (1, 2))
        )
    ]
    await submit(store, *random.Random(3).sample(runs, len(runs)))
    in_order = [run.id for run in runs]
    async with store.reading() as tx:
        assert [run.id for run in await tx.waiting.of("default")] == in_order
        assert [await tx.waiting.num_ahead(run) for run in runs] == list(range(len(runs)))
    assert await ids_of(store, 7) == in_order[:7]
    assert [await ids_of(store, 1) for _ in in_order[7:]] == [[each] for each in in_order[7:]]
    assert await ids_of(store) == []


async def test_a_claimed_run_is_in_progress_and_leased_to_the_claimant(store: Store) -> None:
    await submit(store, a_queued_run(attributes={"tags": {"team": "sea"}}, deadline_s=60.0))
    [claimed] = await take(store, lease_s=30.0)
    async with store.reading() as tx:
        assert await tx.runs.get("run-1") == claimed
    assert (claimed.status, claimed.attempts, claimed.tags) == (Status.RUNNING, 1, {"team": "sea"})
    assert (claimed.process_id, claimed.host, claimed.model) == (HERE.process_id, "here", "demo")
    assert claimed.claimed_at is not None
    assert claimed.leased_until == claimed.claimed_at + timedelta(seconds=30)
    assert abs(claimed.claimed_at - now()) < timedelta(minutes=1)


async def test_a_worker_claims_only_flows_that_it_has_in_their_version(store: Store) -> None:
    await submit(
        store,
        a_queued_run("mine"),
        a_queued_run("other-flow", flow="draft"),
        a_queued_run("other-version", code_version="v2"),
    )
    assert await ids_of(store, versions={}) == []
    assert await ids_of(store) == ["mine"]
    assert await ids_of(store, any_version=True) == ["other-version"]
    assert await ids_of(store, versions={"draft": "v1"}) == ["other-flow"]


async def test_a_worker_claims_from_its_queues_in_their_order(store: Store) -> None:
    names = ["a", "b", "c"]
    await submit(store, *(a_queued_run(f"in-{name}", queue=name) for name in names))
    assert await ids_of(store, 3, queues=["c", "a"]) == ["in-c", "in-a"]


async def test_a_run_is_not_claimed_before_its_time(store: Store) -> None:
    await submit(store, a_queued_run("later", not_before=now() + HOUR), a_queued_run("soon"))
    async with store.reading() as tx:
        counts = await tx.waiting.counts(wall=now())
    assert counts == {QueueRecord("default"): QueueCounts(num_queued=2, num_later=1)}
    assert await ids_of(store) == ["soon"]
    await submit(store, a_queued_run("past", not_before=now() - HOUR))
    assert await ids_of(store) == ["past"]


async def test_a_paused_queue_gives_nothing_and_a_draining_one_takes_nothing(store: Store) -> None:
    await submit(store, a_queued_run())
    async with store.transaction() as tx:
        await tx.waiting.change("default", is_paused=True)
    assert await ids_of(store) == []
    async with store.transaction() as tx:
        await tx.waiting.change("default", is_paused=False, is_draining=True)
    with pytest.raises(QueueDraining, match="default"):
        await submit(store, a_queued_run("run-2"))
    assert await ids_of(store) == ["run-1"]


async def test_no_more_runs_of_a_queue_are_in_progress_than_its_limit(store: Store) -> None:
    await submit(store, *(a_queued_run(f"run-{number}") for number in range(5)))
    async with store.transaction() as tx:
        await tx.waiting.change("default", max_running=2)
    first, second = await ids_of(store)
    assert await ids_of(store) == []
    await end(store, first)
    [third] = await ids_of(store)
    await expire(store, second, third)
    await reclaim(store)
    assert len(await ids_of(store)) == 2


async def test_no_more_runs_of_a_user_are_in_progress_than_the_limit(store: Store) -> None:
    users = ["ann", "ann", "ann", "ben", "ben"]
    began = now() - HOUR
    await submit(
        store,
        *(
            a_queued_run(f"{user}-{at}", slo_user=user, started_at=began + timedelta(seconds=at))
            for at, user in enumerate(users)
        ),
    )
    async with store.transaction() as tx:
        await tx.waiting.change("default", max_running=3, max_running_of_user=1)
    assert await ids_of(store) == ["ann-0", "ben-3"]
    await end(store, "ben-3")
    assert await ids_of(store) == ["ben-4"]
    assert await ids_of(store) == []


async def test_a_key_lets_one_run_wait_or_be_in_progress(store: Store) -> None:
    async with store.transaction() as tx:
        first = await tx.waiting.add(a_queued_run("first", dedup_key="k"))
        again = await tx.waiting.add(a_queued_run("second", dedup_key="k"))
        elsewhere = await tx.waiting.add(a_queued_run("third", dedup_key="k", queue="other"))
    assert (first.id, again.id, elsewhere.id) == ("first", "first", "third")
    assert await ids_of(store) == ["first"]
    async with store.transaction() as tx:
        assert (await tx.waiting.add(a_queued_run("second", dedup_key="k"))).id == "first"
    await end(store, "first")
    async with store.transaction() as tx:
        assert (await tx.waiting.add(a_queued_run("second", dedup_key="k"))).id == "second"
    with pytest.raises(RunExists):
        await submit(store, a_queued_run("first"))


async def test_a_run_whose_lease_expires_waits_again_as_another_attempt(store: Store) -> None:
    await submit(store, a_queued_run())
    await take(store)
    assert await reclaim(store) == {}
    await expire(store, "run-1")
    assert await reclaim(store) == {"run-1": Status.QUEUED}
    [again] = await take(store)
    assert (again.attempts, again.failed_attempts) == (2, 1)


async def test_a_run_that_loses_its_workers_too_often_is_dead(store: Store) -> None:
    await submit(store, a_queued_run(max_attempts=2))
    for expected in (Status.QUEUED, Status.DEAD):
        await take(store)
        await expire(store, "run-1")
        assert await reclaim(store) == {"run-1": expected}
    assert await ids_of(store) == []
    async with store.reading() as tx:
        dead = await tx.runs.get("run-1")
    assert (dead.error_type, dead.failed_attempts) == (WORKER_LOST, 2)
    assert dead.finished_at is not None


async def test_a_lapsed_run_that_was_to_be_cancelled_is_cancelled(store: Store) -> None:
    await submit(store, a_queued_run())
    await take(store)
    async with store.transaction() as tx:
        await tx.runs.request_cancel("run-1", now())
    await expire(store, "run-1")
    assert await reclaim(store) == {"run-1": Status.CANCELLED}


async def test_only_runs_of_queues_are_reclaimed(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run(leased_until=now() - HOUR))
    assert await reclaim(store) == {}
    assert await status_of(store) is Status.RUNNING


async def test_a_run_that_is_handed_back_has_lost_no_attempt(store: Store) -> None:
    await submit(store, a_queued_run("mine"), a_queued_run("others"))
    await take(store)
    async with store.transaction() as tx:
        handed = await tx.claims.hand_back({"mine": 1, "others": 9}, wall=now())
    assert [(each.run_id, each.status) for each in handed] == [("mine", Status.QUEUED)]
    [again] = await take(store)
    assert (again.id, again.attempts, again.failed_attempts) == ("mine", 2, 0)


async def test_a_failed_run_waits_for_its_retry_and_is_dead_after_the_last(store: Store) -> None:
    await submit(store, a_queued_run(max_attempts=3, retry_s=40.0))
    for attempt, pause_s in ((1, 40.0), (2, 80.0), (3, None)):
        [run] = await take(store)
        async with store.transaction() as tx:
            failed = RunOutcome(Status.FAILED, now(), 1.0, error_type="Boom")
            await tx.runs.finish("run-1", failed, attempts=attempt)
            await tx.claims.retry("run-1", attempts=attempt, wall=now())
            run = await tx.runs.get("run-1")
        if pause_s is None:
            assert (run.status, run.error_type) == (Status.DEAD, "Boom")
            break
        assert (run.status, run.error_type, run.finished_at) == (Status.QUEUED, None, None)
        assert run.not_before is not None
        assert (run.not_before - now()).total_seconds() == pytest.approx(pause_s, abs=5)
        await change(store, not_before=None)


async def change(store: Store, **values: Any) -> None:
    async with store.transaction() as tx:
        await tx.runs._connection.execute(update(Run).values(**values))


async def test_a_failed_run_that_asks_for_no_retry_stays_failed(store: Store) -> None:
    await submit(store, a_queued_run())
    await take(store)
    await end(store, "run-1", Status.FAILED)
    async with store.transaction() as tx:
        assert await tx.claims.retry("run-1", attempts=1, wall=now()) is None
    assert await status_of(store) is Status.FAILED


async def test_a_dead_run_can_be_queued_again_with_a_new_deadline(store: Store) -> None:
    await submit(store, a_queued_run(max_attempts=1, dedup_key="k", deadline_s=5.0))
    await take(store)
    await expire(store, "run-1")
    await reclaim(store)
    async with store.transaction() as tx:
        run = await tx.waiting.requeue("run-1", wall=now(), allowed_s=60.0)
    assert (run.status, run.failed_attempts, run.error_type) == (Status.QUEUED, 0, None)
    assert run.due_at is not None
    assert (run.due_at - now()).total_seconds() == pytest.approx(60, abs=5)
    assert run.deadline_s == pytest.approx((run.due_at - run.started_at).total_seconds(), abs=0.01)
    assert await ids_of(store) == ["run-1"]


async def test_only_an_ended_run_of_a_queue_can_be_queued_again(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run("direct"))
    await submit(store, a_queued_run())
    for run_id, reason in (("direct", "not submitted"), ("run-1", "it is queued")):
        with pytest.raises(RunNotQueueable, match=reason):
            async with store.transaction() as tx:
                await tx.waiting.requeue(run_id, wall=now())
    with pytest.raises(RunNotFound):
        async with store.transaction() as tx:
            await tx.waiting.requeue("unknown", wall=now())


async def test_a_waiting_run_is_cancelled_and_one_in_progress_is_not(store: Store) -> None:
    await submit(store, a_queued_run("waits"), a_queued_run("runs", rank=-1))
    await take(store, 1)
    async with store.transaction() as tx:
        assert await tx.waiting.cancel("waits", at=now())
        assert not await tx.waiting.cancel("runs", at=now())
    assert await status_of(store, "waits") is Status.CANCELLED
    assert await ids_of(store) == []


async def test_a_claim_uses_the_index_of_waiting_runs(store: Store) -> None:
    """Not the order of a million runs that have ended."""
    async with store.transaction() as tx:
        connection = tx.runs._connection
        is_sqlite = connection.dialect.name == "sqlite"
        if not is_sqlite:
            await connection.execute(text("SET LOCAL enable_seqscan = off"))
        query = select(Run.id).where(IS_QUEUED, Run.queue == "default").order_by(*ORDER).limit(1)
        compiled = str(query.compile(connection.engine, compile_kwargs={"literal_binds": True}))
        explain = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN "
        plan = " ".join(str(row) for row in await connection.execute(text(explain + compiled)))
    assert "ix_runs_queued" in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


async def test_a_waiting_run_is_not_removed_however_old_it_is(store: Store) -> None:
    await submit(store, a_queued_run(started_at=now() - 1000 * HOUR))
    async with store.transaction() as tx:
        assert (await tx.retention.remove(ended_before=now(), now=now())).num_runs == 0
    assert await ids_of(store) == ["run-1"]
