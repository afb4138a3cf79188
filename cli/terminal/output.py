"""Where words go: results to stdout, talk and progress to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from cli.errors import CannotPrint, CommandError, ReaderLeft

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NARROWEST, WIDEST = 60, 200

# Control characters that JSON lets stand, and a terminal obeys.
_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def results() -> Console:
    """The console for results: stdout as it is now."""
    from cli.terminal.sanitize import PrintableConsole

    return PrintableConsole(file=sys.stdout, highlight=False)


def talk() -> Console:
    """The console for everything else: stderr as it is now."""
    # While a live display is up, sys.stderr is its proxy.
    return _talk_on(getattr(sys.stderr, "rich_proxied_file", sys.stderr))


@lru_cache(maxsize=1)
def _talk_on(file: IO[str]) -> Console:
    """One console for a file, for only it knows of the live display that it must not overwrite."""
    from cli.terminal.sanitize import PrintableConsole

    return PrintableConsole(file=file, highlight=False)


def say(message: str, *, style: str = "") -> None:
    """Tell the user something on stderr."""
    from rich.text import Text

    print_line(talk(), Text(message, style=style))


def say_as_it_is(text: str) -> None:
    """Tell the user something on stderr whose lines stay as they are, as a traceback's."""
    from rich.text import Text

    talk().print(Text(text), soft_wrap=True)


def warn(message: str) -> None:
    """Tell the user of something that may not be as it should."""
    from rich.text import Text

    print_line(talk(), Text.assemble(("warning: ", "bold yellow"), message))


def complain(message: str) -> None:
    """Tell the user what went wrong."""
    from rich.text import Text

    print_line(talk(), Text.assemble(("error: ", "bold red"), message))


def print_line(console: Console, line: Text) -> None:
    """Print a line, wrapped between words on a terminal only: elsewhere it is searched for."""
    console.print(line, soft_wrap=not console.is_terminal)


def print_json(document: Any, *, on_one_line: bool = False) -> None:
    """Print one JSON document on stdout; times as ISO 8601, bytes in hexadecimal."""
    indent = None if on_one_line else 2
    text = json.dumps(document, indent=indent, ensure_ascii=False, default=_json_value)
    sys.stdout.write(f"{text.translate(_ESCAPED)}\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Print a result that is text on stdout: as it is, but for what would control a terminal."""
    from cli.terminal.sanitize import printable

    sys.stdout.write(f"{printable(text) if sys.stdout.isatty() else text}\n")


def print_markdown(text: str) -> None:
    """Print a result that is Markdown: laid out for a terminal, as it is for everything else."""
    console = results()
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown(text))
    else:
        console.file.write(text)
        console.file.flush()


def width_of(console: Console, *, narrowest: int = NARROWEST) -> int:
    """The columns to draw in: the terminal's (or COLUMNS), within what a picture can use."""
    return min(max(console.width, narrowest), WIDEST)


def is_plain_ascii(console: Console) -> bool:
    """Whether only ASCII reaches the reader."""
    return not console.encoding.lower().startswith("utf")


def survive_any_encoding() -> None:
    """Have characters that an output cannot encode replaced, and a closed output swallow all."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - kept open
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


@contextmanager
def naming_failures_of_stdout() -> Iterator[None]:
    """While the block runs, a write to stdout that fails is a named error; at its end, so is what
    was still to be written.

    Raises:
        ReaderLeft: nobody reads it any more.
        CannotPrint: it takes no more.
    """
    former = sys.stdout
    sys.stdout = cast("TextIO", _NamingStream(former))
    try:
        try:
            yield
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    finally:
        sys.stdout = former


class _NamingStream:
    """A text stream whose failures are errors of ours: rich and click know none of them.

    Once it has failed, it goes on failing: click tries a stream out, and swallows what it raises.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failure: CommandError | None = None

    def write(self, text: str) -> int:
        """Write; raises ReaderLeft, CannotPrint."""
        with self._named():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush; raises ReaderLeft, CannotPrint."""
        with self._named():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _named(self) -> Iterator[None]:
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                self._failure = ReaderLeft()
            else:
                self._failure = CannotPrint(error.strerror or str(error))
            # Or the interpreter would fail once more, at its end, with what is left of it.
            with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            raise self._failure from error


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    isoformat = getattr(value, "isoformat", None)
    return str(value) if isoformat is None else isoformat()
