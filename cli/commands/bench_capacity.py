"""`orchestrate bench --capacity`: the load at which each policy keeps a share of its promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.sim.compare.compare import Plan
    from serving.sim.compare.promise_capacity import PromiseCapacities

_NARROWEST = 60


def bench_capacity(
    plan: Plan,
    kept_share: float,
    replicas: Sequence[int],
    *,
    jobs: int | None,
    use_cache: bool,
    as_json: bool,
) -> None:
    """Find the capacities of a plan's policies and print them.

    Args:
        kept_share, replicas: as `find_capacities` takes them.
        jobs, use_cache: as `run_capacities` takes them.
    """
    from cli.render.capacity_report import document_of_capacities, few_promises
    from cli.terminal.output import print_json, warn
    from cli.work.bench_session import run_capacities

    found = run_capacities(plan, kept_share, replicas, jobs=jobs, use_cache=use_cache)
    for message in few_promises(found):
        warn(message)
    if as_json:
        print_json(document_of_capacities(found))
    else:
        _print_table(found)


def _print_table(found: PromiseCapacities) -> None:
    from rich.text import Text

    from cli.render.capacity_report import capacity_table, legend_of_capacities, title_of_capacities
    from cli.terminal.output import is_plain_ascii, print_line, stdout_console, width_of

    console = stdout_console()
    width, ascii_only = width_of(console, narrowest=_NARROWEST), is_plain_ascii(console)
    first, *others = title_of_capacities(found)
    print_line(console, Text(first, style="bold"))
    for line in others:
        print_line(console, Text(line, style="dim"))
    console.print()
    console.print(capacity_table(found, width=width, ascii_only=ascii_only), width=width)
    console.print()
    for line in legend_of_capacities(found):
        print_line(console, Text(line, style="dim"))
