"""`orchestrate shell`: on a terminal, and without one."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_samples import exit_code
from tests.cli.workspace_runs import edit, new_base, record_run
from tests.places import ROOT

_TIMEOUT_S = 60


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process, self._master = pty.fork()
        if self.process == 0:
            os.environ |= {"PYTHONPATH": str(ROOT), "TERM": "dumb"}
            os.execv(sys.executable, [sys.executable, "-m", "cli", *arguments])
        self.resize(40, 120)
        self.shown = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, text: str) -> str:
        """What is shown until this text; fails if that is not shown before the end."""
        while text not in self.shown:
            data = self._read()
            assert data, f"{text!r} is not shown: {self.shown}"
            self.shown += data.decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def says(self, command: str) -> str:
        """What a command prints."""
        self.type(f"echo be''gun; {command}; echo fin''ished\r")
        self.until("begun\r\n")
        return self.until("finished\r\n").strip()

    def end(self) -> int:
        """The exit code, once it has ended."""
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def _read(self) -> bytes:
        """What is shown next; nothing once the command has ended."""
        assert select.select([self._master], [], [], _TIMEOUT_S)[0], f"only {self.shown}"
        try:
            return os.read(self._master, 4096)
        except OSError:
            return b""

    def close(self) -> None:
        os.close(self._master)


@pytest.fixture
def base(tmp_path: Path, store_url: str, subprocesses: None) -> Path:
    """The folder of a recorded run of `edit`."""
    folder = new_base(tmp_path)
    record_run(store_url, edit, str(folder))
    return folder


@pytest.fixture
def terminal(base: Path) -> Iterator[Terminal]:
    opened = Terminal("shell", "3f2a")
    yield opened
    opened.close()


@pytest.mark.slow
def test_a_shell_on_a_terminal_begins_in_the_state_and_changes_nothing(
    base: Path, terminal: Terminal, tmp_path: Path
) -> None:
    terminal.until("/base/d ")
    assert terminal.says("cat ../a.txt").split() == ["one", "2", "three"]
    assert terminal.says("echo $QUESTION in $PWD").startswith("42 in ")
    assert terminal.says("test -t 0 && stty size") == "40 120"
    terminal.says("rm ../a.txt; echo more > x; touch ../more")
    terminal.type("exit 7\r")
    assert terminal.end() == 7
    assert (base / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert not (base / "more").exists()
    assert list((tmp_path / "runs.environments" / "live").iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_and_jobs_are_the_shells_own_and_a_new_size_is_passed_on(terminal: Terminal) -> None:
    terminal.until("/base/d ")
    terminal.type("bash -c \"echo be''gun; exec sleep 1000\"\r")
    terminal.until("begun\r\n")
    terminal.type("\x03")
    terminal.until("/base/d ")
    terminal.type("code=$?\r")
    assert terminal.says("echo $code") == "130"
    assert "Running" in terminal.says("sleep 1000 & jobs")
    terminal.resize(20, 90)
    os.kill(terminal.process, signal.SIGWINCH)
    while terminal.says("stty size") != "20 90":
        pass
    terminal.until("/base/d ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_command_runs_without_a_terminal_and_its_exit_code_is_passed_on(
    base: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = "test ! -t 0; echo $? $QUESTION; cat x; echo changed > x; echo to stderr >&2; exit 3"
    assert exit_code("shell", "3f2a", "--command", command) == 3
    captured = capfd.readouterr()
    assert captured.out == "0 42\nhi\n"
    assert captured.err.endswith("to stderr\n")
    assert exit_code("shell", "3f2a@start", "-c", "ls; cat a.txt") == 0
    assert capfd.readouterr().out == "a.txt\nold\ntool\none\ntwo\nthree\n"


def test_without_a_terminal_a_command_is_needed(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("shell", "3f2a") == 2
    assert "give --command" in capsys.readouterr().err
