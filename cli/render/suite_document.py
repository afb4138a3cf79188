"""A suite's comparisons as one JSON object. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cli.render.bench_report import document_of
from serving.sim.compare.compare import Comparison, Goodputs
from serving.sim.compare.seeds import purpose_of
from serving.sim.compare.suite_report import BASELINES, GOODPUTS, Ratios, Row, SuiteReport


def document_of_suite(comparisons: Mapping[str, Comparison], report: SuiteReport) -> dict[str, Any]:
    """The suite as a JSON-safe object; docs/results.md explains its keys."""
    plan = next(iter(comparisons.values())).plan
    loads: list[float | None] = [*report.loads, None]
    return {
        "suite": list(report.workloads),
        "simulated": True,
        "policies": list(report.policies),
        "reference": report.reference,
        "loads": list(report.loads),
        "seeds": list(plan.seeds),
        "seeds_for": purpose_of(plan.seeds),
        "code": next(iter(comparisons.values())).code,
        "summary": [
            {"load": load} | {name: _summaries(report, name, load) for name in BASELINES}
            for load in loads
        ],
        "ratios": [_row_document(row) for row in report.rows],
        "goodputs": [
            {"workload": workload, "load": load, "policy": policy, **_goodputs(mean)}
            for (workload, load, policy), mean in report.goodputs.items()
        ],
        "upper_bound": [
            {"workload": workload, "load": load, **_goodputs(mean)}
            for (workload, load), mean in report.bounds.items()
        ],
        "comparisons": {name: document_of(each) for name, each in comparisons.items()},
    }


def _summaries(report: SuiteReport, baseline: str, load: float | None) -> dict[str, Any] | None:
    found = {goodput: report.summary(baseline, goodput, load) for goodput in GOODPUTS}
    documents = {
        goodput: {name: _number(value) for name, value in summary._asdict().items()}
        for goodput, summary in found.items()
        if summary is not None
    }
    return documents or None


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "workload": row.workload,
        "load": row.load,
        "best_rivals": dict(zip(GOODPUTS, row.best_rivals, strict=False)),
        **{name: _ratios_document(getattr(row, name)) for name in BASELINES},
    }


def _ratios_document(ratios: Ratios | None) -> dict[str, Any] | None:
    return ratios and {name: _number(getattr(ratios, name)) for name in GOODPUTS}


def _goodputs(goodputs: Goodputs) -> dict[str, float]:
    return {"token_goodput": goodputs.tokens, "request_goodput": goodputs.requests}


def _number(value: Any) -> Any:
    """JSON has no infinity."""
    return "inf" if value == math.inf else value
