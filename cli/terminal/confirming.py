"""Asks before something is done that cannot be taken for granted."""

from __future__ import annotations

import sys

import typer

from cli.errors import BadInput
from cli.terminal.output import say


def confirm(question: str, *, is_given: bool) -> None:
    """Ask on the terminal, unless the answer is given by --yes.

    Raises:
        BadInput: there is no terminal to ask at.
        typer.Exit: the answer is no; with exit code 1.
    """
    if is_given:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"there is no terminal to ask {question!r}: give --yes to do it")
    if not typer.confirm(question, err=True):
        say("nothing was changed")
        raise typer.Exit(1)
