"""What it costs to checkpoint, fork, rewind and merge a folder, by our backends and by others.

    python -m benchmarks.environment [--json] [--files 20000] [--folder /var/tmp]

All are measured in one run, one after the other in each round, on the file system of `--folder`.
Times are medians in milliseconds. What a tool cannot do is left out.

- checkpoint: one file changed, and for ours one variable of the shell.
- fork: of a state that was forked before; `fork_changed`: of one in which a file has just changed.
  For ours with the shell, in a waiting sandbox; `fork_cold` in a new one.
- rewind: back to a state that differs in one file.
- merge: of two forks that changed a file each.
- disk: what 8 forks take that have changed 4 files each, `disk_with_states` once a state of each is
  stored too, and `changed` what they changed. Of `cp`, rsync and `git worktree` one fork is made,
  and counts 8 times.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.command import parser_of, positive, print_result, say
from orchestrator.environment.environments import Backend, Environments, WorkspaceKind
from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.files.base_listing import list_base
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.state_merging import merged_state
from orchestrator.environment.states.stored_states import Base, State

FOLDER_OF_FILES = 50
MEAN_BYTES = 10_000
FAST_ROUNDS = 20
SLOW_ROUNDS = 3
FORKS = 8
LEAST_FILES = 2000
CHANGED_FILES = 4
PAUSE_S = 0.15
"""Before each figure of ours, as while a model answers: sandboxes and shells are prepared."""

Times = dict[str, list[float]]
"""Name of a figure -> milliseconds of each round."""


def make_tree(folder: Path, num_files: int) -> None:
    """Files of about 10 kB, log-normal, in folders of 50; the same in every run."""
    chance = random.Random(1)
    for number in range(num_files):
        place = folder / f"d{number // 1000:03d}" / f"s{number // FOLDER_OF_FILES % 20:02d}"
        place.mkdir(parents=True, exist_ok=True)
        size = min(int(chance.lognormvariate(8.7, 1.0)), 40 * MEAN_BYTES)
        (place / f"f{number:05d}.txt").write_bytes(chance.randbytes(size))


def changed_file(number: int) -> str:
    """A file of the tree, relative to it."""
    return f"d000/s{number // FOLDER_OF_FILES % 20:02d}/f{number:05d}.txt"


@contextmanager
def timed(times: Times, name: str) -> Iterator[None]:
    """Measure a block."""
    began_s = time.perf_counter()
    yield
    times[name].append(1e3 * (time.perf_counter() - began_s))


def disk_bytes(folder: Path) -> int:
    """What a folder takes on the disk; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            status = Path(place, name).lstat()
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


