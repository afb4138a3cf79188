"""A comparison in words and numbers: tables for people, one document for programs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cli.render.tables import named_table
from cli.terminal.glyphs import ASCII, UNICODE, Glyphs
from serving.sim.compare.compare import Comparison, Goodputs, label_of
from serving.sim.metrics.outcome import Outcome
from serving.slo import SloKind

if TYPE_CHECKING:
    from rich.table import Table

BASELINE = "fcfs"
_ROOMY = 110
"""Columns from which on tables are set wider."""

KINDS = (SloKind.LATENCY, SloKind.DEADLINE, SloKind.COMPOUND)
_KIND_HEADS = {SloKind.LATENCY: "lat", SloKind.DEADLINE: "ddl", SloKind.COMPOUND: "cmp"}

_SIMULATED_PARTS = ("capacity_programs_s", "upper_bound")
"""Of a comparison's document, whatever was measured: they are of a machine that is a model."""


def document_of(comparison: Comparison) -> dict[str, Any]:
    """All of it, JSON-safe; rows in the order of policies, loads, seeds."""
    plan, setting = comparison.plan, comparison.plan.setting
    return {
        "workload": setting.source.name,
        "window_s": setting.window_s,
        "simulated": plan.live is None,
        "simulated_parts": list(_SIMULATED_PARTS if plan.live else (*_SIMULATED_PARTS, "rows")),
        "engine": "sim" if plan.live is None else "vllm",
        "warmup_s": setting.warmup_s,
        "capacity_programs_s": comparison.capacity_programs_s,
        "loads": list(plan.loads),
        "seeds": plan.num_seeds,
        "arrivals": setting.arrivals,
        "slo_scale": setting.slo_scale,
        "predictions": setting.predictions,
        "length_bias": setting.length_bias,
        "future_bias": setting.future_bias,
        "trace": setting.source.file_name,
        "trace_repeats": comparison.trace_repeats,
        "machine": setting.machine.step_cost.name,
        "machine_source": setting.machine.step_cost.source,
        "slots": setting.slots,
        "step_tokens": setting.step_tokens,
        "prefix_caching": setting.prefix_caching,
        "kv_blocks": setting.machine.kv_blocks,
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


def _row(outcome: Outcome) -> dict[str, Any]:
    return {name: value for name, value in outcome.report.items() if name != "window_s"}


def title(comparison: Comparison) -> list[str]:
    """What was compared, and what the numbers are."""
    plan, setting = comparison.plan, comparison.plan.setting
    how = "simulated in virtual time" if plan.live is None else "measured on vLLM here"
    seeds = f"{plan.num_seeds} seed" + ("s" if plan.num_seeds > 1 else "")
    arrivals = f", {setting.arrivals} arrivals" if setting.arrivals else ""
    scale = f", promises times {setting.slo_scale:g}" if setting.slo_scale != 1 else ""
    biases = {"lengths": setting.length_bias, "futures": setting.future_bias}
    bias = "".join(f", {told} times {by:g}" for told, by in biases.items() if by != 1)
    caching = ", with prefix caching" if setting.prefix_caching else ""
    lines = [
        f"{setting.source.name}, {how}: {setting.window_s:g} s after {setting.warmup_s:g} s of "
        f"warm-up, {seeds}{arrivals}{scale}, {setting.predictions} predictions{bias}",
        f"machine {setting.machine.step_cost.name}{caching}",
        f"1.0x is {comparison.capacity_programs_s:.2f} programs/s: what fcfs drains, simulated",
    ]
    if comparison.trace_repeats:
        lines.append(
            f"the trace is shorter than a run, and was begun anew {comparison.trace_repeats} times"
        )
    return lines


def empty_windows(comparison: Comparison) -> list[str]:
    """What to say of runs in whose window no program arrived: their goodputs of 0 say nothing."""
    window_s = comparison.plan.setting.window_s
    empty = {
        (run.load, run.seed): None
        for run, outcome in comparison.outcomes.items()
        if not outcome.report["counts"]["arrived"]
    }
    return [
        f"at {load:g}x, seed {seed}: no program arrived in the window of {window_s:g} s, and "
        "goodputs of 0 say nothing of a policy; give it a longer --window-s"
        for load, seed in empty
    ]


def goodput_table(
    comparison: Comparison, load: float, *, width: int, ascii_only: bool = False
) -> Table:
    """Goodputs at one load: mean over seeds, their spread, ratios of means, attainment."""
    glyphs = ASCII if ascii_only else UNICODE
    labels = _labels(comparison)
    bounds = comparison.bounds_at(load)
    runs = {label: comparison.goodputs(label, load) for label in labels}
    best = [max(_mean(each, at) for each in runs.values()) for at in (0, 1)]
    heads = ["policy"]
    for unit in ("tokens/s", "reqs/s"):
        heads += [unit, glyphs.spread]
        heads += [f"{glyphs.times}{BASELINE}"] if BASELINE in labels else []
        heads += ["bound"] if bounds else []
    heads += [_KIND_HEADS[kind] for kind in KINDS]

    def cells(goodputs: Sequence[Goodputs], *, is_bound: bool = False) -> Iterator[Text]:
        for at, decimals in ((0, 0), (1, 2)):
            mean = _mean(goodputs, at)
            is_best = len(labels) > 1 and not is_bound and mean == best[at]
            yield Text(f"{mean:,.{decimals}f}", style="bold green" if is_best else "")
            yield Text(_spread([each[at] for each in goodputs], decimals, glyphs), style="dim")
            if BASELINE in labels:
                yield Text(_ratio(mean, _mean(runs[BASELINE], at), glyphs))
            if bounds:
                yield Text(_percent(_divided(mean, _mean(bounds, at)), glyphs))

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
    return named_table(heads, rows, width=width, gap=gap, texts=("policy",), glyphs=glyphs)


def latency_table(
    comparison: Comparison, load: float, *, width: int, ascii_only: bool = False
) -> Table:
    """Latencies and counts at one load, averaged over the seeds."""
    glyphs = ASCII if ascii_only else UNICODE
    heads = ["policy", "TTFT s", "TBT ms", "E2EL s", "tokens/s", "preempt", "recomp", "sched ms"]
    rows = []
    for label in _labels(comparison):
        outcomes = comparison.of(label, load)
        cells = [Text(label)]
        for name, unit_s in (("ttft", 1.0), ("tbt", 1e-3), ("e2el", 1.0)):
            levels = [
                _mean_of([_promised(each, name)[level] for each in outcomes])
                for level in ("p50", "p95")
            ]
            told = (glyphs.none if each is None else _short(each / unit_s) for each in levels)
            cells.append(Text("/".join(told)))
        counted = ("throughput_tokens_s", "preemptions", "recomputed_tokens")
        values = [_mean_of([each.report[name] for each in outcomes]) for name in counted]
        scheduling = _mean_of([each.report["schedule_ms_per_step"] for each in outcomes])
        cells += [Text(glyphs.none if each is None else f"{each:,.0f}") for each in values]
        cells.append(Text(glyphs.none if scheduling is None else f"{scheduling:.2f}"))
        rows.append(cells)
    gap = _gap(width)
    return named_table(heads, rows, width=width, gap=gap, texts=("policy",), glyphs=glyphs)


def legend(comparison: Comparison, *, ascii_only: bool = False) -> list[str]:
    """What the tables' columns mean."""
    glyphs = ASCII if ascii_only else UNICODE
    whose = "latency programs" if _has_streams(comparison) else "all calls"
    how = "All measured in real time but for load 1.0x and a bound, which are simulated."
    if comparison.plan.live is None:
        how = (
            "All simulated but for sched ms: what scheduling a step takes on this machine, really."
        )
    lines = [
        how,
        f"Means over the seeds; {glyphs.spread} their standard deviation. tokens/s and reqs/s of "
        "each first table are goodput: only what met its SLO. lat, ddl, cmp: share of latency, "
        "deadline and compound programs that kept their promise.",
        f"TTFT, TBT, E2EL: median/p95; TTFT and TBT of {whose}, E2EL of programs that ended. "
        "tokens/s beside them: all that was computed. preempt (times) and recomp (tokens): over "
        "the whole run.",
    ]
    if comparison.bounds:
        lines.append(_bound_told(comparison))
    return lines


def _bound_told(comparison: Comparison) -> str:
    if comparison.plan.live is None:
        return "bound: share of what no scheduler could exceed on these programs."
    return (
        f"bound: share of the {comparison.bound_name}. It is of a machine whose step cost is "
        "fitted to this engine: an estimate, which a measured run may exceed."
    )


def _labels(comparison: Comparison) -> list[str]:
    return [label_of(policy) for policy in comparison.plan.policies]


def _has_streams(comparison: Comparison) -> bool:
    return any(outcome.curves["ttft_latency_s"] for outcome in comparison.outcomes.values())


def _promised(outcome: Outcome, name: str) -> Mapping[str, float | None]:
    """TTFT and TBT of those who were promised them, where there are any; else of all."""
    if outcome.curves.get(f"{name}_latency_s"):
        name = f"{name}_latency"
    found: Mapping[str, float | None] = outcome.report[f"{name}_s"]
    return found


def _attainment(outcomes: Sequence[Outcome]) -> dict[SloKind, float | None]:
    return {
        kind: _mean_of([each.report["attainment"][kind.value] for each in outcomes])
        for kind in KINDS
    }


def _mean(goodputs: Sequence[Goodputs], at: int) -> float:
    return statistics.fmean(each[at] for each in goodputs)


def _mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of what was observed; None where nothing was."""
    observed = [value for value in values if value is not None]
    return statistics.fmean(observed) if observed else None


def _spread(values: Sequence[float], decimals: int, glyphs: Glyphs) -> str:
    if len(values) < 2:
        return glyphs.none
    return f"{statistics.stdev(values):,.{decimals}f}"


def _gap(width: int) -> int:
    return 2 if width >= _ROOMY else 1


def _short(value: float) -> str:
    """Three digits or so."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f}"


def _divided(value: float, by: float) -> float | None:
    return value / by if by > 0 else None


def _ratio(value: float, by: float, glyphs: Glyphs) -> str:
    ratio = _divided(value, by)
    return glyphs.none if ratio is None else f"{ratio:.2f}"


def _percent(share: float | None, glyphs: Glyphs) -> str:
    return glyphs.none if share is None else f"{share:.0%}"
