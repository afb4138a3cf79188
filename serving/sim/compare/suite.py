"""The suite: one comparison for each of many kinds of work, on the same policies, loads and seeds.

A policy that is tuned on one workload may be bad at others; so a result that is meant in general is
one over the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from serving.sim.compare.capacity import CAPACITY_SEEDS, capacity_of, measurements_of
from serving.sim.compare.compare import Comparison, Plan, comparison_of, points_of
from serving.sim.compare.runner import Runner
from serving.sim.compare.task_progress import Progress, TrackedTasks
from serving.sim.workloads.load_generator import Source

MIN_WINDOW_S = 20.0
"""A window that is shortened by an entry's share is not shortened below this."""


class Entry(NamedTuple):
    """The conditions under which a workload of the suite runs.

    Attributes:
        prefix_caching: whether calls of a program may share the KV cache of a common prefix.
        time_share: factor on warm-up and window: below 1 for so many small programs that the whole
            window would take hours and show no more, above 1 for few programs that last minutes.
    """

    prefix_caching: bool = False
    time_share: float = 1.0


SUITE: Mapping[str, Entry] = MappingProxyType(
    {
        "mixed": Entry(),
        "agentic": Entry(),
        "chat": Entry(),
        "coder": Entry(),
        "summarizer": Entry(),
        "chatbot": Entry(),
        "reasoning": Entry(),
        "tools": Entry(),
        "sharegpt": Entry(),
        "long_answers": Entry(),
        "code_completion": Entry(),
        "documents": Entry(),
        "long_agents": Entry(prefix_caching=True, time_share=2.0),
        "tiny": Entry(time_share=0.1),
        "heavy_tails": Entry(),
        "day": Entry(),
        "two_tiers": Entry(),
        "near_and_far": Entry(),
        "streamed_research": Entry(),
        "thinking": Entry(),
        "two_paces": Entry(),
        "half_promised": Entry(),
    }
)
"""By name of the workload, which is one of WORKLOADS."""


def suite_plans(plan: Plan, names: Sequence[str] = tuple(SUITE)) -> dict[str, Plan]:
    """The plan of each named entry, in the suite's order.

    Args:
        plan: simulated; its source and prefix caching are replaced by each entry's, and programs
            arrive by the workload's own process.
        names: of SUITE.
    """
    assert plan.live is None, "the suite is simulated"
    return {name: _entry_plan(plan, name, SUITE[name]) for name in SUITE if name in names}


def _entry_plan(plan: Plan, name: str, entry: Entry) -> Plan:
    config = plan.config
    window_s = max(entry.time_share * config.window_s, min(config.window_s, MIN_WINDOW_S))
    return replace(
        plan,
        config=replace(
            config,
            source=Source.generator(name),
            arrivals=None,
            prefix_caching=entry.prefix_caching,
            warmup_s=entry.time_share * config.warmup_s,
            window_s=window_s,
        ),
    )


def compare_suite(
    plans: Mapping[str, Plan],
    runner: Runner,
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> dict[str, Comparison]:
    """Measure all capacities, then run every plan; results do not depend on the other plans.

    Args:
        plans: as from `suite_plans`; simulated.
        on_progress: called before each part, and after each task of all plans.
    Raises:
        As `compare`.
    """
    tracked = TrackedTasks(on_progress, num_tasks=sum(plan.num_tasks for plan in plans.values()))
    measurements = [each for plan in plans.values() for each in measurements_of(plan.config)]
    measured = iter(tracked.run("capacity", runner, measurements))
    capacities = [capacity_of([next(measured) for _ in CAPACITY_SEEDS]) for _ in plans]
    points = [
        points_of(plan, capacity) for plan, capacity in zip(plans.values(), capacities, strict=True)
    ]
    results = iter(tracked.run("runs", runner, [task for each in points for task in each.tasks]))
    comparisons = {}
    for (name, plan), capacity, each in zip(plans.items(), capacities, points, strict=True):
        own: list[dict[str, Any]] = [next(results) for _ in each.tasks]
        comparisons[name] = comparison_of(plan, capacity, each, own, code=runner.code)
    return comparisons
