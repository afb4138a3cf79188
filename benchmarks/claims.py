"""The papers' headline claims, each in its own setting, beside what is measured of them here.

    python -m benchmarks.claims [--paper wu] [--data FOLDER] [--seeds 2] [--jobs 1] [--json]

All in virtual time, with the production scheduler. Each paper's setting is rebuilt as far as the
paper gives it; what it leaves open is assumed, and the assumptions are changed one at a time where
that shows what a ratio hangs on. "differs" marks a measured span that does not overlap the claimed
one, even if ratios of searched rates are off by the 10% at which a search ends. "unknown" is a span
of which a part could not be measured. The ratio is the highest measured value / the highest claimed
one. The causes are those of the runs in docs/results.md. Seeds are 10 and up; the settings were
chosen on seeds below 10. Without --data, clustered arrivals (gamma) replace Azure's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from benchmarks import claims_bari, claims_chen, claims_huang, claims_wu, claims_zhang
from benchmarks.claims_lab import Lab, azure_arrivals
from benchmarks.claims_table import PaperResult, table
from benchmarks.command import check_once, exit_code, parser_of, positive, print_result, say
from benchmarks.comparing import session

PAPERS: Mapping[str, Callable[[Lab], PaperResult]] = MappingProxyType(
    {
        "wu": claims_wu.measure,
        "zhang": claims_zhang.measure,
        "huang": claims_huang.measure,
        "chen": claims_chen.measure,
        "bari": claims_bari.measure,
    }
)
"""First author -> the function that measures the paper's claims."""

FIRST_SEED = 10


def simulate(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    check_once("--paper", arguments.paper or ())
    azure = azure_arrivals(arguments.data)
    seeds = tuple(range(arguments.first_seed, arguments.first_seed + arguments.seeds))
    results = []
    with session(arguments.jobs) as running:
        lab = Lab(running, seeds, azure, arguments.window_s, arguments.warmup_s)
        for paper in arguments.paper or PAPERS:
            say(f"{paper}: begins")
            results.append(PAPERS[paper](lab))
    result = {
        "simulated": True,
        "seeds": seeds,
        "azure_arrivals": azure is not None,
        "claims": [each.document() for result in results for each in result.claims],
        "changes": [each.document() for result in results for each in result.changes],
    }
    print_result(result, table(results), as_json=arguments.json)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--paper", action="append", choices=PAPERS, help="default: all")
    parser.add_argument("--data", type=Path, help="folder with traces/: Azure's conversations")
    parser.add_argument("--seeds", type=positive, default=2, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help=f"default: {FIRST_SEED}")
    parser.add_argument("--window-s", type=float, help="default: each setting's own")
    parser.add_argument("--warmup-s", type=float, help="default: each setting's own")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=positive, default=cores, help="processes at once")
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
