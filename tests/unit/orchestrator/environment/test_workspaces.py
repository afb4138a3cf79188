"""Workspaces in runs: actions are transactions, states are recorded, effects travel with them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator import DeadlineExceeded, flow, gather, tool, within
from orchestrator.environment.beginning import workspace
from orchestrator.environment.completed import CommandFailed, Completed
from orchestrator.environment.environments import Environments
from orchestrator.environment.errors import (
    BaseChanged,
    BaseRefused,
    MergeConflict,
    NotRevertible,
    NoWorkspace,
    OutsideWorkspace,
    SandboxFailed,
    ServiceFailed,
    ShellBusy,
    StateLost,
    WorkspaceBusy,
    WorkspaceFull,
)
from orchestrator.environment.state_applying import Applied, apply_state
from orchestrator.environment.states.stored_states import State
from orchestrator.environment.trees.tree import WorkspaceLimits
from orchestrator.environment.workspace import Workspace, current_workspace
from store.records import Effects
from tests.unit.orchestrator.environment.workspace_samples import (
    base_in,
    files_of,
    runtime_in,
    steps_of,
)

pytestmark = pytest.mark.usefixtures("subprocesses", "own_states")


@tool(effects="env")
async def append(ws: Workspace, text: str, *, then: str = "") -> Completed:
    """Append to log in the shell; `then` says how it goes on."""
    done = await ws.shell(f"echo {text} >> log; export LAST={text}")
    if then == "fail":
        raise ValueError(text)
    if then == "hang":
        await asyncio.sleep(3600)
    return done


@flow
async def shown_at(base: str, state: str) -> dict[str, str]:
    """The files of a stored state."""
    async with workspace(base, state=state) as ws:
        return await files_of(ws)


async def test_a_tool_that_fails_leaves_files_and_shell_as_they_were(tmp_path: Path) -> None:
    base = base_in(tmp_path, log="first\n")

    @flow
    async def body() -> tuple[str, str]:
        async with workspace(base):
            await append(text="kept")
            with pytest.raises(ValueError, match="lost"):
                await append(text="lost", then="fail")
            ws = current_workspace()
            assert ws is not None
            return await ws.read("log"), (await ws.shell("echo $LAST")).stdout

    async with runtime_in(tmp_path) as runtime:
        assert (await runtime.run(body)).value == ("first\nkept\n", "kept\n")
    assert (base / "log").read_text() == "first\n"


async def test_a_tool_that_is_cut_off_is_rolled_back(tmp_path: Path) -> None:
    base = base_in(tmp_path)

    @flow
    async def body() -> str:
        async with workspace(base) as ws:
            await append(text="kept")
            with pytest.raises(DeadlineExceeded):
                async with within("0.5s"):
                    await append(text="lost", then="hang")
            return await ws.read("log")

    async with runtime_in(tmp_path) as runtime:
        assert (await runtime.run(body)).value == "kept\n"


async def test_each_action_is_recorded_with_the_states_around_it(tmp_path: Path) -> None:
    base = base_in(tmp_path)

    @flow
    async def body() -> None:
        async with workspace(base) as ws:
            await append(text="one")
            await ws.run("true")
            [fork] = await ws.fork()
            await append(fork, text="two")

    async with runtime_in(tmp_path) as runtime:
        run = await runtime.run(body)
    steps = {step.path: step for step in await steps_of(tmp_path, run.run_id)}
    begun, one, same, two = (steps[path] for path in ("workspace", "append", "ws.run", "append#2"))
    assert begun.state_after == one.state_before
    assert one.state_before != one.state_after == same.state_before == same.state_after
    assert (two.workspace, two.state_before) == ("base.1", one.state_after)
    assert {step.effects for step in steps.values()} == {Effects.ENV}


async def test_equal_states_have_one_id_however_they_came_about(tmp_path: Path) -> None:
    base = base_in(tmp_path, a="a\n", b="b\n")

    @flow
    async def body() -> list[str]:
        async with workspace(base) as ws:
            first, second, third = await ws.fork(3)
            await first.run("echo new > c; rm a")
            await second.write("c", "wrong\n")
            await second.run("rm a b; echo new > c; echo b > b")
            await third.run("mv a c; echo new > c; touch b")
            return [first.state, second.state, third.state]

    async with runtime_in(tmp_path) as runtime:
        assert len(set((await runtime.run(body)).value)) == 1


async def test_a_resumed_run_goes_on_in_the_last_recorded_state(tmp_path: Path) -> None:
    base, executed, fails = base_in(tmp_path), list[str](), [True]

    @tool(effects="env")
    async def note(ws: Workspace, text: str) -> None:
        executed.append(text)
        await ws.shell(f'echo {text} >> "$WORKSPACE/log"; mkdir -p {text}; cd {text}')

    @flow
    async def body() -> tuple[str, str]:
        async with workspace(base) as ws:
            await note(text="one")
            await note(text="two")
            if fails[0]:
                raise RuntimeError
            await note(text="three")
            return (await ws.shell("echo ${PWD#$WORKSPACE}")).stdout, await ws.read("log")

    async with runtime_in(tmp_path) as runtime:
        with pytest.raises(RuntimeError):
            await runtime.run(body.options(run_id="r"))
    fails[0] = False
    async with runtime_in(tmp_path) as runtime:
        shown, log = (await runtime.resume("r", body)).value
    assert executed == ["one", "two", "three"]
    assert shown == "/one/two/three\n"
    assert log == "one\ntwo\nthree\n"


async def test_steps_that_are_replayed_whole_leave_their_workspace_in_its_state(
    tmp_path: Path,
) -> None:
    """Also those in which forks were made, adopted and rewound."""
    base, fails = base_in(tmp_path), [True]

    @flow
    async def part(ws_name: str) -> None:
        ws = current_workspace()
        assert ws is not None
        start = await ws.checkpoint("start")
        await append(text="dropped")
        await ws.rewind(start)
        forks = await ws.fork(2)
        await append(forks[1], text="adopted")
        await ws.adopt(forks[1])

    @flow
    async def body() -> dict[str, str]:
        async with workspace(base) as ws:
            await part("a")
            if fails[0]:
                raise RuntimeError
            [fork] = await ws.fork()
            await append(fork, text="fork")
            return await files_of(fork)

    async with runtime_in(tmp_path) as runtime:
        with pytest.raises(RuntimeError):
            await runtime.run(body.options(run_id="r"))
    fails[0] = False
    async with runtime_in(tmp_path) as runtime:
        assert (await runtime.resume("r", body)).value == {"log": "adopted\nfork\n"}


async def test_a_fork_and_its_origin_do_not_see_each_other(tmp_path: Path) -> None:
    base = base_in(tmp_path, both="both\n")
    async with workspace(base) as ws:
        await ws.write("before", "before")
        one, two = await ws.fork(2)
        await ws.run("rm both; echo origin > mine")
        await one.run("echo one >> both; echo one > mine")
        assert await files_of(ws) == {"before": "before", "mine": "origin\n"}
        assert await files_of(one) == {"before": "before", "both": "both\none\n", "mine": "one\n"}
        assert await files_of(two) == {"before": "before", "both": "both\n"}
    assert os.listdir(base) == ["both"]


async def test_branches_that_share_a_workspace_are_refused(tmp_path: Path) -> None:
    base = base_in(tmp_path)

    @flow
    async def body() -> None:
        async with workspace(base) as ws:
            await gather(ws.run("sleep 0.3"), ws.run("sleep 0.3"))

    async with runtime_in(tmp_path) as runtime:
        with pytest.raises(WorkspaceBusy, match=r"in use by ws\.run.*fork"):
            await runtime.run(body)


async def test_a_fork_is_refused_while_something_runs_in_the_background(tmp_path: Path) -> None:
    async with workspace(base_in(tmp_path)) as ws:
        await ws.shell("sleep 100 & sleep 0.2")
        with pytest.raises(ShellBusy, match=r"sleep 100"):
            await ws.fork()
        await ws.shell("kill %1; wait")
        await ws.fork()


async def test_services_run_in_forks_and_after_a_rewind(tmp_path: Path) -> None:
    base = base_in(tmp_path)
    serve = "while true; do date +%s%N > ${TMPDIR:-/tmp}/beat; sleep 0.02; done"
    beats = "test -n \"$(find ${TMPDIR:-/tmp}/beat -newermt '1 second ago')\""
    async with workspace(base) as ws:
        await ws.service("clock", serve, ready="test -s ${TMPDIR:-/tmp}/beat")
        served = await ws.checkpoint("served")
        [fork] = await ws.fork()
        assert (await fork.run(beats)).ok
        await ws.write("x", "x")
        await ws.rewind(served)
        assert (await ws.run("rm -f ${TMPDIR:-/tmp}/beat; sleep 0.3; " + beats)).ok
        with pytest.raises(ServiceFailed, match=r"bad ended with exit code 3.*why"):
            await ws.service("bad", "echo why; exit 3", ready="false")
        with pytest.raises(ServiceFailed, match=r"gone ended with exit code 127.*nosuch"):
            await ws.service("gone", "nosuch")
        with pytest.raises(ServiceFailed, match=r"not ready after 0\.2 s"):
            await ws.service("slow", "sleep 100", ready="false", timeout="0.2s")


async def test_what_no_state_can_hold_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listen = "import socket; socket.socket(socket.AF_UNIX).bind('here')"
    async with workspace(base_in(tmp_path)) as ws:
        (await ws.run([str(Path(sys.executable).resolve()), "-c", listen])).check()
        await ws.run("touch x")
    assert [each.message.split()[0] for each in caplog.records] == ["here"]


async def test_a_path_with_a_zero_byte_is_refused(tmp_path: Path) -> None:
    async with workspace(base_in(tmp_path, a="a")) as ws:
        for work in (ws.write("a\0b", "b"), ws.read("a\0b")):
            with pytest.raises(ValueError, match="zero byte"):
                await work
        assert await ws.read("a") == "a"


async def test_a_file_is_hidden_and_what_is_not_there_is_no_problem(tmp_path: Path) -> None:
    base = base_in(tmp_path, within="key")
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as outside:  # /tmp is hidden as it is
        outside.write(b"key")
        outside.flush()
        async with workspace(base, hide=[outside.name, tmp_path / "missing"]) as ws:
            assert (await ws.run(["cat", outside.name])).stdout == ""
            home = ws.position.mounting.home
        if home.backend == "copies":
            with pytest.raises(SandboxFailed, match="single file"):
                async with workspace(base, hide=[base / "within"]) as ws:
                    await ws.run("true")
            return
        async with workspace(base, hide=[base / "within"]) as ws:
            assert (await ws.run("cat within")).stdout == ""
        assert set(home._backends.values()) <= {"overlay"}, "it was no reason for copies"


async def test_a_command_that_takes_too_long_is_killed_with_all_that_it_started(
    tmp_path: Path,
) -> None:
    async with workspace(base_in(tmp_path)) as ws:
        late = "(sleep 0.4; echo late > late) & sleep 100"
        for run in (ws.run, ws.shell):
            done = await run(late, timeout="0.1s")  # type: ignore[operator]
            assert (done.timed_out, done.exit_code) == (True, 124)
            assert "its time was over" in str(done)
        await asyncio.sleep(0.6)
        assert await files_of(ws) == {}


async def test_output_is_streamed_and_what_is_cut_off_is_counted(tmp_path: Path) -> None:
    pieces: list[tuple[str, bytes]] = []
    async with workspace(base_in(tmp_path)) as ws:
        done = await ws.run(
            "echo out; echo err >&2; head -c 5000 /dev/zero | tr '\\0' x; exit 3",
            output_bytes=1000,
            on_output=lambda stream, piece: pieces.append((stream, piece)),
        )
    assert (done.exit_code, len(done.stdout), done.stderr) == (3, 1000, "err\n")
    assert done.cut_bytes == len("out\n") + 5000 - 1000
    assert sum(len(piece) for stream, piece in pieces if stream == "stdout") == 5004
    with pytest.raises(CommandFailed, match="exit code 3: err"):
        done.check()


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "", ".", "link/x", "loop"])
async def test_files_outside_of_the_workspace_are_neither_read_nor_written(
    tmp_path: Path, path: str
) -> None:
    base = base_in(tmp_path)
    (base / "link").symlink_to("/etc")
    (base / "loop").symlink_to("loop")
    async with workspace(base) as ws:
        with pytest.raises((OutsideWorkspace, OSError)):
            await ws.read(path)
        with pytest.raises((OutsideWorkspace, OSError)):
            await ws.write(path, "x")


async def test_what_a_rewind_would_leave_outside_is_refused_or_taken_back(tmp_path: Path) -> None:
    base, sent, taken_back = base_in(tmp_path), list[str](), list[str]()

    async def unsend(to: str) -> None:
        taken_back.append(to)

    @tool(effects="external")
    async def post(to: str) -> None:
        sent.append(to)

    @tool(effects="external", compensate=unsend)
    async def send(to: str) -> None:
        sent.append(to)

    @flow
    async def body(fails: bool = False) -> str:
        async with workspace(base) as ws:
            await append(text="one")
            start = await ws.checkpoint("start")
            await send("a")
            await append(text="two")
            await send("b")
            await ws.rewind("start")
            await post("c")
            with pytest.raises(NotRevertible, match=r"post \(step post\)"):
                await ws.rewind(start)
            await ws.rewind(start, allow=["post"])
            return await ws.read("log")

    async with runtime_in(tmp_path) as runtime:
        assert (await runtime.run(body)).value == "one\n"
    assert (sent, taken_back) == (["a", "b", "c"], ["b", "a"])


async def test_merged_forks_have_the_changes_of_both(tmp_path: Path) -> None:
    base = base_in(tmp_path, text="1\n2\n3\n4\n5\n", old="old\n")
    async with workspace(base) as ws:
        one, two = await ws.fork(2)
        await one.run("sed -i s/1/one/ text; rm old; echo 1 > same")
        await two.run("sed -i s/5/five/ text; echo 2 > same")
        with pytest.raises(MergeConflict, match="same"):
            await ws.merge(one, two)
        assert await files_of(ws) == {"text": "1\n2\n3\n4\n5\n", "old": "old\n"}
        with pytest.raises(CommandFailed):
            await ws.merge(one, two, on_conflict="ours", check="test -e missing")
        merged = await ws.merge(
            one, two, on_conflict=lambda conflict: b"both\n", check="test -e text"
        )
        assert merged.merged_paths == ("text",)
        assert await files_of(ws) == {"text": "one\n2\n3\n4\nfive\n", "same": "both\n"}


async def test_a_lost_state_is_computed_again_by_its_actions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base, fails, executed = base_in(tmp_path), [True], list[str]()

    @tool(effects="env")
    async def note(ws: Workspace, text: str) -> None:
        executed.append(text)
        await ws.run(f"echo {text} >> log")

    @flow
    async def body() -> str:
        async with workspace(base) as ws:
            await note(text="one")
            await note(text="two")
            if fails[0]:
                raise RuntimeError
            return await ws.read("log")

    async with runtime_in(tmp_path) as runtime:
        with pytest.raises(RuntimeError):
            await runtime.run(body.options(run_id="r"))
    fails[0] = False
    last = {step.path: step for step in await steps_of(tmp_path, "r")}["note#2"]
    assert last.state_after is not None
    (tmp_path / "store.environments" / "states" / last.state_after).unlink()
    with caplog.at_level(logging.WARNING, logger="orchestrate"):
        async with runtime_in(tmp_path) as runtime:
            assert (await runtime.resume("r", body)).value == "one\ntwo\n"
    assert executed == ["one", "two", "two"]
    assert "computed again" in caplog.text


async def test_a_state_that_cannot_be_computed_again_is_lost(tmp_path: Path) -> None:
    base, fails = base_in(tmp_path), [True]

    @flow
    async def body() -> str:
        async with workspace(base) as ws:
            [fork] = await ws.fork()
            await fork.write("x", "x")
            await ws.merge(fork)
            if fails[0]:
                raise RuntimeError
            return await ws.read("x")

    async with runtime_in(tmp_path) as runtime:
        with pytest.raises(RuntimeError):
            await runtime.run(body.options(run_id="r"))
    fails[0] = False
    for blob in (tmp_path / "store.environments" / "blobs").glob("*/*"):
        if blob.read_bytes() == b"x":
            blob.chmod(0o600)
            blob.write_bytes(b"y")
    async with runtime_in(tmp_path) as runtime:
        with pytest.raises(StateLost, match="does not have the content"):
            await runtime.resume("r", body)


async def test_a_pure_tool_that_changes_files_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = base_in(tmp_path)

    @tool(effects="pure")
    async def look(ws: Workspace) -> None:
        await ws.write("written", "x")

    @flow
    async def body() -> str:
        async with workspace(base) as ws:
            await look()
            return await ws.read("written")

    with caplog.at_level(logging.WARNING, logger="orchestrate"):
        async with runtime_in(tmp_path) as runtime:
            run = await runtime.run(body)
            async with runtime.store.reading() as tx:
                edges = await tx.states.edges_of_run(run.run_id)
    assert run.value == "x"
    assert "look is declared as pure, and changed files or the shell: written" in caplog.text
    assert [edge.changed for edge in edges if edge.note] == [("written",)]


async def test_a_tool_that_takes_a_workspace_needs_one(tmp_path: Path) -> None:
    with pytest.raises(NoWorkspace, match="append works in a workspace"):
        await append(text="x")
    with pytest.raises(TypeError, match="must be async"):

        @tool(effects="env")
        def plain(ws: Workspace) -> None: ...


async def test_changes_above_the_limit_are_rolled_back(tmp_path: Path) -> None:
    limits = WorkspaceLimits(disk_bytes=10_000)
    async with workspace(base_in(tmp_path), limits=limits) as ws:
        await ws.write("small", "x" * 5_000)
        with pytest.raises(WorkspaceFull, match="its limit is 10000"):
            await ws.run("head -c 20000 /dev/zero > big")
        assert set(await files_of(ws)) == {"small"}


async def test_a_workspace_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    base = base_in(tmp_path)
    async with workspace(base) as ws:
        await ws.fork(3)
        await ws.shell("sleep 1000 &")
        root = ws.position.mounting.home.root
    assert list(root.live.iterdir()) == []


async def test_discard_brings_back_the_beginning(tmp_path: Path) -> None:
    async with workspace(base_in(tmp_path, a="a")) as ws:
        await ws.fork(2)
        await ws.run("rm a; echo x > b")
        await ws.discard()
        assert await files_of(ws) == {"a": "a"}
        assert not await ws.changeset()


async def test_a_change_set_says_what_differs(tmp_path: Path) -> None:
    async with workspace(base_in(tmp_path, a="a\n", b="b\n")) as ws:
        await ws.run("rm a; echo B > b; echo c > c")
        mark = await ws.checkpoint()
        await ws.run("echo d > d")
        changes = await ws.changeset()
        assert changes.paths == ("a", "b", "c", "d")
        assert "-b\n+B\n" in changes.text
        assert (await ws.diff(mark)).paths == ("d",)


async def test_a_fork_ends_alone_or_with_its_origin(tmp_path: Path) -> None:
    async with workspace(base_in(tmp_path)) as ws:
        [fork] = await ws.fork()
        async with fork:
            assert current_workspace() is fork
            await fork.run("true")
        assert current_workspace() is ws
        assert len(list(ws.position.mounting.home.root.live.iterdir())) <= 3


async def test_changes_are_applied_and_the_former_state_undoes_that(tmp_path: Path) -> None:
    base = base_in(tmp_path, kept="kept\n", old="old\n", gone="gone\n")

    @flow
    async def body() -> Applied:
        async with workspace(base) as ws:
            await ws.run("rm gone; echo new > old; mkdir d; echo d > d/f")
            return await ws.apply()

    async with runtime_in(tmp_path) as runtime:
        applied = (await runtime.run(body)).value
    assert (applied.added, applied.replaced, applied.deleted) == (("d", "d/f"), ("old",), ("gone",))
    assert (base / "old").read_text() == "new\n"
    assert (base / "d" / "f").read_text() == "d\n"

    @flow
    async def undo(former: str) -> dict[str, str]:
        async with workspace(base, state=former) as ws:
            shown = await files_of(ws)
            await ws.apply()
            return shown

    async with runtime_in(tmp_path) as runtime:
        shown = (await runtime.run(undo, applied.former)).value
    assert shown == {"kept": "kept\n", "old": "old\n", "gone": "gone\n"}
    assert {path.name: path.read_text() for path in base.iterdir()} == shown


async def test_an_index_that_git_wrote_anew_does_not_change_the_base(tmp_path: Path) -> None:
    base = base_in(tmp_path, kept="kept\n")
    (base / ".git").mkdir()
    (base / ".git/index").write_text("index\n")

    @flow
    async def change() -> str:
        async with workspace(base) as ws:
            await ws.write("new", "new\n")
            return ws.state

    async with runtime_in(tmp_path) as runtime:
        state = (await runtime.run(change)).value
    (base / ".git/index").write_text("the same, with other times of files\n")
    async with runtime_in(tmp_path) as runtime:
        shown = (await runtime.run(shown_at, str(base), state)).value
        assert shown["new"] == "new\n"
    (base / "kept").write_text("changed\n")
    async with runtime_in(tmp_path) as runtime:
        with pytest.raises(BaseChanged, match="'kept'"):
            await runtime.run(shown_at, str(base), state)


async def test_an_apply_is_refused_if_the_base_has_other_changes_there(tmp_path: Path) -> None:
    base = base_in(tmp_path, a="a\n", b="b\n")
    async with workspace(base) as ws:
        await ws.run("echo ours > a")
        (base / "a").write_text("theirs\n")
        (base / "c").write_text("elsewhere\n")
        with pytest.raises(BaseChanged, match="'a'"):
            await ws.apply()
        assert (base / "a").read_text() == "theirs\n"
        await ws.run("rm a; mv b d")


async def test_an_apply_that_was_cut_off_before_its_record_is_completed(tmp_path: Path) -> None:
    base = base_in(tmp_path, a="a\n")

    @flow
    async def body() -> Applied:
        async with workspace(base) as ws:
            await ws.run("echo b > b; rm a")
            return await ws.apply()

    def killed(self: Environments, state: State, *, git: bool) -> Applied:
        apply_state(self, state, git=git)
        raise asyncio.CancelledError

    async with runtime_in(tmp_path) as runtime:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("orchestrator.environment.workspace.apply_state", killed)
            with pytest.raises(asyncio.CancelledError):
                await runtime.run(body.options(run_id="r"))
    assert not (base / "a").exists()
    async with runtime_in(tmp_path) as runtime:
        applied = (await runtime.resume("r", body)).value
        former = (await runtime.run(shown_at, str(base), applied.former)).value
    assert [path.name for path in base.iterdir()] == ["b"]
    assert (applied.added, applied.deleted) == (("b",), ("a",))
    assert former == {"a": "a\n"}


@pytest.mark.parametrize("folder", ["/", "~", "missing", "file", "{store}", ""])
async def test_folders_that_cannot_be_a_base_are_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("x")
    place = {"{store}": str(tmp_path), "file": str(tmp_path / "file")}.get(folder, folder)
    with pytest.raises(BaseRefused, match="cannot be the base"):
        async with workspace(place):
            pass


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_command_that_is_cancelled_twice_is_rolled_back_once(
    tmp_path: Path, turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with workspace(base_in(tmp_path)) as ws:
        await ws.shell("KEPT=yes")
        begun = asyncio.Event()
        command = asyncio.create_task(
            ws.shell("KEPT=no; echo begun; sleep 60", on_output=lambda *_: begun.set())
        )
        await begun.wait()
        command.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        assert (await ws.shell("echo $KEPT")).stdout == "yes\n"
    del command
    gc.collect()  # an error that nobody awaited is logged
    assert caplog.records == []


async def test_a_fork_of_a_run_has_its_files_and_leaves_the_original_alone(tmp_path: Path) -> None:
    base = base_in(tmp_path)

    @flow
    async def body(word: str) -> str:
        async with workspace(base) as ws:
            await append(text="one")
            await ws.checkpoint("middle")
            await append(text=word)
            return await ws.read("log") + (await ws.shell("echo $LAST")).stdout

    async with runtime_in(tmp_path) as runtime:
        original = await runtime.run(body.options(run_id="r"), "two")
        fork = await runtime.fork("r", body, at="middle", arguments={"word": "three"})
        again = await runtime.fork(fork.run_id, body, at="append", arguments={"word": "four"})
        async with runtime.store.reading() as tx:
            before = await tx.states.edges_of_run("r")
            kept = await tx.states.edges_of_run(again.run_id)
        async with runtime.store.transaction() as tx:
            assert await tx.states.recount() == []
    assert original.value == "one\ntwo\ntwo\n"
    assert fork.value == "one\nthree\nthree\n"
    assert again.value == "one\nfour\nfour\n"
    assert [edge.after for edge in kept[:1]] == [edge.after for edge in before[:1]]
    assert len(kept) == len(before)
