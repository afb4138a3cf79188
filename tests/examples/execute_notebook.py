"""Executes a notebook: `python -m tests.examples.execute_notebook FROM TO`. A process of its own.

nbclient leaves sockets to the garbage collector, which a test would report as its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TIMEOUT_S = 240
"""Of a cell: a hang ends in an error that names the cell."""


def main(source: Path, target: Path) -> None:
    notebook = nbformat.read(source, as_version=4)  # type: ignore[no-untyped-call]
    folder = {"metadata": {"path": str(source.parent)}}
    client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", resources=folder)
    client.execute()
    nbformat.write(notebook, target)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
