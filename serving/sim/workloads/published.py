"""Workloads with the lengths and SLOs of the papers' tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from serving.sim.programs import lengths, shapes
from serving.sim.programs.lengths import LengthPair
from serving.sim.programs.programs import Call, Stage
from serving.sim.workloads.tasks import Stages, Task, Workload, single
from serving.slo import SloKind


def _thinking(rng: np.random.Generator) -> tuple[Stage, ...]:
    """One call; its answer is the reasoning and then the response."""
    ((call,), _), *_ = single(rng, pair=lengths.REASONING)
    response = lengths.REASONING_RESPONSE.sample(rng)
    return (Stage((call._replace(output_tokens=call.output_tokens + response),)),)


def _sharegpt(rng: np.random.Generator) -> tuple[Stage, ...]:
    """One call of at most 8,192 tokens, prompt and answer together; the answer is cut first."""
    ((call,), _), *_ = single(rng, pair=lengths.SHAREGPT)
    prompt = min(call.prompt_tokens, 8191)
    return (Stage((Call(prompt, min(call.output_tokens, 8192 - prompt)),)),)


def _wu(kind: SloKind) -> tuple[Task, ...]:
    """One kind of Wu's workload: both applications of the table, equally often."""
    stages: dict[str, Stages] = {
        "chatbot": partial(single, pair=lengths.CHATBOT),
        "deep_research": partial(single, pair=lengths.DEEP_RESEARCH),
    }
    if kind is SloKind.COMPOUND:
        stages = {
            "tree_of_thoughts": partial(shapes.tree_of_thoughts, totals=lengths.CHATBOT_PROGRAM),
            "deep_research": partial(shapes.deep_research, totals=lengths.DEEP_RESEARCH_PROGRAM),
        }
    return tuple(
        Task(share=0.5, application=application, kind=kind, stages=draw)
        for application, draw in stages.items()
    )


def _tempo(application: str, call: LengthPair, program: LengthPair) -> tuple[Task, ...]:
    """Tempo's workload: latency, deadline and compound programs in proportions 3:1:1."""
    single_call = partial(single, pair=call)
    tree = partial(shapes.tree_of_thoughts, totals=program)
    return (
        Task(share=3, application=application, kind=SloKind.LATENCY, stages=single_call),
        Task(share=1, application=application, kind=SloKind.DEADLINE, stages=single_call),
        Task(share=1, application="tree_of_thoughts", kind=SloKind.COMPOUND, stages=tree),
    )


def _streamed(application: str, stages: Stages, *, slowdown: float, tbt_s: float) -> Task:
    """A latency task of SLOs-Serve: TTFT as a multiple of the isolated prefill, fixed TBT."""
    return Task(
        share=1,
        application=application,
        kind=SloKind.LATENCY,
        stages=stages,
        ttft_slowdown=slowdown,
        tbt_s=tbt_s,
    )


_TOOL_LOOP = Task(
    share=1,
    application="tools",
    kind=SloKind.COMPOUND,
    stages=partial(shapes.tool_loop, turns=lengths.TOOLS),
)
_COMPOUND = _wu(SloKind.COMPOUND)
MIXED = (*_wu(SloKind.LATENCY), *_wu(SloKind.DEADLINE), *_COMPOUND)
"""The tasks of "mixed": each kind of program equally often."""

_WU = (
    "Wu (2025), section 6.1: mean and P50 of prompts and answers (table 6.1), SLOs, {}."
    " Assumed: lognormal lengths; the chatbot and deep-research rows equally often in each kind;"
    " a compound row's lengths are sums over its calls; its shape: deep research as in JITServe's"
    " trace, the chatbot's as a tree of thoughts"
)
_TEMPO = (
    "Tempo, section 6.1: mean and P50 of prompts and answers (table 2, {}), SLOs, 3:1:1"
    " latency to deadline to compound, trees of depth two with three thoughts. Assumed: lognormal"
    " lengths; collective rows are sums over 13 equal calls; no agentic code generation"
)
_SLOS_SERVE = (
    "SLOs-Serve, table 4: mean and standard deviation of prompts and answers; table 1: tight or"
    " loose; table 3: TTFT at most 3 or 5 times that of an idle machine, TBT 50 or 100 ms."
    " Assumed: lognormal lengths; the idle machine is an A100 with Llama-3-8B{}"
)

PUBLISHED: Mapping[str, Workload] = MappingProxyType(
    {
        "mixed": Workload(_WU.format("1:1:1 latency to deadline to compound"), MIXED),
        "latency": Workload(_WU.format("latency only"), _wu(SloKind.LATENCY)),
        "deadline": Workload(_WU.format("deadline only"), _wu(SloKind.DEADLINE)),
        "compound": Workload(_WU.format("compound only"), _COMPOUND),
        "agentic": Workload(
            _WU.format("compound only") + "; the loops of `tools` as often as both together",
            (*_COMPOUND, _TOOL_LOOP),
        ),
        "chat": Workload(
            _TEMPO.format("chatbot"), _tempo("chatbot", lengths.CHATBOT, lengths.CHATBOT_PROGRAM)
        ),
        "long_answers": Workload(
            _TEMPO.format("LC-workload"),
            _tempo("math", lengths.LONG_ANSWERS, lengths.LONG_ANSWERS_PROGRAM),
        ),
        "chatbot": Workload(
            _SLOS_SERVE.format(""),
            (_streamed("chatbot", partial(single, pair=lengths.CHAT), slowdown=5, tbt_s=0.1),),
        ),
        "coder": Workload(
            _SLOS_SERVE.format(""),
            (_streamed("coder", partial(single, pair=lengths.CODER), slowdown=5, tbt_s=0.05),),
        ),
        "summarizer": Workload(
            _SLOS_SERVE.format(""),
            (
                _streamed(
                    "summarizer", partial(single, pair=lengths.SUMMARIZER), slowdown=3, tbt_s=0.1
                ),
            ),
        ),
        "reasoning": Workload(
            _SLOS_SERVE.format("; the response has the same TBT as the reasoning"),
            (_streamed("reasoning", _thinking, slowdown=3, tbt_s=0.05),),
            max_tokens=lengths.MAX_CALL_TOKENS,  # most answers are longer than the default limit
        ),
        "tools": Workload(
            "SLOs-Serve, table 4: mean and standard deviation of prompts and answers, 2.7 +- 1.1"
            " pairs of them. Assumed: lognormal lengths, new in each pair; tools of about 1 s;"
            " instead of the paper's SLO for each pair, 20 s per stage as in Wu (2025)",
            (_TOOL_LOOP,),
        ),
        "sharegpt": Workload(
            "Bari et al., section 6: median and P90 of prompts and answers (table 1), at most"
            " 8,192 tokens together, TBT 0.1 s for 5% paying users and 0.5 s for the others."
            " Assumed: lognormal lengths; TTFT 2 s for all (the paper has no TTFT)",
            tuple(
                Task(
                    share=share,
                    application="sharegpt",
                    kind=SloKind.LATENCY,
                    stages=_sharegpt,
                    tbt_s=tbt_s,
                    user=user,
                )
                for share, tbt_s, user in ((0.05, 0.1, "paying"), (0.95, 0.5, "free"))
            ),
        ),
    }
)
"""Workloads by name, each of one paper."""
