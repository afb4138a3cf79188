"""Printing: results to stdout; messages, progress and errors to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from cli.errors import CannotPrint, CommandError, StdoutClosed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NARROWEST, WIDEST = 60, 200
"""Limits of the width of what is drawn, in columns."""

# DEL and the C1 control characters: json.dumps leaves them unescaped, and terminals obey them.
# Lone surrogates stand for bytes of files that are not UTF-8, and have no encoding.
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *range(0xD800, 0xE000))}


def stdout_console() -> Console:
    """A console on the present sys.stdout, for results."""
    from cli.terminal.sanitize import PrintableConsole

    return PrintableConsole(file=sys.stdout, highlight=False)


def stderr_console() -> Console:
    """The console on the present sys.stderr, for everything but results."""
    # While a rich live display is shown, sys.stderr is a proxy of the real stream.
    return _console_on(getattr(sys.stderr, "rich_proxied_file", sys.stderr))


@lru_cache(maxsize=1)
def _console_on(file: IO[str]) -> Console:
    """One console per file: two would overwrite each other's live display."""
    from cli.terminal.sanitize import PrintableConsole

    return PrintableConsole(file=file, highlight=False)


def say(message: str, *, style: str = "") -> None:
    """Print a message on stderr."""
    from rich.text import Text

    print_line(stderr_console(), Text(message, style=style))


def say_verbatim(text: str) -> None:
    """Print text on stderr without wrapping its lines, such as a traceback."""
    from rich.text import Text

    stderr_console().print(Text(text), soft_wrap=True)


def warn(message: str) -> None:
    """Print a warning on stderr."""
    from rich.text import Text

    print_line(stderr_console(), Text.assemble(("warning: ", "bold yellow"), message))


def complain(message: str) -> None:
    """Print an error on stderr."""
    from rich.text import Text

    print_line(stderr_console(), Text.assemble(("error: ", "bold red"), message))


def print_line(console: Console, line: Text) -> None:
    """Print a line. Only a terminal wraps it: in files and pipes users search for whole lines."""
    console.print(line, soft_wrap=not console.is_terminal)


def print_json(document: Any, *, on_one_line: bool = False) -> None:
    """Print one JSON document on stdout; times as ISO 8601, bytes in hexadecimal."""
    sys.stdout.write(json_text(document, on_one_line=on_one_line))
    sys.stdout.flush()


def json_text(document: Any, *, on_one_line: bool = False) -> str:
    """What `print_json` prints."""
    indent = None if on_one_line else 2
    text = json.dumps(document, indent=indent, ensure_ascii=False, default=_json_value)
    return f"{text.translate(_ESCAPED)}\n"


def print_text(text: str) -> None:
    """Print a text result on stdout; on a terminal, without its control characters."""
    from store.printable_text import printable

    sys.stdout.write(f"{printable(text) if sys.stdout.isatty() else text}\n")


def print_patch(text: str) -> None:
    """Print a part of a unified diff on stdout, byte for byte: for files and pipes.

    Args:
        text: with bytes that are not UTF-8 as lone surrogates.
    """
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
    sys.stdout.write(text)


def print_markdown(text: str) -> None:
    """Print a Markdown result on stdout; rendered on a terminal, unchanged elsewhere."""
    console = stdout_console()
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown(text))
    else:
        console.file.write(text)
        console.file.flush()


def width_of(console: Console, *, narrowest: int = NARROWEST) -> int:
    """The number of columns to draw in: the terminal's (or COLUMNS), from `narrowest` to WIDEST."""
    return min(max(console.width, narrowest), WIDEST)


def is_plain_ascii(console: Console) -> bool:
    """Whether to print ASCII only, because the output's encoding is not a Unicode one."""
    return not console.encoding.lower().startswith("utf")


def tolerate_any_output() -> None:
    """Replace characters that stdout or stderr cannot encode; discard writes to a closed one."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - kept open
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


@contextmanager
def named_stdout_errors() -> Iterator[None]:
    """While the block runs, failing writes to stdout raise named errors; so does the final flush.

    Raises:
        StdoutClosed: the program that read stdout has closed it.
        CannotPrint: another failure, such as a full disk.
    """
    original = sys.stdout
    sys.stdout = cast("TextIO", _NamedErrorStream(original))
    try:
        try:
            yield
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    finally:
        sys.stdout = original


class _NamedErrorStream:
    """A text stream that fails with CommandErrors, which rich and click do not catch.

    After the first failure every write fails: click tests a stream and ignores what that raises.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failure: CommandError | None = None

    def write(self, text: str) -> int:
        """Write; raises StdoutClosed, CannotPrint."""
        with self._named_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush; raises StdoutClosed, CannotPrint."""
        with self._named_errors():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                self._failure = StdoutClosed()
            else:
                self._failure = CannotPrint(error.strerror or str(error))
            # Otherwise the interpreter would fail again at exit, when it flushes the buffer.
            with suppress(OSError), Path(os.devnull).open("wb") as null:
                os.dup2(null.fileno(), self._stream.fileno())
            raise self._failure from error


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    isoformat = getattr(value, "isoformat", None)
    return str(value) if isoformat is None else isoformat()