class Ours:
    """One of our backends."""

    def __init__(self, tree: Path, root: Path, backend: Backend, rounds: int) -> None:
        self._home = Environments(root)
        self._root = root
        self._kind = WorkspaceKind(str(tree), backend=backend)
        self._tree = tree
        self._rounds = rounds
        self.times: Times = defaultdict(list)

    async def measure(self) -> dict[str, float]:
        """All figures, in milliseconds and megabytes; raises SandboxFailed where it is refused."""
        listing = list_base(self._tree)
        base = Base(str(self._tree), listing.identity)
        beginning = self._home.states.add(base, {})
        with timed(self.times, "fork_cold_ms"):
            live = await self._home.open(self._kind, beginning)
        await live.run_in_shell("export NAME=value; echo 0 > new")
        start = await live.capture()
        await (await self._home.open(self._kind, start)).close()
        for number in range(self._rounds):
            await live.run_in_shell(f"echo {number} >> {changed_file(number)}; NUMBER={number}")
            await asyncio.sleep(PAUSE_S)
            with timed(self.times, "checkpoint_ms"):
                await live.capture()
            await self._forked("fork_ms", lambda: self._home.open(self._kind, start))
            await live.run_in_shell(f"echo {number} >> {changed_file(number + 100)}; N={number}")

            async def captured_and_forked() -> object:
                return await self._home.open(self._kind, await live.capture())

            await self._forked("fork_changed_ms", captured_and_forked)
            await self._merge(start, number)
            await live.show(start)
            await live.run_in_shell(f"echo {number} >> {changed_file(number + 200)}")
            await live.capture()
            await asyncio.sleep(PAUSE_S)
            with timed(self.times, "rewind_ms"):
                await live.show(start)
        disk = await self._disk(start)
        await live.close()
        await self._home.close()
        medians = {name: statistics.median(values) for name, values in self.times.items()}
        return medians | disk

    async def _forked(self, name: str, fork: Callable[[], Awaitable[object]]) -> None:
        if self._kind.backend == "overlay":
            self._home.expect(self._kind, 1)
            await asyncio.sleep(PAUSE_S)
        with timed(self.times, name):
            forked = await fork()
        await forked.close()  # type: ignore[attr-defined]

    async def _merge(self, start: State, number: int) -> None:
        base = self._home.base_folder(str(self._tree))
        sides = []
        for side in (1, 2):
            name = changed_file(300 + 2 * number + side)
            entry = base.entry(name)
            assert entry is not None
            content = self._home.root.blobs.add(b"changed %d" % side)
            manifest = dict(self._home.states.manifest(start))
            manifest[name] = entry._replace(content=content, size=9)
            sides.append(self._home.states.add(start.base, manifest))
        with timed(self.times, "merge_ms"):
            ids = [side.id for side in sides]
            await merged_state(self._home, start.id, ids, on_conflict="fail")

    async def _disk(self, start: State) -> dict[str, float]:
        before = disk_bytes(self._root)
        forks = [await self._home.open(self._kind, start) for _ in range(FORKS)]
        changed = 0
        for index, fork in enumerate(forks):
            names = [changed_file(400 + CHANGED_FILES * index + n) for n in range(CHANGED_FILES)]
            (await fork.run(f"for f in {' '.join(names)}; do echo changed >> $f; done")).check()
            changed += sum((self._tree / name).stat().st_blocks * 512 for name in names)
        taken = disk_bytes(self._root) - before
        for fork in forks:
            await fork.capture()
        with_states = disk_bytes(self._root) - before
        for fork in forks:
            await fork.close()
        found = {"disk_mb": taken, "disk_with_states_mb": with_states, "changed_mb": changed}
        return {name: size / 1e6 for name, size in found.items()}


class Others:
    """`cp -a`, rsync, `git worktree` and a shadow repository."""

    def __init__(self, tree: Path, scratch: Path) -> None:
        self._tree = tree
        self._scratch = scratch
        self.figures: dict[str, dict[str, float]] = {}

    def measure(self, rounds: int) -> dict[str, dict[str, float]]:
        """Figures by tool."""
        say("cp -a")
        self._cp(rounds)
        if shutil.which("rsync"):
            say("rsync")
            self._rsync(rounds)
        if shutil.which("git"):
            say("git")
            self._git(rounds)
        return self.figures

    def _cp(self, rounds: int) -> None:
        times: Times = defaultdict(list)
        target = self._scratch / "copy"
        for _ in range(rounds):
            with timed(times, "fork_ms"):
                _call("cp", "-a", str(self._tree), str(target))
            disk_mb = FORKS * disk_bytes(target) / 1e6
            remove_folder(target)
        times["fork_changed_ms"] = times["fork_ms"]
        self._keep("cp", times, disk_mb)

    def _rsync(self, rounds: int) -> None:
        times: Times = defaultdict(list)
        target, source = self._scratch / "synced", f"{self._tree}/"
        for number in range(rounds):
            with timed(times, "fork_ms"):
                _call("rsync", "-a", source, str(target))
            (target / changed_file(number)).write_text("changed")
            with timed(times, "rewind_ms"):
                _call("rsync", "-a", "--delete", source, str(target))
            disk_mb = FORKS * disk_bytes(target) / 1e6
            remove_folder(target)
        times["fork_changed_ms"] = times["fork_ms"]
        self._keep("rsync", times, disk_mb)

    def _git(self, rounds: int) -> None:
        """Worktrees of a repository, and a repository whose work tree is the folder itself."""
        copy, target = self._scratch / "work", self._scratch / "worktree"
        _call("cp", "-a", str(self._tree), str(copy))
        shadow = ["git", f"--git-dir={self._scratch / 'shadow'}", f"--work-tree={copy}"]
        _call("git", "init", "-q", "--bare", str(self._scratch / "shadow"))
        settings = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "gc.auto=0"]
        shadow += [*settings, "-c", "core.bare=false"]
        commit = [*shadow, "commit", "-q", "-m", "checkpoint"]
        _call(*shadow, "add", "-A")
        _call(*commit)
        times, trees = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for number in range(rounds):
            (copy / changed_file(number)).write_text(f"changed {number}")
            with timed(times, "checkpoint_ms"):
                _call(*shadow, "add", "-A")
                _call(*commit)
            (copy / changed_file(number + 200)).write_text(f"changed {number}")
            with timed(times, "rewind_ms"):
                _call(*shadow, "reset", "-q", "--hard")
                _call(*shadow, "clean", "-fdq")
        disk_mb = disk_bytes(self._scratch / "shadow") / 1e6
        self._keep("shadow_git", times, disk_mb)
        for number in range(SLOW_ROUNDS):
            for name in ("fork_ms", "fork_changed_ms"):
                with timed(trees, name):
                    if name == "fork_changed_ms":
                        (copy / changed_file(number)).write_text(f"again {number}")
                        _call(*shadow, "add", "-A")
                        _call(*commit)
                    _call(*shadow, "worktree", "add", "-q", "--detach", str(target))
                disk_mb = FORKS * disk_bytes(target) / 1e6
                _call(*shadow, "worktree", "remove", "--force", str(target))
        self._keep("worktree", trees, disk_mb)

    def _keep(self, tool: str, times: Times, disk_mb: float) -> None:
        medians = {name: statistics.median(values) for name, values in times.items()}
        self.figures[tool] = medians | {"disk_mb": disk_mb}


