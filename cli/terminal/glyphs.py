"""The characters that pictures are drawn with, for terminals of two kinds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of one cell each, but for `ellipsis` and `spread`.

    Attributes:
        partial: a cell that is filled in part, from least to most.
        kinds: what kinds of stages are filled with, each unlike the one before it.
        other: all further kinds.
        cut: between two stages of one kind.
        planned: time that was planned for.
    """

    work: str
    partial: str
    late: str
    unended: str
    due: str
    deadline: str
    gap: str
    rule: str
    tick: str
    times: str
    none: str
    dot: str
    ellipsis: str
    kinds: str
    other: str
    cut: str
    planned: str
    spread: str


UNICODE = Glyphs(
    work="█",
    partial="▏▎▍▌▋▊▉",
    late="▓",
    unended="░",
    due="│",
    deadline="┃",
    gap="┈",
    rule="─",
    tick="┬",
    times="×",  # noqa: RUF001 - it is meant as a multiplication sign
    none="–",  # noqa: RUF001 - nothing to show, drawn longer than a minus
    dot="·",
    ellipsis="…",
    kinds="█░▓▒▚═◆○",
    other="·",
    cut="│",
    planned="━",
    spread="±",
)

ASCII = Glyphs(
    work="=",
    partial="=",
    late="x",
    unended="~",
    due="|",
    deadline="!",
    gap=":",
    rule="-",
    tick="+",
    times="x",
    none="-",
    dot="-",
    ellipsis="..",
    kinds="#.=o+*%@",
    other="-",
    cut="|",
    planned="-",
    spread="+-",
)
