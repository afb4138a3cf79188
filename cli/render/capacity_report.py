"""Capacities at a share of kept promises as a table, and as JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cli.render.bench_report import settings_lines, settings_of
from cli.render.tables import named_table
from orchestrator.display.glyphs import ASCII, UNICODE
from serving.sim.compare.compare import label_of
from serving.sim.compare.promise_capacity import (
    RESOLUTION,
    LoadSearch,
    Machines,
    PromiseCapacities,
)
from serving.sim.compare.seeds import seeds_text

if TYPE_CHECKING:
    from rich.table import Table

_GAP = 2
_MAX_STANDARD_ERROR = 0.02
"""Of the share that is kept at a limit: from about 225 promises on, if nine of ten are kept."""


def title_of_capacities(found: PromiseCapacities) -> list[str]:
    """The lines above the table: what was searched, and how."""
    config = found.plan.config
    return [
        f"{config.source.name}: the highest load at which {100 * found.kept_share:g}% of the "
        "promises are kept, simulated in virtual time",
        f"{config.window_s:g} s after {config.warmup_s:g} s of warm-up, "
        f"{seeds_text(found.plan.seeds)}",
        *settings_lines(config),
        f"1.0x is {found.capacity_programs_s:.2f} programs/s of each machine: capacity under fcfs",
    ]


def capacity_table(found: PromiseCapacities, *, width: int, ascii_only: bool = False) -> Table:
    """One row for each policy and number of machines."""
    glyphs = ASCII if ascii_only else UNICODE
    reference = _reference(found)
    headings = ["policy", "machines", "load", "kept", "programs/s"]
    headings += [] if reference is None else [f"saves of {reference}'s"]
    rows = []
    for machines, search in found.searches.items():
        style = "bold green" if _is_best(found, machines) else ""
        kept, programs_s = found.kept(machines), found.programs_s(machines)
        cells = [
            Text(machines.policy),
            Text(str(machines.replicas)),
            Text(_load_text(search), style=style),
            Text(glyphs.none if kept is None else f"{kept.share:.1%} of {kept.promised:,}"),
            Text(glyphs.none if programs_s is None else f"{programs_s:.2f}"),
        ]
        if reference is not None:
            saving = None if machines.policy == reference else found.saving(machines, reference)
            cells.append(Text(glyphs.none if saving is None else f"{saving:.0%}"))
        rows.append(cells)
    return named_table(headings, rows, width=width, gap=_GAP, texts=("policy",), glyphs=glyphs)


def legend_of_capacities(found: PromiseCapacities) -> list[str]:
    """The lines below the table: the meaning of its columns."""
    lines = [
        "A promise is a program with an SLO that arrives within the window; kept: all seeds "
        "together. load is that of each machine, programs/s that of all.",
        f"A load {RESOLUTION - 1:.0%} higher was tried, and too few were kept. By chance a still "
        "higher one may keep enough.",
    ]
    reference = _reference(found)
    if reference is not None:
        lines.append(
            f"saves: the share of the machines under {reference} that is not needed for as many "
            f"programs: 1 - capacity of {reference} / own capacity."
        )
    return lines


def few_promises(found: PromiseCapacities) -> list[str]:
    """A warning if a limit rests on so few promises that chance moves it."""
    limits = [kept for kept in map(found.kept, found.searches) if kept is not None]
    if not limits:
        return []
    least = max(limits, key=lambda kept: kept.standard_error)
    if least.standard_error <= _MAX_STANDARD_ERROR:
        return []
    return [
        f"a limit rests on {least.promised:,} promises, so the share that is kept there has a "
        f"standard error of {100 * least.standard_error:.1f} points, and the limit may be chance: "
        "choose a longer --window-s or more --seeds"
    ]


def document_of_capacities(found: PromiseCapacities) -> dict[str, Any]:
    """The result as JSON."""
    reference = _reference(found)
    return {
        "simulated": True,
        **settings_of(found.plan),
        "kept_share": found.kept_share,
        "capacity_programs_s": found.capacity_programs_s,
        "code": found.code,
        "rows": [
            {
                "policy": machines.policy,
                "replicas": machines.replicas,
                "load": search.kept_at or None,
                "too_high": search.missed_at if math.isfinite(search.missed_at) else None,
                "programs_s": found.programs_s(machines),
                "saving": None if reference is None else found.saving(machines, reference),
                "tries": [
                    {"load": load, "met": kept.met, "promised": kept.promised}
                    for load, kept in found.tries[machines].items()
                ],
            }
            for machines, search in found.searches.items()
        ],
    }


def _reference(found: PromiseCapacities) -> str | None:
    """The policy to which the others are compared: the first one; None if it is the only one."""
    labels: Sequence[str] = [label_of(policy) for policy in found.plan.policies]
    return labels[0] if len(labels) > 1 else None


def _is_best(found: PromiseCapacities, machines: Machines) -> bool:
    """Whether no other of several policies keeps enough at a higher load on as many machines."""
    own = found.searches[machines].kept_at
    others = [
        search.kept_at
        for each, search in found.searches.items()
        if each.replicas == machines.replicas and each != machines
    ]
    return bool(others) and own > 0 and own >= max(others)


def _load_text(search: LoadSearch) -> str:
    if not search.kept_at:
        return f"below {search.missed_at:.3g}x" if math.isfinite(search.missed_at) else "unknown"
    return f"{search.kept_at:.2f}x" + ("" if search.has_limit else " or more")
