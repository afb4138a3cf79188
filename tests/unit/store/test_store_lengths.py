"""Length samples: the length predictor's training data from past calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from store.records import CallKind, CallOutcome, LengthSample, Status
from store.session import Store
from store.unit_of_work import Transaction
from tests.unit.store.store_samples import NOON, a_call, a_run


async def record(
    tx: Transaction,
    node: int,
    *,
    run_id: str = "run-1",
    finished_s: float = 1.0,
    status: Status = Status.COMPLETED,
    output_tokens: int | None = 10,
    **changes: Any,
) -> None:
    """Record a call that has ended."""
    fields: dict[str, Any] = {"run_id": run_id, "features": b"%d" % node}
    await tx.calls.start(a_call(node, **fields | changes))
    outcome = CallOutcome(status, finished_s, output_tokens=output_tokens)
    await tx.calls.finish(run_id, node, outcome)


async def test_a_sample_has_the_features_the_prediction_and_the_length_of_a_call(
    store: Store,
) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await record(tx, 0, features=b"\x00\xff", length_bound=64.5, output_tokens=60)
        await record(tx, 1, identity="demo/write", finished_s=2.0)
    async with store.reading() as tx:
        first, second = await tx.calls.length_samples("research", limit=9)
    assert first == LengthSample(
        run_id="run-1",
        identity="demo/plan",
        run_started_at=NOON,
        started_s=0.25,
        finished_s=1.0,
        features=b"\x00\xff",
        output_tokens=60,
        length_bound=64.5,
    )
    assert (second.identity, second.features) == ("demo/write", b"1")
    assert (second.finished_s, second.length_bound) == (2.0, None)


async def test_the_newest_samples_are_read_oldest_first(store: Store) -> None:
    """Ordered by the start of their run, then by their own end, then by node."""
    async with store.transaction() as tx:
        for run_id, minute in (("new", 2), ("old", 1)):
            await tx.runs.add(a_run(run_id, started_at=NOON + timedelta(minutes=minute)))
        for node, run_id, finished_s in (
            (0, "new", 5.0),
            (1, "new", 3.0),
            (2, "new", 3.0),
            (3, "old", 9.0),
            (4, "old", 8.0),
        ):
            await record(tx, node, run_id=run_id, finished_s=finished_s)
    oldest_first = [b"4", b"3", b"1", b"2", b"0"]
    async with store.reading() as tx:
        for limit in (0, 1, 3, 5, 9):
            samples = await tx.calls.length_samples("research", limit=limit)
            assert [sample.features for sample in samples] == oldest_first[max(0, 5 - limit) :]


async def test_only_completed_llm_calls_with_features_of_this_flow_are_samples(
    store: Store,
) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.runs.add(a_run("other", flow="coding"))
        await record(tx, 0)
        await record(tx, 1, kind=CallKind.TOOL)
        await record(tx, 2, features=None)
        await record(tx, 3, status=Status.FAILED)
        await record(tx, 4, status=Status.CANCELLED)
        await record(tx, 5, output_tokens=None)
        await record(tx, 6, run_id="other")
        await tx.calls.start(a_call(7, features=b"7"))
        samples = await tx.calls.length_samples("research", limit=9)
    assert [sample.features for sample in samples] == [b"0"]
