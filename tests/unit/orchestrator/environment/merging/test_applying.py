"""Applying a state: all of it or nothing, never over what the user changed, and undone exactly."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.environment.errors import (
    ApplyBusy,
    ApplyFailed,
    ApplyUnfinished,
    BaseChanged,
    BaseRefused,
)
from orchestrator.environment.files.base_listing import list_base
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.files.manifest import Entry
from orchestrator.environment.merging.apply_journal import contents_in_use, locked_journal
from orchestrator.environment.merging.apply_plan import ApplyPlan
from orchestrator.environment.merging.applying import Applier
from tests.places import ROOT
from tests.unit.orchestrator.environment.merging.apply_samples import (
    Desk,
    as_ordinary_user,
    snapshot,
)
from tests.unit.orchestrator.environment.merging.merging_samples import (
    FOLDER,
    GONE,
    STORE,
    Tree,
    trees,
)

HERE = "tests.unit.orchestrator.environment.merging.test_applying"
SECOND = 10**9


def file(text: bytes, mode: int = 0o644, mtime_s: int = 1_000_000_000) -> Entry:
    return STORE.file(text, mode, mtime_s * SECOND)


def link(target: str) -> Entry:
    return Entry("link", 0o777, target, 0, 2_000_000_000 * SECOND)


BEFORE: Tree = {
    "kept": file(b"kept"),
    "changed": file(b"before"),
    "deleted": file(b"deleted"),
    "program": file(b"#!/bin/sh\n"),
    "folder": FOLDER,
    "folder/in": file(b"in"),
    "folder/deep": FOLDER,
    "folder/deep/in": file(b"deep"),
    "becomes file": FOLDER,
    "becomes file/in": file(b"in"),
    "becomes folder": file(b"file"),
    "becomes link": file(b"file"),
    "link": link("kept"),
    "two\nlines": FOLDER,
    "two\nlines/\udcff": file(b"odd"),
}
AFTER: Tree = {
    "kept": BEFORE["kept"],
    "changed": file(b"after!", 0o600, 1_100_000_000),
    "program": file(b"#!/bin/sh\n", 0o755),
    "becomes file": file(b"file", mtime_s=1_100_000_001),
    "becomes folder": Entry("folder", 0o750),
    "becomes folder/in": file(b"in"),
    "becomes folder/deep": FOLDER,
    "becomes folder/deep/in": file(b"in"),
    "becomes link": link("kept"),
    "link": link("changed"),
    "two\nlines": FOLDER,
    "two\nlines/\udcff": file(b"ODD"),
    "two\nlines/new": file(b""),
    "pipe": Entry("fifo", 0o600),
}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_what_is_applied_is_the_state_and_what_is_undone_is_the_base(desk: Desk) -> None:
    recorded = desk.put(BEFORE)
    before = snapshot(desk.base)
    applied = desk.applier().apply(desk.plan(BEFORE, AFTER, recorded))
    assert desk.holds(AFTER)
    after = snapshot(desk.base)
    undone = desk.applier().undo(applied)
    assert snapshot(desk.base) == before
    desk.applier().undo(undone)
    assert desk.holds(AFTER)
    assert {path: seen[:2] for path, seen in snapshot(desk.base).items()} == {
        path: seen[:2] for path, seen in after.items()
    }


@settings(deadline=None)
@given(st.data())
def test_any_state_is_applied_and_undone_exactly(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    before = data.draw(trees())
    after = data.draw(trees(near=before))
    desk = Desk(tmp_path_factory.mktemp("desk"))
    recorded = desk.put(before)
    seen = snapshot(desk.base)
    applied = desk.applier().apply(desk.plan(before, after, recorded))
    assert desk.holds(after)
    desk.applier().undo(applied)
    assert snapshot(desk.base) == seen
    assert list_base(desk.base) == recorded


def test_a_plan_says_what_is_done_where_and_what_is_there_now(desk: Desk) -> None:
    plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
    assert plan.paths("mode") == ("program",)
    assert plan.paths("delete") == (
        "becomes file/in", "deleted", "folder", "folder/deep", "folder/deep/in", "folder/in"
    )  # fmt: skip
    assert set(plan.paths("add")) == {
        "becomes folder/deep", "becomes folder/deep/in", "becomes folder/in", "pipe",
        "two\nlines/new",
    }  # fmt: skip
    assert plan.paths("replace") == (
        "becomes file", "becomes folder", "becomes link", "changed", "link", "two\nlines/\udcff"
    )  # fmt: skip
    assert plan.before["pipe"] == GONE
    assert plan.before["link"] == BEFORE["link"]
    assert plan.by_path["changed"].after == AFTER["changed"]
    assert set(plan.folders) == {"", "two\nlines"}
    assert ApplyPlan.from_json(plan.to_json()) == plan
    assert snapshot(desk.base) == snapshot(desk.base)  # nothing was written
    assert desk.holds(BEFORE)


def test_a_state_without_changes_writes_nothing(desk: Desk) -> None:
    plan = desk.plan(BEFORE, BEFORE, desk.put(BEFORE))
    before = snapshot(desk.base)
    assert not plan
    desk.applier().apply(plan)
    assert snapshot(desk.base) == before


def test_a_folder_that_cannot_be_a_base_is_never_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
    monkeypatch.setenv("HOME", str(desk.base))
    before = snapshot(desk.base)
    for write in (
        lambda: desk.applier().apply(plan),
        lambda: desk.plan(BEFORE, AFTER, list_base(desk.base)),
        lambda: desk.applier().undo_unfinished(desk.base),
        lambda: Applier(desk.root, desk.blobs, desk.base / "runs.db").apply(plan),
    ):
        with pytest.raises(BaseRefused):
            write()
    assert snapshot(desk.base) == before


def test_a_deep_tree_is_applied_and_undone(desk: Desk) -> None:
    deep = "/".join(["d"] * 120)
    folders = {"/".join(["d"] * depth): FOLDER for depth in range(1, 121)}
    before, after = folders | {f"{deep}/f": file(b"1")}, folders | {f"{deep}/f": file(b"2")}
    applied = desk.changed(before, after)
    assert desk.holds(after)
    desk.applier().undo(applied)
    assert desk.holds(before)
    desk.changed(before, {})
    assert desk.holds({})


def test_what_is_replaced_is_in_the_store(desk: Desk) -> None:
    before = desk.changed(BEFORE, AFTER).before
    assert desk.blobs.read(before["changed"].content) == b"before"
    assert desk.blobs.read(before["folder/deep/in"].content) == b"deep"
    assert (before["folder/deep"].kind, before["two\nlines/new"]) == ("folder", GONE)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("changed", lambda place: place.write_text("by its user")),
        ("changed", lambda place: place.chmod(0o600)),
        ("changed", lambda place: place.unlink()),
        ("deleted", lambda place: os.utime(place, ns=(5, 5))),
        ("folder/new", lambda place: place.write_text("by its user")),
        ("folder/deep/in", lambda place: place.write_text("by its user")),
        ("becomes file/new", lambda place: place.mkdir()),
        ("pipe", lambda place: place.write_text("by its user")),
        ("link", lambda place: place.unlink() or place.symlink_to("elsewhere")),
        ("two\nlines", lambda place: place.rename(place.with_name("elsewhere"))),
    ],
)
def test_what_the_user_changed_meanwhile_is_never_replaced(desk: Desk, path: str, change) -> None:  # type: ignore[no-untyped-def]
    """Neither if it changed before the plan was made, nor after."""
    recorded = desk.put(BEFORE)
    plan = desk.plan(BEFORE, AFTER, recorded)
    change(desk.base / path)
    changed = snapshot(desk.base)
    with pytest.raises(BaseChanged) as raised:
        desk.applier().apply(plan)
    assert path in raised.value.paths
    assert snapshot(desk.base) == changed
    with pytest.raises(BaseChanged) as raised:
        desk.plan(BEFORE, AFTER, recorded)
    assert path in raised.value.paths
    assert snapshot(desk.base) == changed
    assert desk.applier().undo_unfinished(desk.base) == []


def test_a_change_elsewhere_is_listed_and_stays(desk: Desk) -> None:
    recorded = desk.put(BEFORE)
    (desk.base / "kept").write_text("by its user")
    (desk.base / "two\nlines/mine").write_text("by its user")
    plan = desk.plan(BEFORE, AFTER, recorded)
    assert plan.changed_elsewhere == ("kept", "two\nlines/mine")
    desk.applier().apply(plan)
    assert (desk.base / "kept").read_text() == "by its user"
    assert (desk.base / "two\nlines/mine").read_text() == "by its user"
    assert (desk.base / "changed").read_text() == "after!"


def test_the_same_change_by_the_user_is_no_conflict(desk: Desk) -> None:
    recorded = desk.put({"f": file(b"1"), "g": file(b"1")})
    (desk.base / "f").write_bytes(b"2")
    (desk.base / "g").unlink()
    plan = desk.plan({"f": file(b"1"), "g": file(b"1")}, {"f": file(b"2")}, recorded)
    assert not plan
    assert plan.changed_elsewhere == ("f", "g")


@pytest.mark.parametrize("path", ["changed", "link", "two\nlines/new", "folder/deep/in"])
def test_what_the_user_changes_after_the_last_check_is_kept_and_all_else_put_back(
    desk: Desk, path: str
) -> None:
    def change(what: str, at: str) -> None:
        if at == path and what in ("write", "remove"):
            (desk.base / path).unlink(missing_ok=True)
            (desk.base / path).write_text("by its user")

    plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
    with pytest.raises(BaseChanged) as raised:
        desk.applier(change).apply(plan)
    assert raised.value.paths == (path,)
    assert (desk.base / path).read_text() == "by its user"
    found = desk.scanned()
    assert found.keys() == BEFORE.keys() | {path}
    assert all(found[each].content == BEFORE[each].content for each in BEFORE if each != path)


def test_an_undo_does_not_replace_what_was_changed_since(desk: Desk) -> None:
    applied = desk.changed(BEFORE, AFTER)
    (desk.base / "changed").write_text("by its user")
    (desk.base / "becomes folder/mine").write_text("by its user")
    changed = snapshot(desk.base)
    with pytest.raises(BaseChanged) as raised:
        desk.applier().undo(applied)
    assert raised.value.paths == ("becomes folder/mine", "changed")
    assert snapshot(desk.base) == changed


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(desk: Desk) -> None:
    """Not even if it is swapped after the last check."""
    before: Tree = {"d": FOLDER, "d/f": file(b"before"), "x": file(b"x")}
    after: Tree = {"d": FOLDER, "d/f": file(b"after"), "d/g": file(b"new"), "x": file(b"y")}
    elsewhere = desk.folder / "elsewhere"

    def swap(what: str, path: str) -> None:
        if (what, path) == ("write", "d/f") and not (desk.base / "d").is_symlink():
            (desk.base / "d").rename(elsewhere)
            (desk.base / "d").symlink_to(elsewhere)
        elif elsewhere.exists():
            written.append((elsewhere / "f").read_text())

    written: list[str] = []
    plan = desk.plan(before, after, desk.put(before))
    with pytest.raises((BaseChanged, ApplyFailed)):
        desk.applier(swap).apply(plan)
    assert set(written) == {"before"}  # it was not even written and put back
    assert (elsewhere / "f").read_text() == "before"
    assert not (elsewhere / "g").exists()
    assert (desk.base / "x").read_text() == "x"


def test_changes_below_git_are_left_out_unless_asked_for(desk: Desk) -> None:
    git: Tree = {".git": FOLDER, ".git/HEAD": file(b"main"), "f": file(b"1")}
    after: Tree = {".git": FOLDER, ".git/HEAD": file(b"other"), "f": file(b"2")}
    recorded = desk.put(git)
    plan = desk.plan(git, after, recorded)
    assert plan.left_out == (".git/HEAD",)
    desk.applier().apply(plan)
    assert (desk.base / ".git/HEAD").read_text() == "main"
    assert (desk.base / "f").read_text() == "2"
    asked = desk.plan(git, after, desk.put(git), git=True)
    assert asked.left_out == ()
    desk.applier().apply(asked)
    assert desk.holds(after)


def test_a_deleted_folder_keeps_the_git_folder_in_it(desk: Desk) -> None:
    before: Tree = {
        "sub": FOLDER, "sub/f": file(b"1"), "sub/deep": FOLDER, "sub/deep/.git": FOLDER,
        "sub/deep/.git/HEAD": file(b"main"), "sub/deep/g": file(b"1"),
        "other": FOLDER, "other/.git": file(b"gitdir: x"), "other/f": file(b"1"),
    }  # fmt: skip
    plan = desk.plan(before, {"other": file(b"now a file")}, desk.put(before))
    assert plan.left_out == ("other", "other/.git", "sub/deep/.git")
    desk.applier().apply(plan)
    assert desk.holds(
        {path: before[path] for path in before if path not in ("sub/f", "sub/deep/g")}
    )


def test_a_socket_in_a_deleted_folder_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.put(BEFORE)
    monkeypatch.chdir(desk.base)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("folder/socket")
    with pytest.raises(BaseRefused, match="folder/socket"):
        desk.plan(BEFORE, AFTER, list_base(desk.base))


def test_a_content_that_is_not_stored_is_named_before_anything_is_written(desk: Desk) -> None:
    plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
    before = snapshot(desk.base)
    desk.blobs.remove(AFTER["changed"].content)
    with pytest.raises(ApplyFailed, match="'changed': its content is not stored"):
        desk.applier().apply(plan)
    assert snapshot(desk.base) == before


def test_a_damaged_content_is_never_written(desk: Desk) -> None:
    plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
    before = snapshot(desk.base)
    blob = desk.blobs.path_of(AFTER["changed"].content)
    blob.chmod(0o600)
    blob.write_bytes(b"AFTER!")
    with pytest.raises(ApplyFailed, match="damaged"):
        desk.applier().apply(plan)
    assert snapshot(desk.base) == before


def test_two_applies_at_once_are_refused(desk: Desk) -> None:
    plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
    with locked_journal(desk.root, desk.base):
        for begin in (
            lambda: desk.applier().apply(plan),
            lambda: desk.plan(BEFORE, AFTER, list_base(desk.base)),
            lambda: desk.applier().undo_unfinished(desk.base),
        ):
            with pytest.raises(ApplyBusy, match="in progress"):
                begin()
    desk.applier().apply(plan)
    assert desk.holds(AFTER)


def steps_of(desk: Desk) -> list[tuple[str, str]]:
    """The steps of an apply of AFTER onto BEFORE."""
    steps: list[tuple[str, str]] = []
    plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
    desk.applier(lambda *step: steps.append(step)).apply(plan)
    return steps


@pytest.mark.slow
def test_an_error_at_any_step_puts_everything_back(desk: Desk) -> None:
    class Stop(Exception):
        pass

    reached: set[str] = set()
    for number in itertools.count():
        left, stopped = iter(range(number)), list[str]()

        def stop(
            what: str, _: str, left: Iterator[int] = left, stopped: list[str] = stopped
        ) -> None:
            if next(left, None) is None and not stopped:
                stopped.append(what)
                raise Stop

        plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
        before = snapshot(desk.base)
        try:
            desk.applier(stop).apply(plan)
        except Stop:
            assert snapshot(desk.base) == before
            assert desk.applier().undo_unfinished(desk.base) == []
            reached |= {*stopped}
        else:
            break
    assert reached == {"copy", "prepare", "remove", "make folder", "write", "set mode", "end"}
    assert desk.holds(AFTER)


def killed(desk: Desk, action: Callable[[Applier], object], at: int) -> bool:
    """Whether a process is killed before this step of an apply; else it completes."""
    child = os.fork()
    if child == 0:
        left = iter(range(at))

        def kill(*_: str) -> None:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        action(desk.applier(kill))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("is_killed_again", [False, True])
@pytest.mark.parametrize("ending", ["complete", "undo"])
def test_what_a_process_killed_at_any_step_leaves_is_completed_or_undone(
    desk: Desk, ending: str, is_killed_again: bool
) -> None:
    for number in itertools.count():
        recorded = desk.put(BEFORE)
        before = snapshot(desk.base)
        plan = desk.plan(BEFORE, AFTER, recorded)
        if not killed(desk, lambda applier, plan=plan: applier.apply(plan), number):
            break
        found = {path for path in desk.scanned() if ".orchestrate-" not in path}
        assert found <= BEFORE.keys() | AFTER.keys()
        assert set(BEFORE) & set(AFTER) - {"becomes file", "becomes folder"} <= found
        assert AFTER["changed"].content in contents_in_use(desk.root)
        if is_killed_again:  # while the other one of the two is done
            if ending == "complete":
                killed(desk, lambda applier: applier.undo_unfinished(desk.base), number // 2)
            elif not killed(desk, lambda applier, plan=plan: applier.apply(plan), number // 2):
                assert desk.holds(AFTER)
                continue
        if ending == "undo":
            assert desk.applier().undo_unfinished(desk.base) == []
        else:
            applied = desk.applier().apply(desk.plan(BEFORE, AFTER, recorded))
            assert desk.holds(AFTER)
            desk.applier().undo(applied)
        assert snapshot(desk.base) == before
    assert number > 30
    assert desk.holds(AFTER)


def unfinished(desk: Desk) -> ApplyPlan:
    """An apply that was killed after it had written a part."""
    steps_of(desk)  # the copies are stored then, so that an apply has the same steps again
    steps = steps_of(desk)
    plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
    at = steps.index(("write", "link"))
    assert killed(desk, lambda applier: applier.apply(plan), at)
    return plan


@pytest.mark.usefixtures("subprocesses")
def test_another_state_is_not_applied_before_an_interrupted_one_is_completed(desk: Desk) -> None:
    plan = unfinished(desk)
    with pytest.raises(ApplyUnfinished, match="apply the same state again"):
        desk.plan(BEFORE, {"kept": BEFORE["kept"]}, list_base(desk.base))
    with pytest.raises(ApplyUnfinished):
        desk.applier().apply(plan.inverse())
    assert contents_in_use(desk.root) >= {AFTER["changed"].content, BEFORE["changed"].content}
    desk.applier().apply(plan)
    assert desk.holds(AFTER)
    assert contents_in_use(desk.root) == set()
    assert desk.plan(AFTER, BEFORE, list_base(desk.base))


@pytest.mark.usefixtures("subprocesses")
def test_what_is_changed_after_an_interruption_is_not_replaced(desk: Desk) -> None:
    plan = unfinished(desk)
    for path in ("changed", "link"):  # one was written before the interruption, one was not
        (desk.base / path).unlink()
        (desk.base / path).write_text("by its user")
    with pytest.raises(ApplyFailed, match="'changed': somebody has changed it") as raised:
        desk.applier().apply(plan)
    assert not raised.value.is_undone
    assert desk.applier().undo_unfinished(desk.base) == ["changed", "link"]
    assert (desk.base / "changed").read_text() == (desk.base / "link").read_text() == "by its user"
    others = {path for path in BEFORE if path not in ("changed", "link")}
    found = desk.scanned()
    assert {path: found[path].content for path in others} == {
        path: BEFORE[path].content for path in others
    }
    assert found.keys() == BEFORE.keys()


@pytest.mark.usefixtures("subprocesses")
def test_what_is_moved_away_after_an_interruption_is_written_again(desk: Desk) -> None:
    plan = unfinished(desk)
    (desk.base / "changed").rename(desk.folder / "aside")
    desk.applier().apply(plan)
    assert desk.holds(AFTER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_leaves_files_to_their_owner(desk: Desk) -> None:
    """As in a container in which all runs as root."""
    recorded = desk.put(BEFORE)
    for place in (desk.base, *desk.base.rglob("*")):
        os.chown(place, 1234, 1234, follow_symlinks=False)
    os.chown(desk.base / "changed", 1235, 1236)
    desk.applier().apply(desk.plan(BEFORE, AFTER, recorded))
    assert desk.holds(AFTER)
    for place in (desk.base, *desk.base.rglob("*")):
        status = place.lstat()
        expected = (1235, 1236) if place.name == "changed" else (1234, 1234)
        assert (status.st_uid, status.st_gid) == expected


def test_an_apply_that_survives_a_loss_of_power_writes_the_same(desk: Desk) -> None:
    plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
    Applier(desk.root, desk.blobs, None, durable=True).apply(plan)
    assert desk.holds(AFTER)


LOCKED_BEFORE: Tree = {
    "secret": file(b"secret", 0o000),
    "read only": Entry("folder", 0o555),
    "read only/f": file(b"1", 0o444),
    "read only/g": file(b"1", 0o000),
    "removed": Entry("folder", 0o555),
    "removed/deep": Entry("folder", 0o500),
    "removed/deep/f": file(b"1", 0o000),
}
LOCKED_AFTER: Tree = {
    "secret": file(b"changed", 0o000),
    "read only": Entry("folder", 0o555),
    "read only/f": file(b"2", 0o444),
    "read only/g": file(b"1", 0o400),
    "shut": Entry("folder", 0o000),
    "shut/f": file(b"hidden", 0o000),
    "shut/deep": Entry("folder", 0o000),
}


def apply_and_undo_locked(folder: Path) -> None:
    desk = Desk(folder)
    recorded = desk.put(LOCKED_BEFORE)
    before = snapshot(desk.base)
    applied = desk.applier().apply(desk.plan(LOCKED_BEFORE, LOCKED_AFTER, recorded))
    assert (desk.base / "shut").stat().st_mode & 0o7777 == 0
    desk.applier().undo(applied)
    assert snapshot(desk.base) == before
    desk.applier().apply(desk.plan(LOCKED_BEFORE, LOCKED_AFTER, recorded))


@pytest.mark.usefixtures("subprocesses")
def test_an_ordinary_user_applies_files_and_folders_without_permissions(desk: Desk) -> None:
    as_ordinary_user(f"{HERE}:apply_and_undo_locked", desk.folder)
    if os.geteuid() == 0:
        assert desk.holds(LOCKED_AFTER)
    remove_folder(desk.base)


def stop_everywhere_locked(folder: Path) -> None:
    desk = Desk(folder)
    for number in itertools.count():
        recorded = desk.put(LOCKED_BEFORE)
        before = snapshot(desk.base)
        plan = desk.plan(LOCKED_BEFORE, LOCKED_AFTER, recorded)
        if not killed(desk, lambda applier, plan=plan: applier.apply(plan), number):
            break
        if number % 2:
            desk.applier().undo_unfinished(desk.base)
        else:
            applied = desk.applier().apply(desk.plan(LOCKED_BEFORE, LOCKED_AFTER, recorded))
            desk.applier().undo(applied)
        assert snapshot(desk.base) == before, number
    assert number > 20
    remove_folder(desk.base)


@pytest.mark.slow
@pytest.mark.usefixtures("subprocesses")
def test_an_ordinary_user_completes_and_undoes_what_was_killed(desk: Desk) -> None:
    as_ordinary_user(f"{HERE}:stop_everywhere_locked", desk.folder)


def deny_in_the_middle(folder: Path) -> None:
    desk = Desk(folder)
    plan = desk.plan(BEFORE, AFTER, desk.put(BEFORE))
    before = snapshot(desk.base)

    def deny(what: str, path: str) -> None:
        if (what, path) == ("write", "two\nlines/new"):
            (desk.base / "two\nlines").chmod(0o500)

    with pytest.raises(ApplyFailed) as raised:
        desk.applier(deny).apply(plan)
    assert raised.value.args[1:3] == ("two\nlines/new", "Permission denied")
    assert raised.value.is_undone
    assert snapshot(desk.base) == before


@pytest.mark.usefixtures("subprocesses")
def test_a_permission_denied_in_the_middle_is_named_and_all_is_put_back(desk: Desk) -> None:
    as_ordinary_user(f"{HERE}:deny_in_the_middle", desk.folder)


def refuse_unreadable(folder: Path) -> None:
    desk = Desk(folder)
    tree: Tree = {"d": Entry("folder", 0o000), "x": file(b"x")}
    recorded = desk.put(tree)
    assert recorded.unreadable == ("d",)
    with pytest.raises(BaseRefused, match="'d' would be replaced, but it cannot be read"):
        desk.plan(tree, {"x": file(b"x")}, recorded)
    desk.applier().apply(desk.plan(tree, tree | {"x": file(b"y")}, recorded))
    assert (desk.base / "x").read_text() == "y"
    remove_folder(desk.base)


@pytest.mark.usefixtures("subprocesses")
def test_a_folder_that_cannot_be_read_is_not_deleted(desk: Desk) -> None:
    as_ordinary_user(f"{HERE}:refuse_unreadable", desk.folder)


def fill_the_disk(folder: Path) -> None:
    desk = Desk(folder)
    desk.base.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=80k", "small", str(desk.base)]
    if subprocess.run(mount, check=False).returncode:
        sys.exit(77)
    (desk.base / "f").write_bytes(b"1")
    before: Tree = {"f": STORE.file(b"1")}
    after: Tree = {f"f{number}": STORE.file(b"x" * 30_000) for number in range(3)} | {
        "f": STORE.file(b"2")
    }
    seen = snapshot(desk.base)
    plan = desk.plan(before, after, list_base(desk.base))
    with pytest.raises(ApplyFailed) as raised:
        desk.applier().apply(plan)
    assert raised.value.args[1:] == ("f2", "No space left on device", True)
    assert snapshot(desk.base) == seen


@pytest.mark.usefixtures("subprocesses")
def test_a_full_disk_is_named_and_all_is_put_back(desk: Desk) -> None:
    code = f"import sys, pathlib; from {HERE} import *; fill_the_disk(pathlib.Path(sys.argv[1]))"
    program = [sys.executable, "-c", code, str(desk.folder)]
    command = ["unshare", "--user", "--map-root-user", "--mount", *program]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare(1) here")
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this system refuses mounts")
    assert done.returncode == 0, done.stderr
