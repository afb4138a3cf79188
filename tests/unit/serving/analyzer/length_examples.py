"""Synthetic applications with answers of a known distribution."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from serving.analyzer.analyzer import RequestAnalyzer
from serving.analyzer.features import CallFeatures
from serving.analyzer.samples import Sample

STEPS = {"plan": 50, "search": 200, "write": 800}  # typical answers, in tokens


def call(step: str = "plan", *, prompt_tokens: int = 100, **changes: object) -> CallFeatures:
    """A call of one step."""
    return CallFeatures(identity=f"model:{step}", prompt_tokens=prompt_tokens, **changes)  # type: ignore[arg-type]


def application(
    num_calls: int, *, seed: int = 0, factor: float = 1.0, max_tokens: int | None = None
) -> list[Sample]:
    """Serial calls; answers depend on the step and grow with the prompt, with noise."""
    rng = random.Random(seed)
    samples = []
    for number in range(num_calls):
        step = rng.choice(list(STEPS))
        prompt_tokens = rng.randrange(50, 2000)
        length = STEPS[step] * (0.5 + prompt_tokens / 2000) * rng.lognormvariate(0.0, 0.4)
        tokens = max(int(factor * length), 1)
        features = call(step, prompt_tokens=prompt_tokens, max_tokens=max_tokens)
        samples.append(
            Sample(features, min(tokens, max_tokens or tokens), float(number), number + 0.5)
        )
    return samples


def run_calls(
    analyzer: RequestAnalyzer,
    samples: Sequence[Sample],
    on_bound: Callable[[Sample, float], None] = lambda sample, bound: None,
) -> float:
    """Estimate and observe each call; returns the share within the bound at level 0.9."""
    num_covered = 0
    for sample in samples:
        estimate = analyzer.estimate(sample.features)
        assert estimate.sketch is not None
        bound = estimate.sketch.tokens[4]
        on_bound(sample, bound)
        num_covered += sample.output_tokens <= bound
        analyzer.observe(sample.features, estimate, sample.output_tokens)
    return num_covered / len(samples)
