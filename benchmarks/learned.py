"""Goodput of calm by what is known of the future: learned from past runs, or given.

    python -m benchmarks.learned [--data FOLDER] [--workload agentic] [--loads 1,2] [--seeds 2]
        [--window-s 120] [--jobs 2] [--json]

All in virtual time, with the production scheduler. Learned predictions come from the production
analyzer and pattern matching: programs of a first period are recorded under fcfs, a fit makes a
pattern library and a length model of them, and these predict the programs that are measured.
"no matching" predicts only lengths, "no analyzer" only futures and sub-deadlines. Noisy predictions
are the truth with an error, the oracle's are the truth. A trace is divided: its even workflows are
learned from, its odd ones are measured. Without --data the traces are left out. Seeds are 10 and
up, which nothing was tuned on.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.command import exit_code, print_result, say
from benchmarks.comparing import (
    OURS,
    Session,
    config_of,
    document,
    format_ratio,
    loads,
    options,
    ratio,
    session,
    verdict,
)
from benchmarks.data_files import read_object
from cli.errors import BadInput
from orchestrator.learning.simulated_learning import SimulatedLearning
from serving.policies.table import PolicySpec
from serving.sim.compare.compare import Goodputs, Plan
from serving.sim.compare.experiment_config import (
    FIRST_PERIOD_RUNS,
    ExperimentConfig,
    FirstPeriod,
)
from serving.sim.workloads.load_generator import Source

FIRST_SEED = 10
KEPT_OF_ORACLE = 0.9
WARM_UP_RUNS = (0, 25, 100, 500)
ORACLE, LEARNED = "oracle", f"learned, {FIRST_PERIOD_RUNS} runs"
GENERATORS = ("mixed", "agentic")
TRACES = MappingProxyType(
    {
        "deep research": "agentic/jitserve_deepresearch_sample.json",
        "trees of thoughts": "agentic/tot_game24_dag.json",
    }
)


class Workload(NamedTuple):
    """Programs that are measured, and those that are learned from; None: of the same generator."""

    source: Source
    learned_from: Source | None = None


class Row(NamedTuple):
    """Goodput of one kind of predictions at one load, a second, averaged over the seeds."""

    workload: str
    load: float
    predictions: str
    goodput: Goodputs
    to_oracle: tuple[float | None, float | None]

    @property
    def is_ok(self) -> bool | None:
        """Whether learned predictions keep enough of the oracle's goodput; None for others."""
        if self.predictions != LEARNED:
            return None
        return all(share is None or share >= KEPT_OF_ORACLE for share in self.to_oracle)


def kinds(config: ExperimentConfig, learned_from: Source | None) -> dict[str, ExperimentConfig]:
    """What is known of the future -> a config with it; the oracle first."""

    def learned(num_runs: int, learning: SimulatedLearning | None = None) -> ExperimentConfig:
        period = FirstPeriod(
            learning=learning or SimulatedLearning(), num_runs=num_runs, source=learned_from
        )
        return replace(config, predictions="learned", first_period=period)

    return {
        ORACLE: replace(config, predictions="oracle"),
        **{f"learned, {num_runs} runs": learned(num_runs) for num_runs in WARM_UP_RUNS},
        "no matching": learned(FIRST_PERIOD_RUNS, SimulatedLearning(has_futures=False)),
        "no analyzer": learned(FIRST_PERIOD_RUNS, SimulatedLearning(has_lengths=False)),
        "noisy": replace(config, predictions="noisy"),
        "none": replace(config, predictions="none"),
    }


def measured(
    name: str, workload: Workload, arguments: argparse.Namespace, running: Session
) -> list[Row]:
    """All kinds of predictions on one workload."""
    config = replace(config_of(arguments), source=workload.source)
    goodputs: dict[tuple[str, float], Goodputs] = {}
    for kind, kind_config in kinds(config, workload.learned_from).items():
        plan = Plan(
            config=kind_config,
            policies=(PolicySpec(OURS),),
            loads=loads(arguments),
            seeds=tuple(range(FIRST_SEED, FIRST_SEED + arguments.seeds)),
            with_bound=False,
        )
        comparison = running.compare(f"{name}, {kind}", plan)
        for load in plan.loads:
            columns = zip(*comparison.goodputs(OURS, load), strict=True)
            goodputs[kind, load] = Goodputs(*map(fmean, columns))
    return [
        Row(name, load, kind, goodput, _ratios(goodput, goodputs[ORACLE, load]))
        for (kind, load), goodput in goodputs.items()
    ]


def _ratios(goodput: Goodputs, oracle: Goodputs) -> tuple[float | None, float | None]:
    tokens, requests = (ratio(*pair) for pair in zip(goodput, oracle, strict=True))
    return tokens, requests


def workloads_in(data: Path | None, folder: Path) -> dict[str, Workload]:
    """The workloads by name; of a trace the two halves are written into a folder."""
    found = {name: Workload(Source.generator(name)) for name in GENERATORS}
    if data is None:
        say("without --data, the traces of deep research and trees of thoughts are left out")
        return found
    for name, path in TRACES.items():
        trace = read_object(data / path)
        even, odd = (folder / f"{Path(path).stem}-{half}.json" for half in ("even", "odd"))
        for start, half in enumerate((even, odd)):
            half.write_text(json.dumps(trace | {"workflows": trace["workflows"][start::2]}))
        found[name] = Workload(Source.file(odd), Source.file(even))
    return found


def table(rows: Sequence[Row]) -> str:
    """The rows as a text table, workload by workload."""
    width = max(len(row.predictions) for row in rows)
    lines = []
    for workload, load in dict.fromkeys((row.workload, row.load) for row in rows):
        lines += [
            f"{workload} at {load:g}x: simulated goodput a second",
            f"{'':{width}}{'tokens':>10}{'requests':>10}   to the oracle",
        ]
        for row in rows:
            if (row.workload, row.load) == (workload, load):
                shares = "".join(f"{format_ratio(share):>6}" for share in row.to_oracle)
                lines.append(
                    f"{row.predictions:{width}}{row.goodput.tokens:10,.0f}"
                    f"{row.goodput.requests:10.3f}  {shares}  {verdict(row.is_ok)}".rstrip()
                )
    return "\n".join(lines)


def simulate(arguments: argparse.Namespace) -> None:
    """Simulate and print."""
    with tempfile.TemporaryDirectory() as folder, session(arguments.jobs) as running:
        workloads = workloads_in(arguments.data, Path(folder))
        rows = [
            row
            for name in _named(arguments.workload, workloads)
            for row in measured(name, workloads[name], arguments, running)
        ]
    result = document(
        arguments,
        rows=[row._asdict() | {"goodput": row.goodput._asdict(), "ok": row.is_ok} for row in rows],
    )
    print_result(result, table(rows), as_json=arguments.json)


def _named(asked: Sequence[str] | None, workloads: Mapping[str, Workload]) -> Sequence[str]:
    for name in asked or ():
        if name not in workloads:
            known = ", ".join([*GENERATORS, *TRACES])
            raise BadInput(f"--workload {name!r}: known are {known}; the traces need --data")
    return asked or list(workloads)


def main(given: Sequence[str] | None = None) -> int:
    """Simulate and print; returns the exit code."""
    parser = options(__doc__, loads="1.0,2.0", seeds=2)
    parser.set_defaults(window_s=120.0)
    parser.add_argument("--data", type=Path, help="folder with agentic/: the two traces")
    parser.add_argument("--workload", action="append", help="default: all")
    return exit_code(partial(simulate, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
