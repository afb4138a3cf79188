"""Workloads of further kinds: very short and very long work, loose and tight SLOs, uneven loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np

from serving.sim.programs import lengths, shapes
from serving.sim.programs.lengths import LengthPair, Lengths
from serving.sim.programs.programs import Call, Stage
from serving.sim.workloads.published import MIXED
from serving.sim.workloads.tasks import Stages, Task, Workload, single
from serving.slo import SloKind

MAX_DOCUMENT_TOKENS = 60_000
MIN_DOCUMENT_TOKENS = 5_000

_LABEL_PROMPT = Lengths(100, 0.5, 1_000)
_MAX_LABEL_TOKENS = 5
_HEAVY = LengthPair(Lengths(500, 2.0), Lengths(100, 2.0, 2_048))
_NEAR = LengthPair(Lengths(200, 0.5, 1_000), Lengths(10, 0.5, 25))
_FAR = LengthPair(lengths.DEEP_RESEARCH.prompt, Lengths(1_000, 0.5, 3_000))
_CHAIN_CALLS = 3
_THOUGHT = LengthPair(lengths.REASONING.prompt, Lengths(1_000, 0.5, 3_000))


def _document(rng: np.random.Generator) -> tuple[Stage, ...]:
    """One question over a text of MIN_DOCUMENT_TOKENS to MAX_DOCUMENT_TOKENS."""
    ((call,), _), *_ = single(rng, pair=lengths.DOCUMENTS)
    prompt = min(max(call.prompt_tokens, MIN_DOCUMENT_TOKENS), MAX_DOCUMENT_TOKENS)
    return (Stage((call._replace(prompt_tokens=prompt),)),)


def _label(rng: np.random.Generator) -> tuple[Stage, ...]:
    """One classification; its answer has 1 to _MAX_LABEL_TOKENS tokens, equally often."""
    prompt = _LABEL_PROMPT.sample(rng)
    return (Stage((Call(prompt, int(rng.integers(1, _MAX_LABEL_TOKENS + 1))),)),)


def _thinking(rng: np.random.Generator) -> tuple[Stage, ...]:
    """One call; the second part of its answer is the response to what it has thought."""
    ((call,), _), *_ = single(rng, pair=_THOUGHT)
    answer = lengths.REASONING_RESPONSE.sample(rng)
    thought = call.output_tokens
    return (Stage((call._replace(output_tokens=thought + answer, then_from=thought),)),)


def _streamed_answer(rng: np.random.Generator) -> tuple[Stage, ...]:
    """Deep research; all of its last answer is a stream."""
    *before, ((last,), tool_s) = shapes.deep_research(rng, totals=lengths.DEEP_RESEARCH_PROGRAM)
    return (*before, Stage((last._replace(then_from=0),), tool_s))


def _chain(rng: np.random.Generator, *, pair: LengthPair) -> tuple[Stage, ...]:
    """_CHAIN_CALLS independent calls, one after another, without tools."""
    return tuple(stage for _ in range(_CHAIN_CALLS) for stage in single(rng, pair=pair))


def _task(application: str, kind: SloKind, stages: Stages, share: float = 1.0) -> Task:
    return Task(share=share, application=application, kind=kind, stages=stages)


_COMPLETION = _task(
    "code_completion", SloKind.LATENCY, partial(single, pair=lengths.CODE_COMPLETION)
)
_CHAT = _task("chatbot", SloKind.LATENCY, partial(single, pair=lengths.CHAT))
_HEAVY_CALL = partial(single, pair=_HEAVY)

FAMILIES: Mapping[str, Workload] = MappingProxyType(
    {
        "code_completion": Workload(
            "Splitwise (Patel et al., 2024), section III: medians of prompts (1,500) and answers"
            " (13) of Azure's coding service; their means in its public trace of 2023 (2,048 and"
            " 28). Assumed: lognormal lengths, prompts of at most 8,192 tokens; TTFT 1 s for half"
            " of the streams and 2 s for the others, TBT 0.1 s; clustered arrivals (gamma)",
            (replace(_COMPLETION, ttft_s=1.0), _COMPLETION),
            max_tokens=512,
            arrivals="gamma",
        ),
        "documents": Workload(
            "Mooncake (Qin et al., 2025), table 2: means of prompts (15,325) and answers (149) of"
            " the trace made of ShareGPT, L-Eval and LooGLE. Assumed: lognormal lengths with"
            " medians 12,000 and 100, prompts from 5,000 to 60,000 tokens; half are streams with"
            " TTFT at most 5 times that of an idle A100 with Llama-3-8B and TBT 0.1 s, half have a"
            " deadline of 40 s",
            (
                replace(_task("documents", SloKind.LATENCY, _document), ttft_slowdown=5.0),
                replace(_task("documents", SloKind.DEADLINE, _document), stage_deadline_s=40.0),
            ),
        ),
        "long_agents": Workload(
            "TraceLab (Zhu et al., 2026; arXiv 2606.30560), tables of counts and token lengths:"
            " model calls that tools start within a request of a coding agent (P90 20, P99 86),"
            " P50 and P90 of a Codex call's new prompt tokens (886, 8,310) and answer (184, 939)."
            " Assumed: the requests of 20 calls and more, as a Pareto tail cut at 100; a quarter"
            " of the lengths (medians 222 and 46), lognormal, cut at 2,048 and 1,024 tokens,"
            " as the trace's contexts of 100,000 tokens do not fit the machine; a first context of"
            " 2,000 tokens, tools of about 1 s; 6 s per call, about twice what an idle machine"
            " takes",
            (
                replace(
                    _task("agent", SloKind.COMPOUND, shapes.long_tool_loop),
                    stage_deadline_s=6.0,
                ),
            ),
            backlog_programs=24,
        ),
        "tiny": Workload(
            "Assumed throughout: classification, with lognormal prompts (median 100 tokens, sigma"
            " 0.5), answers of 1 to 5 tokens, and a deadline of 0.5 s",
            (replace(_task("label", SloKind.DEADLINE, _label), stage_deadline_s=0.5),),
            max_tokens=_MAX_LABEL_TOKENS,
        ),
        "heavy_tails": Workload(
            "ServeGen (Xiang et al., 2025): prompts of production services have a lognormal body"
            " and a Pareto tail. Assumed, with an even heavier tail: lognormal lengths of sigma 2,"
            " medians 500 and 100, at most 32,768 and 2,048 tokens; streams (TTFT 5 s, TBT 0.1 s),"
            " deadlines (60 s) and chains of three such calls (60 s per call), 1:1:1",
            (
                replace(_task("heavy", SloKind.LATENCY, _HEAVY_CALL), ttft_s=5.0),
                replace(_task("heavy", SloKind.DEADLINE, _HEAVY_CALL), stage_deadline_s=60.0),
                replace(
                    _task("heavy_chain", SloKind.COMPOUND, partial(_chain, pair=_HEAVY)),
                    stage_deadline_s=60.0,
                ),
            ),
            max_tokens=2_048,
        ),
        "day": Workload(
            "Wu (2025), section 6.1, as `mixed` (table 6.1). Assumed: calm and rush, as the process"
            " `day` of arrivals",
            MIXED,
            arrivals="day",
        ),
        "two_tiers": Workload(
            "SLOs-Serve, table 4: mean and standard deviation of the chatbot's prompts and answers."
            " Assumed: lognormal lengths, answers of at most 1,024 tokens; TBT 30 ms for half of"
            " the streams and 150 ms for the others, TTFT 2 s",
            (replace(_CHAT, tbt_s=0.03), replace(_CHAT, tbt_s=0.15)),
            max_tokens=1_024,
        ),
        "near_and_far": Workload(
            "Wu (2025), table 6.1: mean and P50 of the deep-research prompts. Assumed: half are"
            " short calls due in 0.5 s (medians 200 and 10 tokens), half have such a prompt, an"
            " answer of 1,000 tokens (median), and 50 s; lognormal lengths of sigma 0.5",
            (
                replace(
                    _task("near", SloKind.DEADLINE, partial(single, pair=_NEAR)),
                    stage_deadline_s=0.5,
                ),
                replace(
                    _task("far", SloKind.DEADLINE, partial(single, pair=_FAR)),
                    stage_deadline_s=50.0,
                ),
            ),
        ),
        "streamed_research": Workload(
            "Wu (2025), table 6.1: tokens of the deep-research programs. Assumed: the last answer"
            " is read as it is written, its first token due after 20 s per stage, TBT 0.1 s; half"
            " of the programs are the chatbot's streams of `mixed`",
            (
                replace(
                    _task("deep_research", SloKind.COMPOUND, _streamed_answer),
                    then_tbt_s=0.1,
                ),
                _task("chatbot", SloKind.LATENCY, partial(single, pair=lengths.CHATBOT)),
            ),
        ),
        "thinking": Workload(
            "SLOs-Serve, table 4: prompts and responses of its reasoning. Assumed: 1,000 tokens of"
            " thinking (median, sigma 0.5, at most 3,000); the response's first token is due after"
            " 40 s, its TBT is 0.1 s",
            (
                replace(
                    _task("thinking", SloKind.DEADLINE, _thinking),
                    stage_deadline_s=40.0,
                    then_tbt_s=0.1,
                ),
            ),
            max_tokens=lengths.MAX_CALL_TOKENS,
        ),
        "two_paces": Workload(
            "SLOs-Serve, table 4: prompts and responses of its reasoning, which has a shorter TBT"
            " for the thinking. Assumed: 1,000 tokens of thinking (median, sigma 0.5, at most"
            " 3,000) with TTFT 2 s and TBT 0.03 s, then a response with TBT 0.1 s",
            (replace(_task("two_paces", SloKind.LATENCY, _thinking), tbt_s=0.03, then_tbt_s=0.1),),
            max_tokens=lengths.MAX_CALL_TOKENS,
        ),
        "half_promised": Workload(
            "Wu (2025), section 6.1, as `mixed` (table 6.1). Assumed: as many programs again of"
            " the same calls without an SLO",
            (*MIXED, *(replace(task, kind=SloKind.BEST_EFFORT) for task in MIXED)),
        ),
    }
)
"""Workloads by name, each of one kind of work, SLO or load that the papers' workloads lack."""
