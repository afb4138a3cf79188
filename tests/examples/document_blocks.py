"""The code blocks of the documents, and the commands in them and in their sentences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.places import ROOT

README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(orchestrate [^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: of its first line of code in the document, from 1.
    """

    document: Path
    language: str
    line: int
    text: str

    @property
    def place(self) -> str:
        """Where it is, such as README.md:59."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def aligned(self) -> str:
        """The code, at the same line numbers as in the document, for tracebacks."""
        return "\n" * (self.line - 1) + self.text


def blocks_of(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        yield Block(document, match[1], line, match[2])


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]


def commands_of(block: Block) -> list[str]:
    """The command lines of a block for a shell; a line that ends in a backslash goes on."""
    joined = block.text.replace("\\\n", " ")
    lines = [shlex.join(shlex.split(line, comments=True)) for line in joined.splitlines()]
    return [line for line in lines if line]


COMMANDS = list(
    dict.fromkeys(
        command for block in BLOCKS if block.language == "sh" for command in commands_of(block)
    )
)

MENTIONED = sorted(
    {
        command
        for document in DOCUMENTS
        for command in _INLINE.findall(document.read_text(encoding="utf-8"))
    }
)
"""Commands within sentences; they may leave out arguments."""
