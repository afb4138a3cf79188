"""Times of matching, fitting and clustering, on patterns that all differ."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import kmedoids  # noqa: F401  # imported here so that its import is not timed

from benchmarks.step_time import staged_graph
from patterns import (
    KeptPattern,
    LlmNode,
    Matcher,
    PatternGraph,
    PatternLibrary,
    Stage,
    StageKernel,
    cluster,
    distances,
    fit_kernel,
    tabulate,
)

NUM_MATCHED = 500
NUM_CLUSTERED = 1000
NUM_CLUSTERS = 100
NUM_PREFIXES = 400
JITTER = 0.2
"""Standard deviation of the logarithm of the factor on each length and time of a sample."""

Run = tuple[Stage, ...]


def synthetic_graphs(application: str, num: int = 50) -> list[PatternGraph]:
    """Synthetic runs with the shape of one of the applications, for use without real ones."""
    rng = random.Random(application)

    def calls(step: str, num_calls: int, output_tokens: int) -> list[LlmNode]:
        return [
            LlmNode(f"llama3-8b:{step}", 300, output_tokens, output_tokens * 0.0125)
            for _ in range(num_calls)
        ]

    def stages() -> Iterator[list[LlmNode]]:
        if application == "deep_research":
            yield calls("generate_query", 1, 80)
            for _ in range(rng.randint(1, 2)):
                yield calls("web_research", rng.randint(1, 3), 800)
                yield calls("reflection", 1, 150)
            yield calls("finalize_answer", 1, 900)
            return
        for _ in range(4):
            yield calls("propose", rng.randint(1, 5), 80)
            yield calls("value", rng.randint(5, 30), 39)

    return [staged_graph(list(stages())) for _ in range(num)]


def jittered(graphs: Sequence[PatternGraph], num: int, *, seed: int) -> list[Run]:
    """`num` runs: copies of the samples in turn, with random factors on lengths and times."""
    rng = random.Random(seed)

    def near(value: float) -> float:
        return value * rng.lognormvariate(0.0, JITTER)

    def run(graph: PatternGraph) -> Run:
        nodes = [
            LlmNode(
                node.identity,
                round(near(node.input_tokens)),
                round(near(node.output_tokens)),
                near(node.seconds),
            )
            for node in graph.nodes
        ]
        return PatternGraph(tuple(nodes), graph.edges).stages

    return [run(graphs[index % len(graphs)]) for index in range(num)]


def measure_speed(graphs: Sequence[PatternGraph]) -> dict[str, float]:
    """Wall times by name; the names end in their units.

    - match_500_ms: match a whole prefix against 500 patterns, and estimate: median.
    - match_500_p99_ms: the same, 99th percentile.
    - extend_500_us: extend a matched prefix by one stage: median.
    - stage_500_us: the same, and estimate the next stage: median.
    - fit_500_s: fit the kernel of 500 patterns.
    - cluster_1000_s: cluster 1,000 patterns, from their stages, to 100 medoids.
    """
    past = jittered(graphs, NUM_MATCHED, seed=0)
    library = PatternLibrary(tuple(KeptPattern(key, run, 0.0) for key, run in enumerate(past)))
    clustered_runs = jittered(graphs, NUM_CLUSTERED, seed=1)
    return {
        **_matching_times(library.matcher, jittered(graphs, NUM_PREFIXES, seed=2)),
        "fit_500_s": _median_s(lambda: fit_kernel(library.table)),
        "cluster_1000_s": _median_s(lambda: _cluster(clustered_runs)),
    }


def _cluster(runs: Sequence[Run]) -> None:
    table = tabulate(runs)
    cluster(distances(table, StageKernel()), NUM_CLUSTERS)


def _matching_times(matcher: Matcher, lives: Sequence[Run]) -> dict[str, float]:
    rng = random.Random(3)
    match_s, extend_s, stage_s = [], [], []
    for live in lives:
        num_revealed = rng.randrange(len(live))
        prefix, stage = live[:num_revealed], live[num_revealed]
        next_calls = [(call.kind, call.identity) for call in stage.calls]
        began_s = time.perf_counter()
        match = matcher.match(prefix)
        match.estimate(next_calls)
        match_s.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        extended = match.extend(stage)
        extend_s.append(time.perf_counter() - began_s)
        extended.estimate()
        stage_s.append(time.perf_counter() - began_s)
    return {
        "match_500_ms": statistics.median(match_s) * 1e3,
        "match_500_p99_ms": statistics.quantiles(match_s, n=100)[98] * 1e3,
        "extend_500_us": statistics.median(extend_s) * 1e6,
        "stage_500_us": statistics.median(stage_s) * 1e6,
    }


def _median_s(work: Callable[[], object], num_repeats: int = 3) -> float:
    seconds = []
    for _ in range(num_repeats):
        began_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began_s)
    return statistics.median(seconds)
