"""Capacities at a share of kept promises as a table, and as JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cli.render.bench_report import predictions_and_scale
from cli.render.tables import named_table
from orchestrator.display.glyphs import ASCII, UNICODE
from serving.sim.compare.compare import label_of
from serving.sim.compare.promise_capacity import (
    LEAST_LOAD,
    RESOLUTION,
    PromiseCapacities,
)
from serving.sim.compare.seeds import purpose_of, seeds_text

if TYPE_CHECKING:
    from rich.table import Table

_GAP = 2


def title_of_capacities(found: PromiseCapacities) -> list[str]:
    """The lines above the table: what was searched, and how."""
    config = found.plan.config
    return [
        f"{config.source.name}: the highest load at which {found.kept_share:.0%} of the promises "
        "are kept, simulated in virtual time",
        f"{config.window_s:g} s after {config.warmup_s:g} s of warm-up, "
        f"{seeds_text(found.plan.seeds)}, {predictions_and_scale(config)}",
        f"machine {config.machine.step_cost.name}; 1.0x is {found.capacity_programs_s:.2f} "
        "programs/s of each: capacity under fcfs",
    ]


def capacity_table(found: PromiseCapacities, *, width: int, ascii_only: bool = False) -> Table:
    """One row for each policy and number of machines."""
    glyphs = ASCII if ascii_only else UNICODE
    reference = _reference(found)
    headings = ["policy", "machines", "load", "programs/s"]
    headings += [] if reference is None else [f"saves of {reference}'s"]
    rows = []
    for machines, search in found.searches.items():
        is_best = search.kept_at == max(
            other.kept_at
            for each, other in found.searches.items()
            if each.replicas == machines.replicas
        )
        style = "bold green" if is_best and len(found.plan.policies) > 1 else ""
        cells = [
            Text(machines.policy),
            Text(str(machines.replicas)),
            Text(_load_text(search.kept_at, search.missed_at), style=style),
            Text(f"{found.programs_s(machines):.2f}" if search.kept_at else glyphs.none),
        ]
        if reference is not None:
            saving = found.saving(machines, reference)
            is_shown = saving is not None and machines.policy != reference
            cells.append(Text(f"{saving:.0%}" if is_shown else glyphs.none))
        rows.append(cells)
    return named_table(headings, rows, width=width, gap=_GAP, texts=("policy",), glyphs=glyphs)


def legend_of_capacities(found: PromiseCapacities) -> list[str]:
    """The lines below the table: the meaning of its columns."""
    lines = [
        "A promise is a program with an SLO that arrives within the window. The load is that of "
        f"each machine; a load {RESOLUTION - 1:.0%} higher keeps too few. All seeds count together."
    ]
    reference = _reference(found)
    if reference is not None:
        lines.append(
            f"saves: the share of the machines under {reference} that is not needed for as many "
            f"programs: 1 - capacity of {reference} / own capacity."
        )
    return lines


def document_of_capacities(found: PromiseCapacities) -> dict[str, Any]:
    """The result as JSON."""
    config, reference = found.plan.config, _reference(found)
    return {
        "simulated": True,
        "workload": config.source.name,
        "trace": config.source.file_name,
        "kept_share": found.kept_share,
        "window_s": config.window_s,
        "warmup_s": config.warmup_s,
        "seeds": list(found.plan.seeds),
        "seeds_for": purpose_of(found.plan.seeds),
        "predictions": config.predictions,
        "machine": config.machine.step_cost.name,
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
            }
            for machines, search in found.searches.items()
        ],
    }


def _reference(found: PromiseCapacities) -> str | None:
    """The policy to which the others are compared: the first one; None if it is the only one."""
    labels: Sequence[str] = [label_of(policy) for policy in found.plan.policies]
    has_any = any(found.searches[each].kept_at for each in found.searches)
    return labels[0] if len(labels) > 1 and has_any else None


def _load_text(kept_at: float, missed_at: float) -> str:
    if not kept_at:
        return f"below {LEAST_LOAD:.3f}x"
    return f"{kept_at:.2f}x" + ("" if math.isfinite(missed_at) else " or more")
