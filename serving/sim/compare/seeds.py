"""Seeds of a comparison, and what they are for: tuning below FIRST_REPORTING_SEED, then reporting.

Values that are chosen by looking at results are chosen on the tuning seeds; results are reported on
seeds that no choice has seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from serving.workload_errors import InvalidWorkload

FIRST_REPORTING_SEED = 10
MAX_SEEDS = 1000
MAX_SEED = 2**31 - 1


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise InvalidWorkload unless there are 1 to MAX_SEEDS, each once and from 0 to MAX_SEED."""
    if not 1 <= len(seeds) <= MAX_SEEDS:
        reason = f"the number of seeds must be between 1 and {MAX_SEEDS}"
        raise InvalidWorkload("seeds", len(seeds), reason)
    for seed in seeds:
        if not 0 <= seed <= MAX_SEED:
            raise InvalidWorkload("seeds", seed, f"must be between 0 and {MAX_SEED}")
    if len(set(seeds)) < len(seeds):
        raise InvalidWorkload("seeds", tuple(seeds), "give each seed only once")


def purpose_of(seeds: Sequence[int]) -> str | None:
    """ "tuning" or "reporting"; None if there are seeds of both kinds."""
    if max(seeds) < FIRST_REPORTING_SEED:
        return "tuning"
    return "reporting" if min(seeds) >= FIRST_REPORTING_SEED else None


def seeds_text(seeds: Sequence[int]) -> str:
    """For people: `seeds 10-11 (for reporting)`; consecutive seeds are shown as a range."""
    ranges: list[list[int]] = []
    for seed in sorted(seeds):
        if ranges and seed == ranges[-1][1] + 1:
            ranges[-1][1] = seed
        else:
            ranges.append([seed, seed])
    shown = ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges)
    purpose = purpose_of(seeds)
    noun = "seed" if len(seeds) == 1 else "seeds"
    return f"{noun} {shown}" + (f" (for {purpose})" if purpose else "")
