"""A comparison as tables for people, and as one JSON object. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cli.render.tables import named_table
from orchestrator.display.glyphs import ASCII, UNICODE, Glyphs
from serving.sim.compare.compare import Comparison, Goodputs, Plan, label_of
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.seeds import purpose_of, seeds_text
from serving.sim.metrics.outcome import Outcome
from serving.slo import SloKind

if TYPE_CHECKING:
    from rich.table import Table

BASELINE = "fcfs"
_MIN_WIDTH_FOR_GAPS = 110
"""Terminal width from which the columns of the tables are further apart."""

KINDS = (SloKind.LATENCY, SloKind.DEADLINE, SloKind.COMPOUND)
_KIND_HEADINGS = {SloKind.LATENCY: "lat", SloKind.DEADLINE: "ddl", SloKind.COMPOUND: "cmp"}

_SIMULATED_PARTS = ("capacity_programs_s", "upper_bound")
"""Keys of the JSON object with simulated values even if the runs are measured."""


def document_of(comparison: Comparison) -> dict[str, Any]:
    """The comparison as a JSON-safe object; rows in the order of policies, loads, seeds."""
    plan = comparison.plan
    return {
        "simulated": plan.live is None,
        "simulated_parts": list(_SIMULATED_PARTS if plan.live else (*_SIMULATED_PARTS, "rows")),
        "engine": "sim" if plan.live is None else "vllm",
        **settings_of(plan),
        "capacity_programs_s": comparison.capacity_programs_s,
        "loads": list(plan.loads),
        "trace_repeats": comparison.trace_repeats,
        "code": comparison.code,
        "rows": [
            {"policy": run.policy, "load": run.load, "seed": run.seed, **_row(outcome)}
            for run, outcome in comparison.outcomes.items()
        ],
        "upper_bound": [
            {
                "load": load,
                "seed": seed,
                "token_goodput": bound.tokens,
                "request_goodput": bound.requests,
            }
            for (load, seed), bound in comparison.bounds.items()
        ],
    }


def settings_of(plan: Plan) -> dict[str, Any]:
    """What all runs of a plan have in common, JSON-safe."""
    config = plan.config
    return {
        "workload": config.source.name,
        "trace": config.source.file_name,
        "window_s": config.window_s,
        "warmup_s": config.warmup_s,
        "seeds": list(plan.seeds),
        "seeds_for": purpose_of(plan.seeds),
        "arrivals": config.named_arrivals,
        "slo_scale": config.slo_scale,
        "predictions": config.predictions,
        "learned_runs": None if config.first_period is None else config.first_period.num_runs,
        "length_bias": config.length_bias,
        "future_bias": config.future_bias,
        "machine": config.machine.step_cost.name,
        "machine_source": config.machine.step_cost.source,
        "slots": config.slots,
        "step_tokens": config.step_tokens,
        "prefix_caching": config.prefix_caching,
        "kv_blocks": config.machine.kv_blocks,
    }


def _row(outcome: Outcome) -> dict[str, Any]:
    return {name: value for name, value in outcome.report.items() if name != "window_s"}


def title(comparison: Comparison) -> list[str]:
    """The lines above the tables: what was compared, and how."""
    plan, config = comparison.plan, comparison.plan.config
    how = "simulated in virtual time" if plan.live is None else "measured on vLLM here"
    lines = [
        f"{config.source.name}, {how}: {config.window_s:g} s after {config.warmup_s:g} s of "
        f"warm-up, {seeds_text(plan.seeds)}",
        *settings_lines(config),
        f"1.0x is {comparison.capacity_programs_s:.2f} programs/s: simulated capacity under fcfs",
    ]
    if comparison.trace_repeats:
        lines.append(
            f"the trace is shorter than a run: it was restarted {comparison.trace_repeats} times"
        )
    return lines


def settings_lines(config: ExperimentConfig) -> list[str]:
    """What policies see, how programs arrive, and the machine."""
    arrivals = f", {config.named_arrivals} arrivals" if config.named_arrivals else ""
    caching = ", with prefix caching" if config.prefix_caching else ""
    return [
        f"{predictions_and_scale(config)}{arrivals}",
        f"machine {config.machine.step_cost.name}{caching}",
    ]


def predictions_and_scale(config: ExperimentConfig) -> str:
    """What policies see of the future, and how the times of SLOs are changed."""
    scale = f", SLO times multiplied by {config.slo_scale:g}" if config.slo_scale != 1 else ""
    biases = {"lengths": config.length_bias, "remaining work": config.future_bias}
    bias = "".join(f", {name} multiplied by {by:g}" for name, by in biases.items() if by != 1)
    kind = f"{config.predictions} predictions"
    if config.first_period is not None:
        kind = f"predictions learned from {config.first_period.num_runs:,} programs"
    return f"{kind}{bias}{scale}"


def empty_windows(comparison: Comparison) -> list[str]:
    """Warnings about runs without arrivals in their window."""
    window_s = comparison.plan.config.window_s
    empty = {
        (run.load, run.seed): None
        for run, outcome in comparison.outcomes.items()
        if not outcome.report["counts"]["arrived"]
    }
    return [
        f"at {load:g}x, seed {seed}: no program arrived in the window of {window_s:g} s, so its "
        "goodput of 0 is meaningless; choose a longer --window-s"
        for load, seed in empty
    ]


def goodput_table(
    comparison: Comparison, load: float, *, width: int, ascii_only: bool = False
) -> Table:
    """Goodput at one load: means over seeds, standard deviations, ratios, SLO attainment."""
    glyphs = ASCII if ascii_only else UNICODE
    labels = _labels(comparison)
    bounds = comparison.bounds_at(load)
    runs = {label: comparison.goodputs(label, load) for label in labels}
    best = [max(_mean(each, at) for each in runs.values()) for at in (0, 1)]
    headings = ["policy"]
    for unit in ("tokens/s", "reqs/s"):
        headings += [unit, glyphs.spread]
        headings += [f"{glyphs.times}{BASELINE}"] if BASELINE in labels else []
        headings += ["bound"] if bounds else []
    headings += [_KIND_HEADINGS[kind] for kind in KINDS]

    def cells(goodputs: Sequence[Goodputs], *, is_bound: bool = False) -> Iterator[Text]:
        for at, decimals in ((0, 0), (1, 2)):
            mean = _mean(goodputs, at)
            is_best = len(labels) > 1 and not is_bound and mean == best[at]
            yield Text(f"{mean:,.{decimals}f}", style="bold green" if is_best else "")
            yield Text(_spread([each[at] for each in goodputs], decimals, glyphs), style="dim")
            if BASELINE in labels:
                yield Text(_ratio(mean, _mean(runs[BASELINE], at), glyphs))
            if bounds:
                yield Text(_percent(_quotient(mean, _mean(bounds, at)), glyphs))

    rows = []
    for label in labels:
        attained = _attainment(comparison.of(label, load))
        kinds = [Text(_percent(attained[kind], glyphs)) for kind in KINDS]
        rows.append([Text(label), *cells(runs[label]), *kinds])
    if bounds:
        blank = [Text() for _ in KINDS]
        name = Text(comparison.bound_name, style="dim")
        rows.append([name, *cells(bounds, is_bound=True), *blank])
    gap = _gap(width)
    return named_table(headings, rows, width=width, gap=gap, texts=("policy",), glyphs=glyphs)


def latency_table(
    comparison: Comparison, load: float, *, width: int, ascii_only: bool = False
) -> Table:
    """Latencies and counts at one load, averaged over the seeds."""
    glyphs = ASCII if ascii_only else UNICODE
    headings = ["policy", "TTFT s", "TBT ms", "E2EL s", "tokens/s", "preempt", "recomp", "sched ms"]
    rows = []
    for label in _labels(comparison):
        outcomes = comparison.of(label, load)
        cells = [Text(label)]
        for name, unit_s in (("ttft", 1.0), ("tbt", 1e-3), ("e2el", 1.0)):
            levels = [
                _mean_of([_latencies(each, name)[level] for each in outcomes])
                for level in ("p50", "p95")
            ]
            numbers = (glyphs.none if each is None else _short(each / unit_s) for each in levels)
            cells.append(Text("/".join(numbers)))
        counted = ("throughput_tokens_s", "preemptions", "recomputed_tokens")
        values = [_mean_of([each.report[name] for each in outcomes]) for name in counted]
        scheduling = _mean_of([each.report["schedule_ms_per_step"] for each in outcomes])
        cells += [Text(glyphs.none if each is None else f"{each:,.0f}") for each in values]
        cells.append(Text(glyphs.none if scheduling is None else f"{scheduling:.2f}"))
        rows.append(cells)
    gap = _gap(width)
    return named_table(headings, rows, width=width, gap=gap, texts=("policy",), glyphs=glyphs)


def legend(comparison: Comparison, *, ascii_only: bool = False) -> list[str]:
    """The lines below the tables: the meaning of their columns."""
    glyphs = ASCII if ascii_only else UNICODE
    calls = "latency programs" if _has_streams(comparison) else "all calls"
    how = "Measured in real time, except load 1.0x and a bound, which are simulated."
    if comparison.plan.live is None:
        how = "Simulated, except sched ms: the real time on this machine to schedule one step."
    lines = [
        how,
        f"Means over the seeds; {glyphs.spread}: standard deviation. In the first table of a load, "
        "tokens/s and reqs/s are goodput: only what met its SLO. lat, ddl, cmp: share of latency, "
        "deadline and compound programs that met their SLO.",
        f"TTFT, TBT, E2EL: median/p95; TTFT and TBT of {calls}, E2EL of programs that ended. In "
        "the second table, tokens/s is the total throughput. preempt: preemptions, and recomp: "
        "recomputed tokens, both over the whole run.",
    ]
    if comparison.bounds:
        lines.append(_bound_meaning(comparison))
    return lines


def _bound_meaning(comparison: Comparison) -> str:
    if comparison.plan.live is None:
        return "bound: goodput / upper bound, which no scheduler could exceed on these programs."
    return (
        f"bound: goodput / {comparison.bound_name}. The bound is for a simulated machine with a "
        "step cost fitted to this engine: an estimate, which a measured run may exceed."
    )


def _labels(comparison: Comparison) -> list[str]:
    return [label_of(policy) for policy in comparison.plan.policies]


def _has_streams(comparison: Comparison) -> bool:
    return any(outcome.curves["ttft_latency_s"] for outcome in comparison.outcomes.values())


def _latencies(outcome: Outcome, name: str) -> Mapping[str, float | None]:
    """Percentiles of a latency; of TTFT and TBT over latency programs only, if there are any."""
    if outcome.curves.get(f"{name}_latency_s"):
        name = f"{name}_latency"
    percentiles: Mapping[str, float | None] = outcome.report[f"{name}_s"]
    return percentiles


def _attainment(outcomes: Sequence[Outcome]) -> dict[SloKind, float | None]:
    return {
        kind: _mean_of([each.report["attainment"][kind.value] for each in outcomes])
        for kind in KINDS
    }


def _mean(goodputs: Sequence[Goodputs], at: int) -> float:
    return statistics.fmean(each[at] for each in goodputs)


def _mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are not None; None without any."""
    observed = [value for value in values if value is not None]
    return statistics.fmean(observed) if observed else None


def _spread(values: Sequence[float], decimals: int, glyphs: Glyphs) -> str:
    if len(values) < 2:
        return glyphs.none
    return f"{statistics.stdev(values):,.{decimals}f}"


def _gap(width: int) -> int:
    return 2 if width >= _MIN_WIDTH_FOR_GAPS else 1


def _short(value: float) -> str:
    """About three significant digits."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f}"


def _quotient(value: float, by: float) -> float | None:
    return value / by if by > 0 else None


def _ratio(value: float, by: float, glyphs: Glyphs) -> str:
    ratio = _quotient(value, by)
    return glyphs.none if ratio is None else f"{ratio:.2f}"


def _percent(share: float | None, glyphs: Glyphs) -> str:
    return glyphs.none if share is None else f"{share:.0%}"
