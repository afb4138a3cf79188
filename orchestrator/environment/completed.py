"""What a command in a workspace gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from orchestrator.environment.errors import CommandFailed

TIMED_OUT = 124
"""The exit code of a command whose time was over, as timeout(1) has it."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended.

    Attributes:
        exit_code: as a shell has it: 128 and a signal's number if that ended it.
        stdout, stderr: what it wrote, up to the limit; bytes that are not UTF-8 as \\xNN.
        cut_bytes: how many bytes of both were left out.
        timed_out: it was killed, with all that it had started, as its time was over.
        seconds: how long it took.
    """

    command: str
    exit_code: int
    stdout: str = ""
    stderr: str = ""
    cut_bytes: int = 0
    timed_out: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.exit_code == 0

    def check(self) -> Self:
        """This; raises CommandFailed unless it succeeded."""
        if not self.ok:
            raise CommandFailed(self.command, self.exit_code, self.stderr)
        return self

    def __str__(self) -> str:
        parts = [self.stdout, self.stderr]
        if self.cut_bytes:
            parts.append(f"[{self.cut_bytes} bytes of output were left out]")
        if self.timed_out:
            parts.append(f"[killed after {self.seconds:.3g} s: its time was over]")
        elif self.exit_code:
            parts.append(f"[exit code {self.exit_code}]")
        return "\n".join(part.rstrip("\n") for part in parts if part)
