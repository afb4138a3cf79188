"""The garbage collection removes what nothing needs, and nothing else, also while others store."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.environment.collection import Collected, collect, verify
from orchestrator.environment.errors import StateLost
from orchestrator.environment.files import collection_lock
from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.layer_stacks import LayerStacks
from orchestrator.environment.files.manifest import Entry
from orchestrator.environment.merging.apply_journal import locked_journal
from orchestrator.environment.merging.apply_plan import ApplyPlan, Operation
from orchestrator.environment.states.managed_root import ManagedRoot
from orchestrator.environment.states.stored_states import Base, State, States
from orchestrator.environment.trees.live_folder import LiveFolder

BASE = Base("/base", "identity")
SOON = timedelta(minutes=59)
LATER = timedelta(hours=2)


@pytest.fixture
def root(tmp_path: Path) -> ManagedRoot:
    return ManagedRoot(tmp_path)


def stored(root: ManagedRoot, *texts: str) -> State:
    """A state with files of these contents."""
    manifest = {
        text: Entry("file", 0o644, root.blobs.add(text.encode()), len(text)) for text in texts
    }
    return States(root).add(BASE, manifest)


def collected(
    root: ManagedRoot, *keep: State, after: timedelta = LATER, dry_run: bool = False
) -> Collected:
    ids = [state.id for state in keep]
    return collect(root, keep=ids, grace_s=0, now=datetime.now(UTC) + after, dry_run=dry_run)


def counts(done: Collected) -> tuple[int, int, int, int]:
    return done.num_states, done.num_blobs, done.num_layers, done.num_live


def is_whole(root: ManagedRoot, state: State) -> bool:
    try:
        States(root).verify(States(root).get(state.id))
    except StateLost:
        return False
    return True


def test_what_no_kept_state_needs_is_removed_and_shared_contents_stay(root: ManagedRoot) -> None:
    kept, other = stored(root, "shared", "mine"), stored(root, "shared", "other")
    assert counts(collected(root, kept)) == (1, 2, 0, 0)  # "other" and its manifest
    assert is_whole(root, kept)
    assert not is_whole(root, other)
    assert counts(collected(root, kept)) == (0, 0, 0, 0)


def test_a_dry_run_counts_the_same_and_removes_nothing(root: ManagedRoot) -> None:
    state = stored(root, "a", "b")
    foretold = collected(root, dry_run=True)
    assert is_whole(root, state)
    assert foretold.num_bytes > 0
    assert collected(root) == foretold
    assert not is_whole(root, state)


def test_what_is_newer_than_an_hour_stays_whatever_the_grace_and_is_counted(
    root: ManagedRoot,
) -> None:
    state = stored(root, "new")
    done = collected(root, after=SOON)
    assert counts(done) == (0, 0, 0, 0)
    assert done.num_new == 1  # its contents are needed by it
    assert is_whole(root, state)


def test_states_stay_for_the_grace_period(root: ManagedRoot) -> None:
    state = stored(root, "a")
    now = datetime.now(UTC) + timedelta(days=1)
    collect(root, keep=[], grace_s=2 * 86400, now=now)
    assert is_whole(root, state)
    collect(root, keep=[], grace_s=86400 / 2, now=now)
    assert not is_whole(root, state)


def test_a_state_that_an_open_workspace_names_stays(root: ManagedRoot) -> None:
    state = stored(root, "a")
    live = LiveFolder(root)
    live.use_states([state.id])
    assert counts(collected(root)) == (0, 0, 0, 0)
    live.close()
    assert counts(collected(root)) == (1, 2, 0, 0)


def test_contents_of_an_unfinished_apply_stay_until_it_has_ended(
    root: ManagedRoot, tmp_path: Path
) -> None:
    after = Entry("file", 0o644, root.blobs.add(b"after"), 5)
    plan = ApplyPlan("/base", "plan", (Operation("a", None, after),), {})
    with locked_journal(root.path, Path("/base")) as journal:
        journal.write("writing", plan)
    assert counts(collected(root)) == (0, 0, 0, 0)
    with locked_journal(root.path, Path("/base")) as journal:
        journal.clear()
    assert counts(collected(root)) == (0, 1, 0, 0)


def test_layers_of_open_workspaces_stay_and_others_are_built_again_when_needed(
    root: ManagedRoot, tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    states, state = States(root), stored(root, "a")
    stacks = LayerStacks(root.layers, root.blobs, BaseFolder(tmp_path / "base"))
    files = states.files(state)
    live = LiveFolder(root)
    live.use_layers(stacks.stack_of(files, files))
    assert collected(root, state).num_layers == 0
    live.close()
    assert collected(root, state).num_layers == 1
    [layer] = stacks.stack_of(files, files)
    assert (root.layers / layer / "files" / "a").read_text() == "a"


def test_the_folder_of_a_process_that_was_killed_is_removed_whatever_its_modes(
    root: ManagedRoot,
) -> None:
    live = LiveFolder(root)
    (live.path / "upper0" / "closed").mkdir(parents=True)
    (live.path / "upper0" / "closed").chmod(0)
    assert collected(root).num_live == 0
    os.close(live._lock)  # as when its process ends
    assert collected(root).num_live == 1
    assert list(root.live.iterdir()) == []
    assert list(root.trash.iterdir()) == []


def test_unfinished_files_are_removed_an_hour_later(root: ManagedRoot) -> None:
    root.layers.mkdir(parents=True)
    stored(root)
    (root.layers / "key.x.new").mkdir()
    (root.states / "x.new").write_text("{")
    (root.path / "new" / "x").write_text("half")
    left = [root.layers / "key.x.new", root.states / "x.new", root.path / "new" / "x"]
    collected(root, after=SOON)
    assert all(each.exists() for each in left)
    collected(root)
    assert not any(each.exists() for each in left)


def test_what_is_relied_on_again_counts_as_new(
    root: ManagedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection_lock, "_RENEWED_S", 0.0)
    states = States(root)
    state = states.add(BASE, {"a": Entry("file", 0o644, root.blobs.add(b"a"), 1)})
    changed_at = root.blobs.path_of(state.manifest).stat().st_mtime_ns
    time.sleep(0.02)
    now = datetime.now(UTC) + timedelta(hours=1)
    for text in (b"a", b"{}"):
        root.blobs.add(text)
    assert states.add(BASE, states.manifest(state)) == state
    collect(root, keep=[], grace_s=0, now=now)
    assert is_whole(root, state)
    assert root.blobs.path_of(state.manifest).stat().st_mtime_ns == changed_at


def test_a_state_that_was_removed_is_stored_again_although_it_is_in_memory(
    root: ManagedRoot,
) -> None:
    states = States(root)
    state = states.add(BASE, {})
    collected(root)
    with pytest.raises(StateLost):
        states.get(state.id)
    assert states.add(BASE, {}).id == state.id
    assert is_whole(root, state)


def test_a_layer_of_a_former_boot_is_built_again(root: ManagedRoot, tmp_path: Path) -> None:
    """Layers are not synced: a loss of power may leave a part of one under its name."""
    (tmp_path / "base").mkdir()
    states, state = States(root), stored(root, "a")
    stacks = LayerStacks(root.layers, root.blobs, BaseFolder(tmp_path / "base"))
    [layer] = stacks.stack_of(states.files(state), states.files(state))
    (root.layers / layer / "below").write_text("of-another-boot")
    (root.layers / layer / "files" / "a").unlink()
    assert stacks.stack_of(states.files(state), states.files(state)) == (layer,)
    assert (root.layers / layer / "files" / "a").read_text() == "a"


def test_verify_names_what_is_damaged_missing_and_not_named(root: ManagedRoot) -> None:
    whole, damaged, lost = (stored(root, "same", each) for each in ("whole", "damaged", "lost"))
    digest = States(root).manifest(damaged)["damaged"].content
    root.blobs.path_of(digest).chmod(0o644)
    root.blobs.path_of(digest).write_text("Damaged")
    root.blobs.remove(States(root).manifest(lost)["lost"].content)
    found = verify(root, named=[whole.id, damaged.id, "0" * 64])
    assert found.num_states == 3
    assert {error.args[0] for error in found.lost} == {damaged.id, lost.id}
    assert (found.missing, found.unnamed) == (["0" * 64], [lost.id])


@pytest.mark.slow
@pytest.mark.usefixtures("subprocesses")
def test_states_that_are_stored_while_another_process_collects_are_whole(
    root: ManagedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same few states come, go and come again; two seconds stand for the hour."""
    monkeypatch.setattr(collection_lock, "_RENEWED_S", 0.2)
    stored(root)
    collector = os.fork()
    if not collector:
        try:
            while True:
                now = datetime.now(UTC) + timedelta(seconds=collection_lock.NEW_S - 2)
                collect(root, keep=[], grace_s=0, now=now)
        finally:
            os._exit(1)
    try:
        chance, written = random.Random(0), set[tuple[str, int]]()
        until_s = time.monotonic() + 8
        while time.monotonic() < until_s:
            first = int(chance.expovariate(1 / 8))  # some come often, some are removed meanwhile
            state = stored(root, *(f"text {each}" for each in range(first, first + 5)))
            assert is_whole(root, state), state
            written.add((state.id, (root.states / state.id).stat().st_mtime_ns))
        assert len(written) > len({state for state, _ in written}), "some were written again"
    finally:
        os.kill(collector, signal.SIGKILL)
        os.waitpid(collector, 0)


def test_a_collection_waits_for_those_that_keep_it_from_removing(root: ManagedRoot) -> None:
    stored(root, "a")

    async def both() -> list[str]:
        order = list[str]()
        with root.collection_stopped():
            waiting = asyncio.create_task(asyncio.to_thread(collected, root))
            await asyncio.sleep(0.05)
            order.append("released" if not waiting.done() else "too early")
        await waiting
        return order

    assert asyncio.run(both()) == ["released"]
    assert list(root.states.iterdir()) == []
