"""Data sets of completed calls for lengths.py.

azure: chat trace. Its identities are synthetic and CARRY SIGNAL BY CONSTRUCTION: in 4 of 5 calls
    the identity is the power of two below the true length (like a step with a specific purpose), in
    the fifth it is drawn at random. A call ends 0.5 s + 30 ms per token after its start.
azure_random: the same trace, identities drawn from 8 names: NO SIGNAL. Only the length of the
    prompt is left to learn from.
deep_research: real workflows. Steps are their inferred states; max_tokens is assumed to be 1024,
    where the recorded lengths are cut off.
tree_of_thoughts: real totals; the split over calls is reconstructed, and the value calls' lengths
    are nearly the same within a run. max_tokens is 1000, as that program sets it.

Workflows run one after another; the calls of a stage start together, so that none can learn from
another one of its stage.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.data_files import BadData, Stages, read_rows, read_workflows, tokens_of
from serving.analyzer.features import CallFeatures
from serving.analyzer.fitted import MIN_CALLS
from serving.analyzer.samples import Sample

Split = tuple[list[Sample], list[Sample]]

AZURE = Path("traces/AzureLLMInferenceTrace_conv.csv")
DEEP_RESEARCH = Path("agentic/jitserve_deepresearch_sample.json")
TREE_OF_THOUGHTS = Path("agentic/tot_game24_dag.json")


def azure(path: Path, *, signal: bool) -> Split:
    """The chat trace with synthetic identities, with or without signal."""
    rng = random.Random(0)
    samples: list[Sample] = []
    for line, row in read_rows(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        began_s = _seconds(path, line, row["TIMESTAMP"])
        prompt_tokens, tokens = (
            tokens_of(path, f"line {line}: {column}", row[column])
            for column in ("ContextTokens", "GeneratedTokens")
        )
        has_signal = signal and rng.random() < 0.8
        band = tokens.bit_length() - 1 if has_signal else rng.randrange(2, 10)
        features = CallFeatures(identity=f"chat:{band}", prompt_tokens=prompt_tokens)
        samples.append(Sample(features, tokens, began_s, began_s + 0.5 + 0.03 * tokens))
    cut = 2 * len(samples) // 3
    return samples[:cut], samples[cut:]


def _seconds(path: Path, line: int, timestamp: str) -> float:
    try:
        # The trace has seven decimals, Python parses six.
        return datetime.fromisoformat(timestamp[:26]).timestamp()
    except (ValueError, OverflowError) as cause:
        raise BadData(path, f"line {line}: TIMESTAMP is not a time: {timestamp[:40]!r}") from cause


def deep_research(path: Path) -> Split:
    """Deep-research workflows."""
    runs = read_workflows(path, name_key="state", calls_key="requests")
    return workflows(runs, max_tokens=1024)


def tree_of_thoughts(path: Path) -> Split:
    """Tree-of-Thoughts runs on the Game of 24."""
    runs = read_workflows(path, name_key="kind", calls_key="calls")
    return workflows(runs, max_tokens=1000)


def workflows(runs: Sequence[Stages], *, max_tokens: int) -> Split:
    """The calls of runs that follow one another; a time unit is one stage."""
    cut = 2 * len(runs) // 3
    parts: Split = ([], [])
    clock = 0
    for number, run in enumerate(runs):
        ended: list[int] = []
        for stage, (name, calls) in enumerate(run):
            for place, call in enumerate(calls):
                features = CallFeatures(
                    identity=f"model:{name}",
                    prompt_tokens=call.prompt_tokens,
                    max_tokens=max_tokens,
                    stage=stage,
                    position=len(ended) + place,
                    previous_tokens=ended[-1] if ended else 0,
                    run_mean_tokens=statistics.fmean(ended) if ended else 0.0,
                )
                parts[number >= cut].append(Sample(features, call.output_tokens, clock, clock + 1))
            ended.extend(call.output_tokens for call in calls)
            clock += 1
    return parts


DATA_SETS: dict[str, tuple[Path, Callable[[Path], Split]]] = {
    "azure": (AZURE, lambda path: azure(path, signal=True)),
    "azure_random": (AZURE, lambda path: azure(path, signal=False)),
    "deep_research": (DEEP_RESEARCH, deep_research),
    "tree_of_thoughts": (TREE_OF_THOUGHTS, tree_of_thoughts),
}
"""Name -> the file, and the function that splits it into training and test calls."""


def load(data: Path, name: str) -> Split:
    """The training and test calls of a data set.

    Raises:
        DataMissing: its file does not exist.
        BadData: its file is invalid or has too few calls.
    """
    file, split = DATA_SETS[name]
    train, test = split(data / file)
    if len(train) < MIN_CALLS or not test:
        calls = f"{len(train)} training and {len(test)} test calls"
        raise BadData(data / file, f"it has {calls}; at least {MIN_CALLS} and 1 are needed")
    return train, test
