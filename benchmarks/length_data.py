"""Data sets of finished calls that benchmarks/lengths.py measures on.

azure: chat trace. Its identities are made up and CARRY SIGNAL BY CONSTRUCTION: in 4 of 5 calls the
    identity names the power of two below the true length (a step that knows what it is for), in
    the fifth it is drawn at random. A call ends 0.5 s and 30 ms a token after it began.
azure_random: the same trace, identities drawn from 8 names: NO SIGNAL. The length of the prompt is
    all that is left to learn from.
deep_research: real workflows. Steps are their inferred states; max_tokens is taken to be 1024,
    where the recorded lengths stop.
tree_of_thoughts: real totals; the split over calls is reconstructed, and the values' lengths are
    nearly the same within a run. max_tokens is 1000, as that program asks.

Workflows come one after another; the calls of a stage begin together and know nothing of each
other.
"""

from __future__ import annotations

import csv
import json
import random
import statistics
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from serving.analyzer.features import CallFeatures
from serving.analyzer.samples import Sample

Split = tuple[list[Sample], list[Sample]]
Stages = Sequence[tuple[str, Sequence[tuple[int, int]]]]  # name, (input, output) tokens of calls

AZURE = Path("traces/AzureLLMInferenceTrace_conv.csv")
DEEP_RESEARCH = Path("agentic/jitserve_deepresearch_sample.json")
TREE_OF_THOUGHTS = Path("agentic/tot_game24_dag.json")


def azure(data: Path, *, signal: bool) -> Split:
    """The chat trace with made-up identities, with or without signal."""
    dice = random.Random(0)
    samples: list[Sample] = []
    with (data / AZURE).open(newline="") as file:
        for row in csv.DictReader(file):
            began_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            tokens = int(row["GeneratedTokens"])
            if signal and dice.random() < 0.8:
                band = tokens.bit_length() - 1
            else:
                band = dice.randrange(2, 10)
            features = CallFeatures(
                identity=f"chat:{band}", prompt_tokens=int(row["ContextTokens"])
            )
            samples.append(Sample(features, tokens, began_s, began_s + 0.5 + 0.03 * tokens))
    cut = 2 * len(samples) // 3
    return samples[:cut], samples[cut:]


def deep_research(data: Path) -> Split:
    """Deep-research workflows."""
    document = json.loads((data / DEEP_RESEARCH).read_text())
    return workflows(
        [
            [
                (stage["state"], [(call["in"], call["out"]) for call in stage["requests"]])
                for stage in workflow["stages"]
            ]
            for workflow in document["workflows"]
        ],
        max_tokens=1024,
    )


def tree_of_thoughts(data: Path) -> Split:
    """Tree-of-Thoughts runs on the Game of 24."""
    document = json.loads((data / TREE_OF_THOUGHTS).read_text())
    return workflows(
        [
            [
                (stage["kind"], [(call["in"], call["out"]) for call in stage["calls"]])
                for stage in workflow["stages"]
                if stage["calls"]
            ]
            for workflow in document["workflows"]
        ],
        max_tokens=1000,
    )


def workflows(runs: Sequence[Stages], *, max_tokens: int) -> Split:
    """The calls of runs that come one after another; time is counted in stages."""
    cut = 2 * len(runs) // 3
    parts: Split = ([], [])
    clock = 0
    for number, run in enumerate(runs):
        ended: list[int] = []
        for stage, (name, calls) in enumerate(run):
            for place, (prompt_tokens, output_tokens) in enumerate(calls):
                features = CallFeatures(
                    identity=f"model:{name}",
                    prompt_tokens=prompt_tokens,
                    max_tokens=max_tokens,
                    stage=stage,
                    position=len(ended) + place,
                    previous_tokens=ended[-1] if ended else 0,
                    run_mean_tokens=statistics.fmean(ended) if ended else 0.0,
                )
                parts[number >= cut].append(Sample(features, output_tokens, clock, clock + 1))
            ended.extend(output for _, output in calls)
            clock += 1
    return parts


DATA_SETS: dict[str, tuple[Path, Callable[[Path], Split]]] = {
    "azure": (AZURE, lambda data: azure(data, signal=True)),
    "azure_random": (AZURE, lambda data: azure(data, signal=False)),
    "deep_research": (DEEP_RESEARCH, deep_research),
    "tree_of_thoughts": (TREE_OF_THOUGHTS, tree_of_thoughts),
}
"""By name: the file that must be there, and the calls to train on and to walk through."""
