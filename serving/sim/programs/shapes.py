"""Shapes of compound programs: how a program's tokens are divided into stages and calls."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from serving.sim.programs.lengths import AGENT_TURN, MAX_CALL_TOKENS, LengthPair
from serving.sim.programs.programs import Call, Stage

TOOL_MEDIAN_S = 1.0
TOOL_SIGMA = 0.5
"""Seconds of a tool: lognormal (assumed: no table has them)."""

SHARE_SIGMA = 0.3
"""Lognormal sigma of a call's share, relative to other calls of its type (assumed)."""

_Share = tuple[str, float, float]
"""Of a call: its step, and its shares in the program's prompt tokens and in its output tokens."""

# Mean prompt and output tokens of the calls in 64 workflows of JITServe's deep-research trace
# (UIUC-MLSys/JITServe), of which 27 searched once and 37 twice; a search was 1, 2 or 3 calls.
_QUERY, _RESEARCH = ("query", 462, 57), ("research", 173, 664)
_REFLECTION, _ANSWER = ("reflection", 3400, 78), ("answer", 3555, 748)
_TWO_ROUNDS = 37 / 64
_SEARCHES = (0.7, 0.2, 0.1)

THOUGHT_STEPS = 2
THOUGHTS = 3
"""Depth of the tree, and thoughts per step. Source: Tempo, section 6.1."""

_MEAN_TURNS, _TURNS_STD, _MAX_TURNS = 2.7, 1.1, 8

LONG_LOOP_CALLS = (20, 100)
"""Fewest and most calls of a long loop."""

_P90_CALLS, _P99_CALLS = 20, 86  # TraceLab (2026): steps that tools start within a request
_CALLS_EXPONENT = math.log(10) / math.log(_P99_CALLS / _P90_CALLS)
_FIRST_CONTEXT_TOKENS = 2_000
_MAX_CONTEXT_TOKENS = 60_000


def deep_research(rng: np.random.Generator, *, totals: LengthPair) -> tuple[Stage, ...]:
    """Query, then one or two rounds of search and reflection, then the answer.

    4 or 6 stages; their frequencies, and each call's share of the program's `totals`, are those of
    the workflows above. A tool of about TOOL_MEDIAN_S runs before each search (assumed).
    """
    rounds = 2 if rng.random() < _TWO_ROUNDS else 1
    stages: list[tuple[Sequence[_Share], float]] = [([_QUERY], 0.0)]
    for _ in range(rounds):
        searches = int(rng.choice(len(_SEARCHES), p=_SEARCHES)) + 1
        stages += [([_RESEARCH] * searches, tool_seconds(rng)), ([_REFLECTION], 0.0)]
    stages.append(([_ANSWER], 0.0))
    return _divide(rng, totals, stages)


def tree_of_thoughts(rng: np.random.Generator, *, totals: LengthPair) -> tuple[Stage, ...]:
    """In each step THOUGHTS calls propose and as many evaluate; a last call answers.

    5 stages, 13 calls of equal expected shares (assumed). With the chatbot's compound requests (Wu
    (2025), table 6.1) these calls are as long as the chatbot's single ones. Every call repeats the
    problem as its prefix, of half the shortest prompt's length (assumed).
    """
    steps = ["propose", "evaluate"] * THOUGHT_STEPS
    stages = [([(step, 1.0, 1.0)] * THOUGHTS, 0.0) for step in steps]
    stages.append(([("answer", 1.0, 1.0)], 0.0))
    divided = _divide(rng, totals, stages)
    problem = min(call.prompt_tokens for stage in divided for call in stage.calls) // 2
    return tuple(
        Stage(tuple(call._replace(shared_prefix_tokens=problem) for call in stage.calls))
        for stage in divided
    )


def tool_loop(rng: np.random.Generator, *, turns: LengthPair) -> tuple[Stage, ...]:
    """Turns of one call each, with a tool in between; a prompt repeats the whole conversation.

    2.7 +- 1.1 turns (SLOs-Serve, table 4: a normal number, rounded, at least 1). Each turn has new
    prompt tokens and an answer of the lengths `turns` (the table does not say whether its lengths
    are per turn or per request; per turn is assumed), and a tool of about TOOL_MEDIAN_S (assumed).
    """
    drawn = round(rng.normal(_MEAN_TURNS, _TURNS_STD))
    return _loop(rng, min(max(drawn, 1), _MAX_TURNS), turns, most_tokens=MAX_CALL_TOKENS)


def long_tool_loop(rng: np.random.Generator) -> tuple[Stage, ...]:
    """A loop like `tool_loop` of 20 to 100 calls, as of a coding agent.

    The number of calls has the Pareto tail through the P90 and P99 of TraceLab (2026). The context
    begins with a system prompt and a task of _FIRST_CONTEXT_TOKENS, and each call appends a turn of
    the lengths AGENT_TURN, up to a prompt of _MAX_CONTEXT_TOKENS (both assumed).
    """
    fewest, most = LONG_LOOP_CALLS
    num_calls = min(round(fewest * (1.0 - rng.random()) ** (-1.0 / _CALLS_EXPONENT)), most)
    return _loop(
        rng,
        num_calls,
        AGENT_TURN,
        context=_FIRST_CONTEXT_TOKENS,
        most_tokens=_MAX_CONTEXT_TOKENS,
    )


def _loop(
    rng: np.random.Generator,
    num_turns: int,
    turns: LengthPair,
    *,
    context: int = 0,
    most_tokens: int,
) -> tuple[Stage, ...]:
    """Turns of one call each; a prompt repeats the context, and is cut at most_tokens."""
    stages = []
    for turn in range(num_turns):
        prompt = min(context + turns.prompt.sample(rng), most_tokens)
        call = Call(prompt, turns.output.sample(rng), shared_prefix_tokens=prompt, step="turn")
        stages.append(Stage((call,), tool_seconds(rng) if turn else 0.0))
        context = prompt + call.output_tokens
    return tuple(stages)


def tool_seconds(rng: np.random.Generator) -> float:
    """Draw the seconds of one tool."""
    return TOOL_MEDIAN_S * math.exp(TOOL_SIGMA * rng.standard_normal())


def _divide(
    rng: np.random.Generator, totals: LengthPair, stages: Sequence[tuple[Sequence[_Share], float]]
) -> tuple[Stage, ...]:
    """Draw a program's totals and give each call its share, at least one token."""
    steps = [step for calls, _ in stages for step, *_ in calls]
    shares = np.array([share for calls, _ in stages for _, *share in calls], dtype=np.float64)
    shares *= np.exp(SHARE_SIGMA * rng.standard_normal(shares.shape))
    shares *= (totals.prompt.sample(rng), totals.output.sample(rng)) / shares.sum(axis=0)
    tokens = np.clip(np.rint(shares), 1, MAX_CALL_TOKENS).astype(int).tolist()
    calls = iter(
        [
            Call(prompt, output, step=step)
            for (prompt, output), step in zip(tokens, steps, strict=True)
        ]
    )
    return tuple(Stage(tuple(next(calls) for _ in each), tool_s) for each, tool_s in stages)
