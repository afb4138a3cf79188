"""Trees, shells and sandboxes at their edges: full pipes, forks, cancellations, odd commands."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pytest

from orchestrator.environment import live_workspace
from orchestrator.environment.environments import Environments, WorkspaceKind
from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.files.layer_stacks import LayerStacks
from orchestrator.environment.files.manifest import Files
from orchestrator.environment.live_workspace import LiveWorkspace
from orchestrator.environment.states.stored_states import Base, Service, State, States
from orchestrator.environment.trees.output import Output
from orchestrator.environment.trees.sandbox_client import Zygote
from orchestrator.environment.trees.shell_state import moved
from tests.unit.orchestrator.environment.conftest import NO_FILES, Place, files_of, said

pytestmark = pytest.mark.usefixtures("subprocesses")


@pytest.fixture
async def environments(tmp_path: Path) -> AsyncIterator[Environments]:
    for name in ("base", "root"):
        (tmp_path / name).mkdir()
    environments = Environments(tmp_path / "root")
    yield environments
    await environments.close()
    assert list((tmp_path / "root" / "live").iterdir()) == []


@pytest.fixture
async def live(environments: Environments) -> AsyncIterator[LiveWorkspace]:
    live = await environments.open(*beginning(environments))
    yield live
    await live.close()


def beginning(environments: Environments) -> tuple[WorkspaceKind, State]:
    base = str(environments.root.path.parent / "base")
    return WorkspaceKind(base), environments.states.add(Base(base, "identity"), {})


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """A process that was forked from this one and does some work."""
    process = os.fork()
    if process == 0:
        with suppress(BaseException):
            work()
        os._exit(0)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process, 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_zygote_ends_while_a_fork_of_its_owner_lives() -> None:
    zygote = Zygote()
    with forked(signal.pause):
        closing = threading.Thread(target=zygote.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_fork_that_closes_the_zygote_leaves_it_to_its_owner(place: Place) -> None:
    async with place.tree() as tree:
        with forked(place.zygote.close) as process:
            os.waitpid(process, 0)
        assert place.zygote.is_alive
        assert await tree.sandbox.processes() == []


NAMES = "printf read eval declare shopt set umask alias trap echo"


async def test_functions_may_be_named_as_builtins_and_the_state_has_them(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as one, place.shell(tree) as other:
        await said(one, f'for name in {NAMES}; do builtin eval "$name() {{ :; }}"; done')
        await said(one, "X=1; builtin umask 027; builtin trap 'true' EXIT; builtin set -o pipefail")
        shown = "builtin declare -F; builtin declare -p X; builtin umask; builtin trap -p EXIT"
        await said(other, await one.state())
        assert await said(other, shown) == await said(one, shown)
        assert "-f printf\n" in await said(other, shown)
        assert "0027" in await said(other, shown)
        assert await other.state() == await one.state()


async def test_an_alias_of_a_builtin_does_not_change_what_is_captured(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "shopt -s expand_aliases; alias builtin=false declare=false")
        await said(shell, "X=1")
        assert "X=" in await shell.state()


async def test_a_shell_whose_streams_are_redirected_has_a_state(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "exec > log 2>&1; X=1")
        assert "X=" in await shell.state()
        assert await said(shell, "echo more; ls /dev/null/x || true") == ""
        await said(shell, "exec >&- 2>&-")
        assert "X=" in await shell.state()
        seen = await place.seen(tree)
        log = place.root.blobs.read(seen.manifest["log"].content)
        assert log.startswith(b"more\n")
        assert b"\0" not in log


async def test_output_of_what_runs_beside_is_no_part_of_a_shells_state(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "while :; do echo noise; done &")
        state = await shell.state()
        await said(shell, "kill $!; wait $! 2> /dev/null; true")
        assert "noise" not in state


async def test_a_command_has_none_of_the_shells_own_pipes(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        for number in (197, 198, 199):
            assert (
                await said(shell, f"test ! -e /proc/self/fd/{number} && echo closed") == "closed\n"
            )


async def test_long_commands_at_once_are_all_executed(live: LiveWorkspace) -> None:
    padding = "x" * 100_000
    done = await asyncio.gather(*(live.run(f"echo {i}; : {padding}") for i in range(8)))
    assert [each.check().stdout for each in done] == [f"{i}\n" for i in range(8)]


async def test_what_is_cancelled_before_it_was_sent_is_not_executed(live: LiveWorkspace) -> None:
    padding = "x" * 100_000
    runs = [asyncio.ensure_future(live.run(f"touch f{i}; : {padding}")) for i in range(8)]
    await asyncio.sleep(0)
    sandbox = live._tree.sandbox
    assert sandbox._unsent  # or this shows nothing
    runs[-1].cancel()
    done = await asyncio.gather(*runs, return_exceptions=True)
    assert isinstance(done[-1], asyncio.CancelledError)
    assert (await live.run("ls")).stdout.split() == [f"f{i}" for i in range(7)]
    assert not sandbox._answers


async def test_a_message_that_is_too_long_leaves_nothing_waiting(live: LiveWorkspace) -> None:
    sandbox = live._tree.sandbox
    with pytest.raises(ValueError, match="the limit is"):
        await live.run("x" * 200_000)
    assert (sandbox._answers, list(sandbox._unsent)) == ({}, [])
    assert (await live.run("echo next")).stdout == "next\n"


async def test_a_capture_of_many_files_leaves_services_running(
    live: LiveWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_workspace, "_MANY_CHANGES", 2)
    await live.add_service(Service("one", "sleep 600"))
    before = live._services.programs
    await live.run("touch a b c d")
    await live.capture()
    assert live._services.programs == before
    assert live._tree.num_changed == 4


async def test_files_are_read_in_a_thread_that_a_cancellation_waits_for(place: Place) -> None:
    reading, go_on, has_read = threading.Event(), threading.Event(), threading.Event()

    def keep(file: BinaryIO, size: int) -> str:
        reading.set()
        assert go_on.wait(60)
        has_read.set()
        return place.root.blobs.add_file(file, size)

    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "echo x > file")
        task = asyncio.ensure_future(tree.read(keep))
        while not reading.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert has_read.is_set()
        assert await said(shell, "echo runs") == "runs\n"  # it was thawed


async def test_what_runs_when_other_files_are_mounted_writes_nothing_in_them(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell, place.shell(tree) as idle:
        writes = 'while :; do for n in {1..99}; do echo x > "$PWD/late$n"; done; done'
        await said(shell, f"({writes}) & ({writes}) & while ! test -e late99; do :; done")
        for _ in range(5):
            await tree.mount(NO_FILES, idle=[shell.program, idle.program])
        assert (await place.seen(tree)).manifest == {}
        assert await said(idle, "echo is left") == "is left\n"


async def test_layers_are_built_in_a_thread_and_found_without_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    stack_of = LayerStacks.stack_of

    def recorded(self: LayerStacks, files: Files, near: Files) -> tuple[str, ...]:
        threads.append(threading.get_ident())
        return stack_of(self, files, near)

    monkeypatch.setattr(LayerStacks, "stack_of", recorded)
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "echo x > file")
        files = files_of((await place.seen(tree)).manifest)
        for _ in range(2):
            await tree.mount(files)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_a_state_of_many_files_is_stored_in_a_thread(
    live: LiveWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    add = States.add

    def recorded(self: States, *arguments: object) -> State:
        threads.append(threading.get_ident())
        return add(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(States, "add", recorded)
    monkeypatch.setattr(live_workspace, "_MANY_ENTRIES", 2)
    await live.run("touch a b")
    await live.capture()
    await live.run("touch c")
    state = await live.capture()
    assert threads[0] == threading.get_ident() != threads[1]
    await live.show(state)
    assert (await live.run("ls")).stdout.split() == ["a", "b", "c"]


@pytest.mark.parametrize("is_of_shell", [False, True])
async def test_what_on_output_raises_ends_no_command_and_loses_no_output(
    live: LiveWorkspace, is_of_shell: bool
) -> None:
    run = live.run_in_shell if is_of_shell else live.run

    def refuse(stream: str, data: bytes) -> None:
        raise RuntimeError(f"not {stream}")

    with pytest.raises(RuntimeError, match="not stdout"):
        await run("echo one; sleep 0.05; echo two > file", on_output=refuse)
    assert (await run("cat file")).stdout == "two\n"


def test_a_piece_that_on_output_refuses_is_kept_and_its_first_error_is_raised() -> None:
    calls = []

    def refuse(stream: str, data: bytes) -> None:
        calls.append(data)
        raise RuntimeError

    output = Output(100, refuse)
    output.add("stdout", b"one ")
    output.add("stdout", b"two")
    assert (bytes(output.streams["stdout"]), calls) == (b"one two", [b"one "])
    with pytest.raises(RuntimeError):
        output.require_delivered()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("cd -- '/x/base'\n", "cd -- '/live/tree'\n"),
        ("/x/base/f:/x/base", "/live/tree/f:/live/tree"),
        ("/x/base2/f /x/base.bak /x/base-old", "/x/base2/f /x/base.bak /x/base-old"),
        ("/y/x/base/f", "/y/x/base/f"),
        ("/x/base/x/base/f", "/live/tree/x/base/f"),
        ("-I/x/base/include file:///x/base", "-I/live/tree/include file:///live/tree"),
    ],
)
def test_only_paths_of_the_folder_itself_are_moved(script: str, expected: str) -> None:
    assert moved(script, "/x/base", "/live/tree") == expected
    assert moved(expected, "/live/tree", "/x/base") == script


async def test_a_cancelled_open_leaves_the_waiting_sandbox_for_the_next(
    environments: Environments,
) -> None:
    kind, state = beginning(environments)
    environments.expect(kind, 1)
    [waiting] = environments._waiting[kind]
    opening = asyncio.ensure_future(environments.open(kind, state))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not waiting.done()
    live = await environments.open(kind, state)
    assert live._tree is (await waiting).tree
    await live.close()


async def test_two_that_open_at_once_share_no_waiting_sandbox(environments: Environments) -> None:
    kind, state = beginning(environments)
    environments.expect(kind, 1)
    both = await asyncio.gather(*(environments.open(kind, state) for _ in range(2)))
    assert both[0]._tree is not both[1]._tree
    for live in both:
        await live.close()


async def test_a_question_that_is_cancelled_leaves_the_waiting_shell(live: LiveWorkspace) -> None:
    state = await live.capture()
    await live.show(state)
    asking = asyncio.ensure_future(live.busy())
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await live.busy() == []
    await live.show(state)


async def test_a_close_that_is_cancelled_has_closed_all(
    environments: Environments, tmp_path: Path
) -> None:
    live = await environments.open(*beginning(environments))
    await live.show(await live.capture())  # another shell is being started
    closing, again = (asyncio.ensure_future(live.close()) for _ in range(2))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await again
    assert list((tmp_path / "root" / "live").iterdir()) == []


async def test_a_close_of_which_a_part_fails_does_the_others_and_can_be_called_again(
    environments: Environments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    live = await environments.open(*beginning(environments))

    async def refuse() -> None:
        raise OSError("disk")

    monkeypatch.setattr(live, "_settled", refuse)
    with pytest.raises(OSError, match="disk"):
        await live.close()
    assert list((tmp_path / "root" / "live").iterdir()) == []
    with pytest.raises(SandboxFailed):
        await live.run("true")
    monkeypatch.undo()
    await live.close()


async def test_waiting_sandboxes_are_all_ended_when_the_close_is_cancelled_or_one_fails(
    environments: Environments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind, _ = beginning(environments)
    environments.expect(kind, 3)
    held = await asyncio.gather(*environments._waiting[kind])
    end = held[0].tree.close

    async def refuse() -> None:
        await end()
        raise OSError("disk")

    monkeypatch.setattr(held[0].tree, "close", refuse)
    closing = asyncio.ensure_future(environments.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(OSError, match="disk"):
        await closing
    assert list((tmp_path / "root" / "live").iterdir()) == []
