"""What the commands of all benchmarks share: the parser, progress, errors, the printed result."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from benchmarks.data_files import BadData
from cli.errors import BadInput, CommandError
from serving.errors import ServingError


def parser_of(documentation: str | None) -> argparse.ArgumentParser:
    """A parser described by the first line of a module's docstring, with the option --json."""
    parser = argparse.ArgumentParser(description=(documentation or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="a JSON object instead of a table")
    return parser


def positive(text: str) -> int:
    """Parse a positive integer argument."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return count


def check_once(option: str, given: Sequence[str]) -> None:
    """Raise BadInput if a value of an option is given twice."""
    twice = [each for index, each in enumerate(given) if each in given[:index]]
    if twice:
        raise BadInput(f"{option} {twice[0]!r}: give it only once")


def say(message: str) -> None:
    """Print a message to stderr at once."""
    print(message, file=sys.stderr, flush=True)


def exit_code(work: Callable[[], None]) -> int:
    """Run a command; returns 0, or 2 after a named error, which is printed."""
    try:
        work()
    except (BadData, CommandError, ServingError) as error:
        say(f"error: {error}")
        return 2
    return 0


def print_result(document: object, table: str, *, as_json: bool) -> None:
    """Print a result to stdout, as JSON or as a table."""
    print(json.dumps(document) if as_json else table)
