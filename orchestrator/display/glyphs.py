"""The characters of timelines, bars, tables and graphs: one set in Unicode, one in ASCII."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of one cell each, except `ellipsis` and `spread`.

    Attributes:
        work, late, unended: bars of stages and calls: on time, past their sub-deadline, not ended.
        partial: partly filled cells, from the least to the most filled.
        due, deadline: marks of a sub-deadline and of the run's deadline.
        gap: a break in the time axis.
        none: stands for a missing value.
        kinds: fill characters of stages, one per kind of stage.
        other: fill character of all further kinds.
        cut: separates two adjacent stages of the same kind.
        planned: the planned duration of a stage.
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
    times="×",  # noqa: RUF001 - the multiplication sign is meant
    none="–",  # noqa: RUF001 - longer than a minus sign, so not mistaken for one
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


@dataclass(frozen=True, slots=True)
class BranchGlyphs:
    """Characters of a graph's branches, one cell each.

    Attributes:
        column: a branch that goes through a line.
        stem: a branch from which others part, or which they join.
        part, parts: one that parts from the stem, and the rightmost of several.
        join, joins: one that joins the stem, and the rightmost of several.
        level: from the stem to the rightmost of them.
        crossing: a branch that goes through below that.
    """

    node: str
    column: str
    stem: str
    part: str
    parts: str
    join: str
    joins: str
    level: str
    crossing: str


UNICODE_BRANCHES = BranchGlyphs(
    node="●",
    column="│",
    stem="├",
    part="┬",
    parts="╮",
    join="┴",
    joins="╯",
    level="─",
    crossing="┼",
)

ASCII_BRANCHES = BranchGlyphs(
    node="*",
    column="|",
    stem="|",
    part="+",
    parts=".",
    join="+",
    joins="'",
    level="-",
    crossing="|",
)
