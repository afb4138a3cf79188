"""Most commands behind the figures of the README and of docs/, one after another, into files.

    make figures [DATA=DIR]
    python -m benchmarks.reproduce [--out figures] [--only NAME ...] [--data DIR] [--list]

What each command prints is in OUT/NAME.txt once it has succeeded, below the command and the version
of the code. While the same stands there it is not run again: stopped, all goes on where it was. It
takes a night on two cores, and nothing else may run beside those that measure time (`--list` says
which do). Those that read public traces and workflows, which are not part of this project, want
their folder, and one the packages that it compares with: without these they are left out, and the
end says so. Without a command are: what was tried before a number was chosen, small calls alike,
long prompts at seven rates, code completion, policies that are not in this repository, and what
earlier versions of the code had.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from blake3 import blake3

from benchmarks.comparing import say
from benchmarks.figures import FIGURES, Figure
from cli.errors import BadInput, CannotWrite, CommandError
from serving.sim.compare.result_cache import code_version

ROOT = Path(__file__).resolve().parents[1]

PROGRAMS = {
    "python": (sys.executable,),
    "orchestrate": (sys.executable, "-m", "cli"),
    "pytest": (sys.executable, "-m", "pytest"),
}
"""What a command may begin with, as programs of this very environment."""

STOPPED_S = 10.0
"""How long a command that was asked to stop may take."""


def argv(command: str, folders: dict[str, Path]) -> list[str]:
    """The arguments of a process, from what a person would type."""
    program, *rest = shlex.split(command)
    return [*PROGRAMS[program], *(each.format(**folders) for each in rest)]


def reproduce(names: Sequence[str], *, out: Path, data: Path) -> bool:
    """Run these commands; whether none of them failed.

    Raises:
        CannotWrite: the output folder cannot be made or written to.
        BadInput: another process is at work in it.
    """
    folders = {"out": out.resolve(), "data": data.resolve()}
    version = project_version()
    failed, left_out = [], []
    with locked(out):
        for name in names:
            if missing := _missing(FIGURES[name], folders["data"]):
                left_out.append(f"{name}: left out, {missing}")
            elif not _computed(name, version, folders):
                failed.append(name)
    for told in left_out:
        say(told)
    if failed:
        say(f"failed: {', '.join(failed)}; what they printed is in {out}/NAME.failed.txt")
    return not failed


def project_version() -> str:
    """A digest of all Python that a figure may depend on: this repository's, without its tests,
    and what simulated results depend on."""
    digest = blake3(code_version().encode())
    folders = [each for each in ROOT.iterdir() if each.name.isidentifier()]  # no hidden one
    for path in sorted(path for each in folders for path in each.rglob("*.py")):
        place = path.relative_to(ROOT)
        if place.parts[0] != "tests":
            digest.update(place.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest(8)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """A folder to ourselves; commands that outlive a process that was killed hold it as well."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise CannotWrite(out, error.strerror or str(error)) from error
    try:
        _take(lock, out)
        yield
    finally:
        os.close(lock)


def _take(lock: int, out: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        told = "another one is at work there; wait for it, or give another --out"
        raise BadInput(f"--out {out}: {told}") from None
    os.set_inheritable(lock, True)


def _computed(name: str, version: str, folders: dict[str, Path]) -> bool:
    """Whether this figure is there now."""
    figure, kept = FIGURES[name], folders["out"] / f"{name}.txt"
    arguments = argv(figure.command, folders)
    head = f"# {shlex.join(arguments[1:])}\n# code {version}\n\n"
    try:
        if kept.exists() and kept.read_text(encoding="utf-8").startswith(head):
            say(f"{name}: in {kept} already")
            return True
        say(f"{name}: {shlex.join(arguments)}")
        began_s = time.monotonic()
        unfinished = kept.with_suffix(".part")
        with unfinished.open("w", encoding="utf-8") as printed:
            printed.write(head)
            printed.flush()
            code = _run(arguments, printed.fileno())
        took = f"{(time.monotonic() - began_s) / 60:.1f} min"
        place = kept.with_suffix(".failed.txt") if code else kept
        unfinished.rename(place)
        if not code:
            kept.with_suffix(".failed.txt").unlink(missing_ok=True)
    except OSError as error:
        raise CannotWrite(folders["out"], error.strerror or str(error)) from error
    say(f"{name}: {place}, {took}" + (f", exit code {code}" if code else ""))
    return not code


def _run(arguments: Sequence[str], printed: int) -> int:
    """The exit code of a command; whatever stops us stops it, and all that it has started."""
    with subprocess.Popen(
        arguments, stdout=printed, cwd=ROOT, close_fds=False, start_new_session=True
    ) as process:
        try:
            return process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOPPED_S)
                os.killpg(process.pid, signal.SIGKILL)
            raise


def _missing(figure: Figure, data: Path) -> str:
    """What it wants that is not here, and how to get it; nothing if that is empty."""
    for each in figure.reads:
        if not (data / each).exists():
            return f"{data / each} is not here; see --data"
    for each in figure.imports:
        if not _is_installed(each):
            return f"{each} is not installed; see requirements/rivals.txt"
    return ""


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of what it is a part of
        return False


def listed() -> str:
    """A line for each figure, and its command."""
    lines = []
    for name, figure in FIGURES.items():
        marks = [f"reads {', '.join(figure.reads)}"] * bool(figure.reads)
        marks += [f"imports {', '.join(figure.imports)}"] * bool(figure.imports)
        marks += ["measures this machine"] * figure.is_timed
        told = f"{figure.shows} ({'; '.join(marks)})" if marks else figure.shows
        lines += [f"{name:14} {told}", f"{'':14}     {figure.command}"]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Run, or list; the exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(__doc__ or "").partition("\n")[2],
    )
    parser.add_argument("--out", type=Path, default=Path("figures"), help="default: figures")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), metavar="NAME")
    parser.add_argument("--data", type=Path, default=Path("data"), help="traces/ and agentic/")
    parser.add_argument("--list", action="store_true", help="what there is; runs nothing")
    chosen = parser.parse_args(given)
    if chosen.list:
        print(listed())
        return 0
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return 0 if reproduce(chosen.only, out=chosen.out, data=chosen.data) else 1
    except CommandError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
