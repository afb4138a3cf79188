"""States, edges and checkpoints are read as they were written, and states in use are kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from store.errors import AlreadyRecorded, RunNotFound, StateNotFound
from store.records import Effects, Status, StepOutcome
from store.session import Store, open_store
from store.state_records import (
    MAX_CHANGED,
    CountDifference,
    EdgeKind,
    Revertibility,
    StateChange,
)
from tests.unit.store.retention_samples import NEW, NOW, OLD, remove
from tests.unit.store.state_samples import (
    a_checkpoint,
    a_state,
    act,
    an_action,
    an_edge,
    state_id,
)
from tests.unit.store.store_places import connected
from tests.unit.store.store_samples import NOON, a_run, a_step

HOUR = timedelta(hours=1)
LATER = NOON + HOUR


async def uses(store: Store) -> dict[str, int]:
    """Letter of each state -> its counter, which is right."""
    async with store.reading() as tx:
        assert await tx.states.recount() == []
        return {each[0]: (await tx.states.get(each)).uses for each in await tx.states.all_ids()}


async def test_a_state_is_read_as_it_was_added(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.states.add(a_state())
    async with store.reading() as tx:
        assert await tx.states.get(state_id("a")) == a_state(unused_since=NOON)
        assert list(await tx.states.all_ids()) == [state_id("a")]


async def test_a_state_that_is_added_again_is_not_changed(store: Store) -> None:
    for created_at in (NOON, LATER):
        async with store.transaction() as tx:
            await tx.states.add(a_state(created_at=created_at, num_entries=7))
            await tx.states.add(a_state(created_at=LATER, num_entries=9))
    async with store.reading() as tx:
        found = await tx.states.get(state_id("a"))
    assert (found.created_at, found.num_entries) == (NOON, 7)


async def test_an_unknown_state_is_named(store: Store) -> None:
    async with store.reading() as tx:
        with pytest.raises(StateNotFound, match="zzz"):
            await tx.states.get("zzz")


async def test_a_state_can_be_read_in_the_transaction_that_adds_it(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.states.add(a_state())
        assert (await tx.states.get(state_id("a"))).uses == 0
        assert len(await tx.states.all_ids()) == 1


async def test_edges_and_checkpoints_are_read_as_they_were_recorded(store: Store) -> None:
    edge = an_edge(
        attribute=Revertibility.NOT_REVERTIBLE,
        seconds=0.25,
        changed=("src/grüße.py", "a\nb", "not utf-8: \udcff"),
        num_changed=5_000,
        num_added=3,
        num_removed=1,
        num_bytes=2**40,
        reads=("pyproject.toml",),
        note="wrote outside",
    )
    unread = an_edge(number=1, kind=EdgeKind.MERGE, reads=())
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.record(
            StateChange(
                states=[a_state("a"), a_state("b", created_at=LATER)],
                edges=[edge, unread, an_edge(number=2)],
                checkpoint=a_checkpoint(),
            )
        )
    async with store.reading() as tx:
        assert list(await tx.states.edges_of_run("run-1")) == [edge, unread, an_edge(number=2)]
        assert list(await tx.states.checkpoints_of_run("run-1")) == [a_checkpoint()]
        states = await tx.states.of_run("run-1")
        assert [(state.id, state.uses) for state in states] == [
            (state_id("a"), 3),
            (state_id("b"), 4),
        ]
        assert not await tx.states.edges_of_run("unknown")
        assert not await tx.states.of_run("unknown")


async def test_edges_come_in_the_order_in_which_their_steps_ended(store: Store) -> None:
    ends = {"z": (1.0, 0), "b": (2.0, 1), "a": (2.0, 2)}
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.add(a_state())
        for path, (at_s, number) in sorted(ends.items()):
            await tx.journal.start(a_step(path))
            outcome = StepOutcome(Status.COMPLETED, at_s, outcome_number=number)
            await tx.journal.finish("run-1", path, outcome)
            await tx.states.add_edges(
                [an_edge("a", "a", path=path, number=number) for number in (1, 0)]
            )
        edges = await tx.states.edges_of_run("run-1")
    assert [edge.path for edge in edges] == ["z", "z", "b", "b", "a", "a"]
    assert [edge.number for edge in edges] == [0, 1] * 3


async def test_steps_keep_their_workspace_and_states(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.add(a_state("a"))
        await act(tx, "a", "b")
        step = await tx.journal.get("run-1", "edit")
    assert (step.workspace, step.state_before, step.state_after) == (
        "ws",
        state_id("a"),
        state_id("b"),
    )


async def test_each_column_that_names_a_state_counts(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.add(a_state("a"))
        await act(tx, "a", "b")
    assert await uses(store) == {"a": 2, "b": 3}  # step and edge; step, edge and checkpoint
    async with store.reading() as tx:
        assert (await tx.states.get(state_id("a"))).unused_since is None


@pytest.mark.parametrize("where", ["before", "after", "edge", "checkpoint"])
async def test_a_row_that_names_an_unknown_state_is_not_written(store: Store, where: str) -> None:
    async def write() -> None:
        async with store.transaction() as tx:
            match where:
                case "before":
                    await tx.journal.start(an_action("x"))
                case "after":
                    await tx.journal.start(a_step("edit"))
                    outcome = StepOutcome(Status.COMPLETED, 1.0, state_after=state_id("x"))
                    await tx.journal.finish("run-1", "edit", outcome)
                case "edge":
                    await tx.states.add_edges([an_edge("a", "x")])
                case "checkpoint":
                    await tx.states.add_checkpoint(a_checkpoint("x"))

    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.add(a_state("a"))
    with pytest.raises(StateNotFound, match=state_id("x")):
        await write()
    async with store.reading() as tx:
        assert not await tx.journal.of_run("run-1")
        assert not await tx.states.edges_of_run("run-1")
        assert not await tx.states.checkpoints_of_run("run-1")
    assert await uses(store) == {"a": 0}


async def test_edges_and_checkpoints_of_an_unknown_run_are_refused(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.states.add(a_state("a"))
        with pytest.raises(RunNotFound):
            await tx.states.add_edges([an_edge("a", "a")])
        with pytest.raises(RunNotFound):
            await tx.states.add_checkpoint(a_checkpoint("a"))
    assert await uses(store) == {"a": 0}


async def test_an_edge_and_a_checkpoint_are_never_overwritten(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.add(a_state("a"))
        await tx.states.add_edges([an_edge("a", "a")])
        await tx.states.add_checkpoint(a_checkpoint("a"))
        with pytest.raises(AlreadyRecorded, match="edge 0 of step edit"):
            await tx.states.add_edges([an_edge("a", "b")])
        with pytest.raises(AlreadyRecorded, match="checkpoint of step edit"):
            await tx.states.add_checkpoint(a_checkpoint("b"))
    assert await uses(store) == {"a": 3}


async def test_more_changed_paths_than_are_kept_are_a_bug(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(AssertionError):
            await tx.states.add_edges([an_edge(changed=["x"] * (MAX_CHANGED + 1))])


async def test_what_a_step_did_is_forgotten_when_it_is_started_again(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.add(a_state("a"))
        await act(tx, "a", "b")
    async with store.transaction() as tx:
        assert await tx.journal.start_again(an_action("a"), at=LATER)
        assert not await tx.states.edges_of_run("run-1")
        assert not await tx.states.checkpoints_of_run("run-1")
    assert await uses(store) == {"a": 1, "b": 0}
    async with store.transaction() as tx:
        assert (await tx.states.get(state_id("b"))).unused_since == LATER
        outcome = StepOutcome(Status.COMPLETED, 2.0, state_after=state_id("b"))
        await tx.journal.finish("run-1", "edit", outcome)
        await tx.states.add_edges([an_edge("a", "b")])
    assert await uses(store) == {"a": 2, "b": 2}
    async with store.reading() as tx:
        assert (await tx.states.get(state_id("b"))).unused_since is None


async def test_an_attempt_that_is_not_recorded_changes_no_counter(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.add(a_state("a"))
        await act(tx, "a", "b")
        again = an_action("b")
        assert not await tx.journal.start_again(again, at=LATER, unless=Status.COMPLETED)
    assert await uses(store) == {"a": 2, "b": 3}


async def test_forgotten_steps_release_their_states(store: Store) -> None:
    odd = "odd \x00 path"  # stored with another character
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.add(a_state("a"))
        await act(tx, "a", "b", path=odd)
        await act(tx, "b", "c", path="kept")
    async with store.transaction() as tx:
        await tx.journal.forget("run-1", [odd], at=LATER)
    assert await uses(store) == {"a": 0, "b": 2, "c": 3}
    async with store.reading() as tx:
        assert [edge.path for edge in await tx.states.edges_of_run("run-1")] == ["kept"]
        assert [step.path for step in await tx.journal.of_run("run-1")] == ["kept"]
        assert [state.id for state in await tx.states.unused(LATER + HOUR)] == [state_id("a")]
        assert not await tx.states.unused(LATER)


async def test_an_effect_with_an_unknown_outcome_keeps_its_states_when_it_is_forgotten(
    store: Store,
) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.add(a_state("a"))
        effect = an_action("a", "send", effects=Effects.EXTERNAL)
        await tx.journal.start(effect)
        outcome = StepOutcome(Status.CANCELLED, 1.0, state_after=state_id("b"))
        await tx.journal.finish("run-1", "send", outcome)
        await tx.states.add(a_state("b"))
        await tx.states.add_edges([an_edge(path="send", attribute=Revertibility.EXTERNAL)])
        await tx.states.add_checkpoint(a_checkpoint(path="send"))
        await tx.journal.forget("run-1", ["send"], at=LATER)
        [step] = await tx.journal.of_run("run-1")
        [edge] = await tx.states.edges_of_run("run-1")
        [checkpoint] = await tx.states.checkpoints_of_run("run-1")
    assert step.path.startswith("send[gone:")
    assert edge.path == checkpoint.path == step.path
    assert await uses(store) == {"a": 2, "b": 3}


async def test_removed_runs_release_their_states_and_leave_those_of_others(store: Store) -> None:
    async with store.transaction() as tx:
        for run_id, ended in (("old", OLD), ("older", OLD), ("new", NEW)):
            await tx.runs.add(a_run(run_id, status=Status.COMPLETED, finished_at=ended))
        await tx.states.add(a_state("a"))
        await act(tx, "a", "b", run_id="old")
        await act(tx, "b", "c", run_id="older")
        await act(tx, "a", "c", run_id="new")
    assert (await remove(store, dry_run=True)).num_runs == 2
    assert await uses(store) == {"a": 4, "b": 5, "c": 6}
    assert (await remove(store)).num_runs == 2
    assert await uses(store) == {"a": 2, "b": 0, "c": 3}
    async with store.reading() as tx:
        [unused] = await tx.states.unused(NOW + HOUR)
        assert (unused.id, unused.unused_since) == (state_id("b"), NOW)
        assert not await tx.states.edges_of_run("old")


async def test_only_states_that_no_row_names_are_removed(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        for letter in "ax":
            await tx.states.add(a_state(letter))
        await act(tx, "a", "b")
        ids = [*map(state_id, "abx"), "unknown", *(f"more-{number}" for number in range(1_200))]
        assert list(await tx.states.remove(ids)) == [state_id("x")]
        assert list(await tx.states.remove([])) == []
    assert await uses(store) == {"a": 2, "b": 3}


async def test_a_state_in_use_is_kept_also_if_its_counter_is_wrong(store_url: str) -> None:
    async with await open_store(store_url) as store:
        async with store.transaction() as tx:
            await tx.runs.add(a_run())
            await tx.states.add(a_state("a"))
            await act(tx, "a", "b")
        with connected(store_url) as connection:
            connection.exec_driver_sql("UPDATE states SET uses = 0")
        async with store.transaction() as tx:
            assert list(await tx.states.remove([state_id("a"), state_id("b")])) == []


async def test_a_recount_finds_wrong_counters_and_lost_states_and_corrects_the_counters(
    store_url: str,
) -> None:
    async with await open_store(store_url) as store:
        async with store.transaction() as tx:
            await tx.runs.add(a_run())
            for letter in "axy":
                await tx.states.add(a_state(letter))
            await act(tx, "a", "b")
        with connected(store_url) as connection:
            connection.exec_driver_sql("UPDATE states SET uses = uses + 5, unused_since = NULL")
            connection.exec_driver_sql(f"DELETE FROM states WHERE id = '{state_id('b')}'")
            connection.exec_driver_sql(f"UPDATE states SET uses = 0 WHERE id = '{state_id('y')}'")
        lost = CountDifference(state_id("b"), None, 3)
        wrong = [CountDifference(state_id("a"), 7, 2), lost, CountDifference(state_id("x"), 5, 0)]
        async with store.reading() as tx:
            assert await tx.states.recount(fix=False) == wrong
        async with store.transaction() as tx:
            assert await tx.states.recount(fix=True, at=LATER) == wrong
        async with store.reading() as tx:
            assert await tx.states.recount() == [lost]
            assert (await tx.states.get(state_id("a"))).unused_since is None
            assert (await tx.states.get(state_id("x"))).unused_since == LATER


async def test_a_transaction_that_is_rolled_back_changes_no_counter(store: Store) -> None:
    async def fail() -> None:
        async with store.transaction() as tx:
            await act(tx, "a", "b")
            await tx.states.of_run("run-1")  # writes the counters
            raise ZeroDivisionError

    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.states.add(a_state("a"))
    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await uses(store) == {"a": 0}


async def test_transactions_that_use_the_same_states_in_other_orders_do_not_deadlock(
    store_url: str,
) -> None:
    """Two stores stand for two processes; each state is new in one transaction of each."""
    letters = "abcdef"

    async def work(store: Store, run_id: str, order: str) -> None:
        for turn in range(8):
            async with store.transaction() as tx:
                for number, letter in enumerate(order):
                    await tx.states.add(a_state(letter))
                    await act(tx, letter, letter, run_id=run_id, path=f"{turn} {number}")
                    await asyncio.sleep(0)

    async with await open_store(store_url) as store, await open_store(store_url) as other:
        for each in ("one", "two"):
            async with store.transaction() as tx:
                await tx.runs.add(a_run(each))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work(store, "one", letters))
            tasks.create_task(work(other, "two", letters[::-1]))
        assert await uses(store) == dict.fromkeys(letters, 2 * 8 * 5)


async def test_a_state_that_is_added_again_cannot_be_removed_before_it_is_used(
    store_url: str,
) -> None:
    """Two stores stand for two processes; the second one collects what is unused."""
    async with await open_store(store_url) as store, await open_store(store_url) as other:
        async with store.transaction() as tx:
            await tx.runs.add(a_run())
            await tx.states.add(a_state("a"))

        async def collect() -> list[str]:
            async with other.transaction() as tx:
                return list(await tx.states.remove([state_id("a")]))

        async with store.transaction() as tx:
            await tx.states.add(a_state("a"))
            await tx.settle()
            removal = asyncio.create_task(collect())
            await asyncio.sleep(0.2)
            await act(tx, "a", "a")
        assert await removal == []
        assert await uses(store) == {"a": 5}


async def test_a_row_without_states_writes_no_counter(store: Store) -> None:
    """The usual step, of a run without workspaces, costs no statement more."""
    executed: list[Any] = []
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        connection = tx.states._uses._connection
        execute = connection.execute

        async def counted(*arguments: Any) -> Any:
            executed.append(arguments)
            return await execute(*arguments)

        tx.states._uses._connection = replace_execute(connection, counted)
        await tx.journal.start(a_step())
        await tx.journal.finish("run-1", "plan", StepOutcome(Status.COMPLETED, 1.0))
        await tx.settle()
    assert executed == []


def replace_execute(connection: Any, execute: Any) -> Any:
    """The connection with another `execute`."""

    class Counted:
        dialect = connection.dialect

    counted: Any = Counted()
    counted.execute = execute
    return counted


async def test_unused_states_come_in_the_order_in_which_they_came_out_of_use(
    store: Store,
) -> None:
    async with store.transaction() as tx:
        for letter, hours in (("c", 1), ("a", 2), ("b", 2)):
            await tx.states.add(a_state(letter, created_at=NOON + hours * HOUR))
        unused = await tx.states.unused(NOON + 3 * HOUR)
        assert [state.id[0] for state in unused] == ["c", "a", "b"]
        assert unused[0] == replace(a_state("c", created_at=NOON + HOUR), unused_since=NOON + HOUR)
        assert [state.id[0] for state in await tx.states.unused(NOON + 2 * HOUR)] == ["c"]
