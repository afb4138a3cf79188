"""Runs most commands behind the figures of the README and of docs/ and writes output to files.

    make figures [DATA=DIR]
    python -m benchmarks.reproduce [--out figures] [--only NAME ...] [--data DIR] [--list]

The output of a command is in OUT/NAME.txt once it has succeeded, after the command and the code
version. A command is not run again while these are unchanged, so an interrupted run continues where
it stopped. A complete run takes a night on two cores; nothing else may run beside commands that
measure time (see `--list`). Some commands need public traces and workflows, which are not part of
this project (`--data`), and one needs the packages that it compares with. Without them these
commands are left out, which is reported at the end. These figures have no command: the search for
parameter values, small calls of equal size, long prompts at seven rates, code completion, policies
that are not in this repository, and earlier versions of the code.
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

from benchmarks.command import say
from benchmarks.figures import FIGURES, Figure
from cli.errors import BadInput, CannotWrite, CommandError
from serving.sim.compare.result_cache import code_version

ROOT = Path(__file__).resolve().parents[1]

PROGRAMS = {
    "python": (sys.executable,),
    "orchestrate": (sys.executable, "-m", "cli"),
    "pytest": (sys.executable, "-m", "pytest"),
}
"""First word of a command -> the program in this environment."""

STOPPED_S = 10.0
"""Time that a command has to end after SIGTERM before it is killed."""


def argv(command: str, folders: dict[str, Path]) -> list[str]:
    """A shell command as the arguments of a process, with folders filled in."""
    program, *rest = shlex.split(command)
    return [*PROGRAMS[program], *(each.format(**folders) for each in rest)]


def reproduce(names: Sequence[str], *, out: Path, data: Path) -> bool:
    """Run the commands of these figures; returns whether none of them failed.

    Raises:
        CannotWrite: the output folder cannot be created or written to.
        BadInput: another process uses it.
    """
    folders = {"out": out.resolve(), "data": data.resolve()}
    version = project_version()
    failed, left_out = [], []
    with locked(out):
        for name in names:
            if missing := _missing(FIGURES[name], folders["data"]):
                left_out.append(f"{name}: left out, {missing}")
            elif not _run_figure(name, version, folders):
                failed.append(name)
    for message in left_out:
        say(message)
    if failed:
        say(f"failed: {', '.join(failed)}; their output is in {out}/NAME.failed.txt")
    return not failed


def project_version() -> str:
    """A digest of all code that a figure may depend on.

    It covers the Python files of this repository without its tests, and the code version of
    simulated results.
    """
    digest = blake3(code_version().encode())
    folders = [each for each in ROOT.iterdir() if each.name.isidentifier()]  # no hidden folders
    for path in sorted(path for each in folders for path in each.rglob("*.py")):
        place = path.relative_to(ROOT)
        if place.parts[0] != "tests":
            digest.update(place.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest(8)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Lock a folder; commands inherit the lock, so that it outlives a process that is killed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise CannotWrite(out, error.strerror or str(error)) from error
    try:
        _acquire(lock, out)
        yield
    finally:
        os.close(lock)


def _acquire(lock: int, out: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        reason = "another process uses this folder; wait for it, or give another --out"
        raise BadInput(f"--out {out}: {reason}") from None
    os.set_inheritable(lock, True)


def _run_figure(name: str, version: str, folders: dict[str, Path]) -> bool:
    """Run a figure's command unless its output exists; returns whether the output exists now."""
    figure, output = FIGURES[name], folders["out"] / f"{name}.txt"
    arguments = argv(figure.command, folders)
    head = f"# {shlex.join(arguments[1:])}\n# code {version}\n\n"
    try:
        if output.exists() and output.read_text(encoding="utf-8").startswith(head):
            say(f"{name}: already in {output}")
            return True
        say(f"{name}: {shlex.join(arguments)}")
        began_s = time.monotonic()
        unfinished = output.with_suffix(".part")
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(head)
            file.flush()
            code = _run(arguments, file.fileno())
        duration = f"{(time.monotonic() - began_s) / 60:.1f} min"
        path = output.with_suffix(".failed.txt") if code else output
        unfinished.rename(path)
        if not code:
            output.with_suffix(".failed.txt").unlink(missing_ok=True)
    except OSError as error:
        raise CannotWrite(folders["out"], error.strerror or str(error)) from error
    say(f"{name}: {path}, {duration}" + (f", exit code {code}" if code else ""))
    return not code


def _run(arguments: Sequence[str], stdout: int) -> int:
    """Run a command; returns its exit code. An interrupt ends it with all its child processes."""
    with subprocess.Popen(
        arguments, stdout=stdout, cwd=ROOT, close_fds=False, start_new_session=True
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
    """The first missing file or package, and how to get it; empty if all are present."""
    for each in figure.reads:
        if not (data / each).exists():
            return f"{data / each} does not exist; see --data"
    for each in figure.imports:
        if not _is_installed(each):
            return f"{each} is not installed; see requirements/rivals.txt"
    return ""


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of its parent package
        return False


def listed() -> str:
    """All figures, each with a description and its command."""
    lines = []
    for name, figure in FIGURES.items():
        marks = [f"reads {', '.join(figure.reads)}"] * bool(figure.reads)
        marks += [f"imports {', '.join(figure.imports)}"] * bool(figure.imports)
        marks += ["measures this machine"] * figure.is_timed
        description = f"{figure.shows} ({'; '.join(marks)})" if marks else figure.shows
        lines += [f"{name:14} {description}", f"{'':14}     {figure.command}"]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Run or list the figures; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(__doc__ or "").partition("\n")[2],
    )
    parser.add_argument("--out", type=Path, default=Path("figures"), help="default: figures")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), metavar="NAME")
    parser.add_argument("--data", type=Path, default=Path("data"), help="traces/ and agentic/")
    parser.add_argument("--list", action="store_true", help="list the figures; run nothing")
    arguments = parser.parse_args(given)
    if arguments.list:
        print(listed())
        return 0
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return 0 if reproduce(arguments.only, out=arguments.out, data=arguments.data) else 1
    except CommandError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped; run the same command again to continue")
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)


if __name__ == "__main__":
    sys.exit(main())
