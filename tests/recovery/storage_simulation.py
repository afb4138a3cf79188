"""Runs the recovery code on a simulated unreliable store, and counts what went wrong.

    python -m tests.recovery.storage_simulation --max-schedules 0 # all schedules with few faults
    python -m tests.recovery.storage_simulation --seeds 2000      # many faults at random as well

For each schedule that went wrong it prints what happened and the command that repeats exactly that.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.testing import (
    CRASHES,
    CRASHES_IN_ANY_ORDER,
    LATE_COMMITS,
    LATE_RACES,
    RACES,
    REFUSALS,
    STALLS,
    Played,
    Report,
    explore,
    explore_seeds,
    replay,
    replay_seed,
)
from tests.recovery.simulated_flows import FLOWS, scenario_of

BUDGETS = {
    "crashes": CRASHES,
    "crashes-in-any-order": CRASHES_IN_ANY_ORDER,
    "late-commits": LATE_COMMITS,
    "refusals": REFUSALS,
    "races": RACES,
    "late-races": LATE_RACES,
    "stalls": STALLS,
}

PROGRESS_S = 2.0
"""Seconds between two lines of progress."""


@dataclass(slots=True)
class Total:
    """The sum of all reports, and how to repeat what went wrong."""

    num_seeds: int = 0
    num_interleavings: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, Any]] = field(default_factory=list)

    def add(self, report: Report, flow: str, budget: str | None) -> None:
        """Count a report; without a budget its schedules are those of seeds."""
        if budget is None:
            self.num_seeds += report.num_schedules
        else:
            self.num_interleavings += report.num_schedules
        self.faults += report.faults
        for key, played in report.failures.items():
            self.violations.append(
                {
                    "command": _command(flow, budget, key),
                    "wrong": list(played.violations),
                    "schedule": list(played.lines),
                }
            )


class Progress:
    """Says on stderr, every few seconds, what is being tried."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()
        self.what = ""

    def __call__(self, num_schedules: int) -> None:
        if time.monotonic() > self._said_s + PROGRESS_S:
            self._said_s = time.monotonic()
            sys.stderr.write(f"{self.what}: {num_schedules} schedules\n")


def main() -> int:
    """Try the schedules; returns 1 if any went wrong."""
    arguments = _arguments()
    logging.disable(logging.CRITICAL)  # the runtime warns of each refused commit
    if arguments.seed is not None or arguments.schedule is not None:
        return _repeat(arguments)
    total, progress = Total(), Progress()
    flows = FLOWS if arguments.flow is None else [arguments.flow]
    for flow in flows:
        for budget in BUDGETS if arguments.faults is None else [arguments.faults]:
            progress.what = f"{flow}, {budget}"
            limit = arguments.max_schedules or None
            report = explore(
                scenario_of(flow), BUDGETS[budget], max_schedules=limit, progress=progress
            )
            total.add(report, flow, budget)
    for at, flow in enumerate(flows):
        progress.what = f"{flow}, by seeds"
        seeds = range(at, arguments.seeds, len(flows))
        total.add(explore_seeds(scenario_of(flow), seeds, progress=progress), flow, None)
    sys.stdout.write(_as_json(total) if arguments.json else _as_text(total))
    return int(bool(total.violations))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flow", choices=FLOWS, help="only this flow")
    parser.add_argument("--faults", choices=BUDGETS, help="only schedules with these faults")
    parser.add_argument("--seeds", type=int, default=0, help="number of schedules at random")
    parser.add_argument(
        "--max-schedules",
        type=int,
        default=200,
        help="for each flow and budget of faults, few faults first; 0: all of them (default: 200)",
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, help="repeat one seed; needs --flow")
    parser.add_argument("--schedule", help="repeat one schedule; needs --flow and --faults")
    arguments = parser.parse_args()
    is_repeated = arguments.seed is not None or arguments.schedule is not None
    if is_repeated and arguments.flow is None:
        parser.error("--seed and --schedule need --flow")
    if arguments.schedule is not None and arguments.faults is None:
        parser.error("--schedule needs --faults")
    return arguments


def _repeat(arguments: argparse.Namespace) -> int:
    scenario = scenario_of(arguments.flow)
    played: Played
    if arguments.seed is not None:
        played = replay_seed(scenario, arguments.seed)
    else:
        schedule = [int(each) for each in arguments.schedule.split(".") if each]
        played = replay(scenario, BUDGETS[arguments.faults], schedule)
    sys.stdout.write(f"{played}\n")
    return int(bool(played.violations))


def _command(flow: str, budget: str | None, key: int | Sequence[int]) -> str:
    what = f"python -m tests.recovery.storage_simulation --flow {flow}"
    if isinstance(key, int):
        return f"{what} --seed {key}"
    return f"{what} --faults {budget} --schedule {'.'.join(map(str, key))}"


def _as_json(total: Total) -> str:
    document = {
        "seeds": total.num_seeds,
        "interleavings": total.num_interleavings,
        "faults": total.faults,
        "violations": total.violations,
    }
    return json.dumps(document) + "\n"


def _as_text(total: Total) -> str:
    faults = ", ".join(f"{kind} {num}" for kind, num in sorted(total.faults.items()))
    lines = [
        f"{total.num_seeds} seeds and {total.num_interleavings} interleavings",
        f"faults: {faults}",
        f"{len(total.violations)} schedules went wrong",
    ]
    for each in total.violations:
        lines += ["", each["command"], *each["schedule"]]
        lines += [f"WRONG: {sentence}" for sentence in each["wrong"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
