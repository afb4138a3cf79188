"""The characters that pictures are drawn with, for terminals of two kinds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of one cell each, but for `ellipsis`.

    Attributes:
        partial: a cell that is filled in part, from least to most.
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
)
