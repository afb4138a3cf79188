"""Real workflows with simulated stage times of an A100.

The workflows' token counts are real; the files have no times. Each stage is simulated alone on the
engine: all its calls arrive at once, prompts are prefilled in order of arrival within a token
budget per step, and every call with a complete prompt gets one token per step.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from benchmarks.data_files import Call, DataMissing, read_object, read_workflows
from patterns import LlmNode, PatternGraph
from serving.step_cost import STEP_COSTS, Composition

STEP_TOKENS = 2048
"""Token budget of a step, for prefills and decodes together."""

FORMULA = (
    "step = max(9.71+0.0317*n, 6.33+0.0670*n) + [decode>0]*(0.61+7.8e-5*sum_ctx_decode)"
    " + sum_over_prefill_chunks(0.51+3.3e-6*c*(kv+c/2)) + lm_head(0.52) + overhead(~1.5)"
)
"""The formula of COST; the file with the fit must contain the same one."""

FIT = Path("perf", "a100_llama3_8b_fit.json")
DATASETS = {
    "deep_research": ("jitserve_deepresearch_sample.json", "state", "requests"),
    "tree_of_thoughts": ("tot_game24_dag.json", "kind", "calls"),
}
"""Name -> file, and its keys of a stage's kind and of a stage's calls."""

COST = STEP_COSTS["a100-llama3-8b"]


def call_seconds(calls: Sequence[Call]) -> list[float]:
    """Simulated seconds from the arrival of all calls to the last token of each.

    A call's samples share its prompt, which is prefilled once, and are generated in parallel.
    """
    seconds = [0.0] * len(calls)
    unread = deque(range(len(calls)))
    read = 0  # computed tokens of the first unread prompt
    last_steps: list[tuple[int, int]] = []  # heap of (step of a call's last token, call)
    decodes = decode_contexts = step = 0
    now_s = 0.0
    while unread or last_steps:
        step += 1
        budget = STEP_TOKENS - decodes
        chunks, completed_prompts = [], []
        while unread and budget > 0:
            prompt_tokens = calls[unread[0]][0]
            tokens = min(prompt_tokens - read, budget)
            chunks.append((tokens, read))
            budget -= tokens
            read += tokens
            if read == prompt_tokens:
                completed_prompts.append(unread.popleft())
                read = 0
        now_s += COST.seconds(
            Composition(
                decodes + sum(tokens for tokens, _ in chunks),
                decodes,
                decode_contexts,
                tuple(chunks),
            )
        )
        decode_contexts += decodes
        for call in completed_prompts:  # the step that completes a prompt yields the first token
            prompt_tokens, output_tokens, samples = calls[call]
            heapq.heappush(last_steps, (step + max(output_tokens, 1) - 1, call))
            decodes += samples
            decode_contexts += samples * (prompt_tokens + 1)
        while last_steps and last_steps[0][0] == step:
            call = heapq.heappop(last_steps)[1]
            prompt_tokens, output_tokens, samples = calls[call]
            decodes -= samples
            decode_contexts -= samples * (prompt_tokens + max(output_tokens, 1))
            seconds[call] = now_s
    return seconds


def staged_graph(stages: Sequence[Sequence[LlmNode]]) -> PatternGraph:
    """The graph in which each call depends on all calls of the previous stage."""
    nodes: list[LlmNode] = []
    edges: list[tuple[int, int]] = []
    previous = range(0)
    for stage in stages:
        members = range(len(nodes), len(nodes) + len(stage))
        edges += [(parent, child) for parent in previous for child in members]
        nodes += stage
        previous = members
    return PatternGraph(tuple(nodes), tuple(edges))


def load_graphs(data: Path, dataset: str) -> list[PatternGraph]:
    """The workflows of one of DATASETS with simulated times.

    A call that samples several answers counts as one call with the tokens of all of them.

    Raises:
        DataMissing: there is no such file, or the file with the fit has another formula.
        BadData: a file cannot be read or is invalid.
    """
    name, name_key, calls_key = DATASETS[dataset]
    _check_formula(data.resolve().parent / FIT)
    graphs = []
    for workflow in read_workflows(data / name, name_key=name_key, calls_key=calls_key):
        stages = []
        for kind, calls in workflow:
            nodes = [
                LlmNode(
                    f"llama3-8b:{kind}",
                    call.prompt_tokens,
                    call.output_tokens * call.samples,
                    seconds,
                )
                for call, seconds in zip(calls, call_seconds(calls), strict=True)
            ]
            stages.append(nodes)
        graphs.append(staged_graph(stages))
    return graphs


def _check_formula(path: Path) -> None:
    found = read_object(path).get("formula")
    if found != FORMULA:
        reason = "it has another formula than this benchmark, which must be updated"
        raise DataMissing(path, f"{reason}:\n  file:      {found}\n  benchmark: {FORMULA}")