def _call(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


async def measure_ours(tree: Path, scratch: Path) -> dict[str, dict[str, float] | str]:
    """Both backends; the reason where one is refused."""
    found: dict[str, dict[str, float] | str] = {}
    plan: list[tuple[str, Backend, int]] = [
        ("ours", "overlay", FAST_ROUNDS),
        ("fallback", "copies", SLOW_ROUNDS),
    ]
    for name, backend, rounds in plan:
        root = scratch / name
        root.mkdir()
        say(name)
        try:
            found[name] = await Ours(tree, root, backend, rounds).measure()
        except SandboxFailed as error:
            found[name] = f"refused here: {error}"
    return found


def ratios(figures: dict[str, dict[str, float] | str]) -> dict[str, float]:
    """How many times as long others take; and what 8 forks take over what they changed."""
    ours = figures["ours"]
    if isinstance(ours, str):
        return {}
    compared = [
        ("fork", "fork_ms", "cp"),
        ("fork", "fork_ms", "worktree"),
        ("fork_changed", "fork_changed_ms", "cp"),
        ("fork_changed", "fork_changed_ms", "worktree"),
        ("checkpoint", "checkpoint_ms", "shadow_git"),
        ("rewind", "rewind_ms", "shadow_git"),
    ]
    found = {}
    for what, key, other in compared:
        theirs = figures.get(other)
        if isinstance(theirs, dict):
            found[f"{what}: {other} / ours"] = theirs[key] / ours[key]
    found["disk of 8 forks / what they changed"] = ours["disk_mb"] / ours["changed_mb"]
    return found


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--files", type=positive, default=20_000)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    arguments = parser.parse_args()
    if arguments.files < LEAST_FILES:
        parser.error(f"--files: at least {LEAST_FILES}")
    scratch = Path(tempfile.mkdtemp(prefix="environment-", dir=arguments.folder))
    tree = scratch / "tree"
    try:
        say(f"a tree of {arguments.files} files in {tree}")
        make_tree(tree, arguments.files)
        figures: dict[str, dict[str, float] | str] = asyncio.run(measure_ours(tree, scratch))
        figures |= Others(tree, scratch).measure(SLOW_ROUNDS)
    finally:
        remove_folder(scratch)
    compared = ratios(figures)
    lines = [f"{name:12}{_shown(values)}" for name, values in figures.items()]
    lines += [f"{value:10.1f}  {name}" for name, value in compared.items()]
    print_result(figures | {"ratios": compared}, "\n".join(lines), as_json=arguments.json)


def _shown(values: dict[str, float] | str) -> str:
    if isinstance(values, str):
        return values
    return "  ".join(f"{name} {value:.2f}" for name, value in values.items())


if __name__ == "__main__":
    main()
