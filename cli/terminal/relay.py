"""Joins the user's terminal with a program's: what is typed goes in, what is shown comes out."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import termios
import tty
from collections.abc import Awaitable, Callable
from contextlib import suppress

_AT_ONCE = 1 << 16


async def relay(run: Callable[[int], Awaitable[int]], *, source: int = 0, target: int = 1) -> int:
    """Run a program on a terminal of its own, which the user sees at theirs.

    Each key goes to the program, also Ctrl-C; its terminal has the size of the user's. The user's
    terminal is in the end as it was.

    Args:
        run: runs the program on the terminal with this descriptor; returns its exit code.
        source: the user's terminal, for what is typed.
        target: where what it shows is written.
    """
    loop = asyncio.get_running_loop()
    master, slave = os.openpty()
    before = termios.tcgetattr(source)
    termios.tcsetattr(slave, termios.TCSANOW, before)
    joined = _Joined(master, source, target)
    joined.resize()
    loop.add_signal_handler(signal.SIGWINCH, joined.resize)
    tty.setraw(source)
    try:
        joined.begin()
        code = await run(slave)
        os.close(slave)
        slave = -1
        joined.show_rest()
        return code
    finally:
        joined.end()
        loop.remove_signal_handler(signal.SIGWINCH)
        termios.tcsetattr(source, termios.TCSADRAIN, before)
        for descriptor in (master, slave):
            if descriptor >= 0:
                os.close(descriptor)


class _Joined:
    """What goes back and forth, on the event loop; neither side can hold up the other."""

    def __init__(self, master: int, source: int, target: int) -> None:
        self._master = master
        self._source = source
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._typed = bytearray()
        os.set_blocking(master, False)

    def begin(self) -> None:
        self._loop.add_reader(self._source, self._read_keys)
        self._loop.add_reader(self._master, self._show)

    def end(self) -> None:
        for descriptor in (self._source, self._master):
            self._loop.remove_reader(descriptor)
        self._loop.remove_writer(self._master)

    def resize(self) -> None:
        """Give the program's terminal the size of the user's."""
        with suppress(OSError):
            size = fcntl.ioctl(self._source, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def show_rest(self) -> None:
        """Show what the program has written before its end."""
        while self._show():
            pass

    def _read_keys(self) -> None:
        try:
            keys = os.read(self._source, _AT_ONCE)
        except OSError:  # the user's terminal is closed
            keys = b""
        if not keys:
            self._loop.remove_reader(self._source)
            keys = b"\x04"
        self._typed += keys
        self._loop.add_writer(self._master, self._type)

    def _type(self) -> None:
        try:
            del self._typed[: os.write(self._master, self._typed)]
        except BlockingIOError:
            return
        except OSError:
            self._typed.clear()
        if not self._typed:
            self._loop.remove_writer(self._master)

    def _show(self) -> bool:
        try:
            data = os.read(self._master, _AT_ONCE)
        except BlockingIOError:
            return False
        except OSError:  # no program has the terminal any more
            data = b""
        if not data:
            self._loop.remove_reader(self._master)
            return False
        view = memoryview(data)
        while view:
            view = view[os.write(self._target, view) :]
        return True
