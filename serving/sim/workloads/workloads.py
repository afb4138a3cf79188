"""Workloads by name: seeded programs with the lengths and SLOs of the papers' tables."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from serving.sim.programs import lengths, shapes
from serving.sim.programs.lengths import LengthPair
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.arrivals import ARRIVALS
from serving.slo import SloKind
from serving.step_cost import STEP_COSTS, Composition
from serving.workload_errors import InvalidWorkload

TTFT_S = 2.0
TBT_S = 0.1
STAGE_DEADLINE_S = 20.0
"""SLOs of Wu (2025), section 6.1: a deadline program has 20 s, a compound one 20 s per stage."""

Stages = Callable[[np.random.Generator], tuple[Stage, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One type of program in a workload.

    Attributes:
        share: how often it is drawn, relative to the workload's other tasks.
        stages: draws the program's stages.
        ttft_slowdown: if set, TTFT = ttft_slowdown * the seconds to prefill the prompt in one step
            on an idle machine of STEP_COSTS["a100-llama3-8b"]; else TTFT_S.
        tbt_s: the TBT of its SLO.
        user: key for fairness.
    """

    share: float
    application: str
    kind: SloKind
    stages: Stages
    ttft_slowdown: float | None = None
    tbt_s: float = TBT_S
    user: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks that are drawn independently by their shares.

    Attributes:
        source: what is taken from the paper, and what is assumed.
        max_tokens: the limit on every answer, as policies see it; longer answers are cut. The
            default cuts about one answer in a thousand (assumed: no table prints a limit).
    """

    source: str
    tasks: tuple[Task, ...]
    max_tokens: int = lengths.DEFAULT_MAX_TOKENS


def generate(
    name: str,
    *,
    rate_per_s: float,
    window_s: float,
    seed: int,
    arrivals: str | Sequence[float] = "poisson",
    slo_scale: float = 1.0,
) -> tuple[Program, ...]:
    """The programs of one window, by arrival; the same arguments give the same programs.

    The calls of the i-th program do not depend on the rate, the arrivals and the scale.

    Args:
        name: one of WORKLOADS.
        rate_per_s: programs per second, on average.
        window_s: arrivals are within [0, window_s).
        arrivals: one of ARRIVALS, or arrival times (for example from `arrivals.rescaled`), for
            which the rate is ignored.
        slo_scale: factor on every time of the SLOs.
    Raises:
        InvalidWorkload: an unknown name, or a value out of range.
        InvalidProgram: a given time is below 0 or not finite.
    """
    if name not in WORKLOADS:
        raise InvalidWorkload("workload", name, f"unknown; known: {', '.join(WORKLOADS)}")
    if seed < 0:
        raise InvalidWorkload("seed", seed, "must be at least 0")
    if not (math.isfinite(slo_scale) and slo_scale > 0):
        raise InvalidWorkload("slo_scale", slo_scale, "must be a finite number above 0")
    if not isinstance(arrivals, str):
        times = sorted(float(time) for time in arrivals if time < window_s)
    elif arrivals in ARRIVALS:
        rng = np.random.default_rng([seed, zlib.crc32(b"arrivals")])
        times = ARRIVALS[arrivals](rng, rate_per_s=rate_per_s, window_s=window_s).tolist()
    else:
        raise InvalidWorkload("arrivals", arrivals, f"unknown; known: {', '.join(ARRIVALS)}")
    tasks, max_tokens = WORKLOADS[name].tasks, WORKLOADS[name].max_tokens
    cumulative_shares = list(accumulate(task.share for task in tasks))
    programs = []
    for index, arrival_s in enumerate(times):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), index])
        drawn_share = rng.random() * cumulative_shares[-1]
        task_index = int(np.searchsorted(cumulative_shares, drawn_share, side="right"))
        task = tasks[min(task_index, len(tasks) - 1)]
        stages = _cut_answers(task.stages(rng), max_tokens)
        programs.append(_program(f"{name}-{index:06d}", task, arrival_s, stages, slo_scale))
    return tuple(programs)


def _cut_answers(stages: tuple[Stage, ...], max_tokens: int) -> tuple[Stage, ...]:
    """The same calls with answers of at most max_tokens."""
    return tuple(
        stage._replace(
            calls=tuple(
                call._replace(output_tokens=min(call.output_tokens, max_tokens))
                for call in stage.calls
            )
        )
        for stage in stages
    )


def _program(
    program_id: str, task: Task, arrival_s: float, stages: tuple[Stage, ...], slo_scale: float
) -> Program:
    ttft_s = TTFT_S
    if task.ttft_slowdown is not None:
        ttft_s = task.ttft_slowdown * _isolated_latency_s(stages[0].calls[0].prompt_tokens)
    has_deadline = task.kind in (SloKind.DEADLINE, SloKind.COMPOUND)
    return Program(
        id=program_id,
        application=task.application,
        kind=task.kind,
        arrival_s=arrival_s,
        stages=stages,
        ttft_s=ttft_s * slo_scale,
        tbt_s=task.tbt_s * slo_scale,
        deadline_s=STAGE_DEADLINE_S * len(stages) * slo_scale if has_deadline else None,
        user=task.user,
    )


def _isolated_latency_s(prompt_tokens: int) -> float:
    """Seconds to prefill a prompt in one step on an idle A100."""
    return STEP_COSTS["a100-llama3-8b"].seconds(Composition.of_prompt(prompt_tokens))


def _single(rng: np.random.Generator, *, pair: LengthPair) -> tuple[Stage, ...]:
    return (Stage((Call(pair.prompt.sample(rng), pair.output.sample(rng)),)),)


def _thinking(rng: np.random.Generator) -> tuple[Stage, ...]:
    """One call; its answer is the reasoning and then the response."""
    ((call,), _), *_ = _single(rng, pair=lengths.REASONING)
    response = lengths.REASONING_RESPONSE.sample(rng)
    return (Stage((call._replace(output_tokens=call.output_tokens + response),)),)


def _sharegpt(rng: np.random.Generator) -> tuple[Stage, ...]:
    """One call of at most 8,192 tokens, prompt and answer together; the answer is cut first."""
    ((call,), _), *_ = _single(rng, pair=lengths.SHAREGPT)
    prompt = min(call.prompt_tokens, 8191)
    return (Stage((Call(prompt, min(call.output_tokens, 8192 - prompt)),)),)


def _wu(kind: SloKind) -> tuple[Task, ...]:
    """One kind of Wu's workload: both applications of the table, equally often."""
    stages: dict[str, Stages] = {
        "chatbot": partial(_single, pair=lengths.CHATBOT),
        "deep_research": partial(_single, pair=lengths.DEEP_RESEARCH),
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


def _tempo(application: str, single: LengthPair, program: LengthPair) -> tuple[Task, ...]:
    """Tempo's workload: latency, deadline and compound programs in proportions 3:1:1."""
    single_call = partial(_single, pair=single)
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
_MIXED = (*_wu(SloKind.LATENCY), *_wu(SloKind.DEADLINE), *_COMPOUND)
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

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "mixed": Workload(_WU.format("1:1:1 latency to deadline to compound"), _MIXED),
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
            (_streamed("chatbot", partial(_single, pair=lengths.CHAT), slowdown=5, tbt_s=0.1),),
        ),
        "coder": Workload(
            _SLOS_SERVE.format(""),
            (_streamed("coder", partial(_single, pair=lengths.CODER), slowdown=5, tbt_s=0.05),),
        ),
        "summarizer": Workload(
            _SLOS_SERVE.format(""),
            (
                _streamed(
                    "summarizer", partial(_single, pair=lengths.SUMMARIZER), slowdown=3, tbt_s=0.1
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
"""Workloads by name."""
