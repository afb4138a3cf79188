"""The published claims: the papers' settings, what is measured in them, and what is printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks import claims_bari, claims_chen, claims_huang, claims_wu, claims_zhang
from benchmarks.claims import PAPERS, main
from benchmarks.claims_lab import (
    CLUSTERED,
    RESOLUTION,
    Cell,
    Documents,
    Lab,
    azure_arrivals,
    quotient,
)
from benchmarks.claims_runs import (
    NEVER_S,
    ArrivalTrace,
    ClaimRun,
    Conditions,
    load_at_trace_times,
    median_ttft_s,
    met_at_pace,
)
from benchmarks.claims_table import Change, Claim, Measured, PaperResult, Span, table
from benchmarks.reproduce import ROOT
from serving.goodput import CallOutcome, ProgramOutcome, met
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.workloads.load_generator import Source, generate_load
from serving.slo import SloKind
from serving.step_cost import Composition
from serving.workload_errors import TraceMissing

CLAIMS: tuple[Claim, ...] = (
    *claims_wu.CLAIMS,
    *claims_zhang.CLAIMS,
    *claims_huang.CLAIMS,
    *claims_chen.CLAIMS,
    *claims_bari.CLAIMS,
)
CONFIG = ExperimentConfig(source=Source.generator("mixed"), window_s=20.0, warmup_s=5.0)


def stream(*times_s: float, tbt_s: float = 0.1, submitted_s: float = 0.0) -> ProgramOutcome:
    """A stream with these tokens, which has ended."""
    call = CallOutcome(
        submitted_s=submitted_s,
        prompt_tokens=1,
        output_tokens=len(times_s),
        token_times_s=times_s,
        ended=True,
    )
    return ProgramOutcome(
        program_id="p",
        kind=SloKind.LATENCY,
        arrival_s=0.0,
        calls=((call,),),
        ended_s=times_s[-1],
        ttft_s=2.0,
        tbt_s=tbt_s,
    )


@pytest.fixture
def trace(tmp_path: Path) -> ArrivalTrace:
    """Ten requests in bursts: five within a second, 20 s of nothing, five more."""
    seconds = [*range(5), *range(25, 30)]
    rows = [f"2023-11-16 18:15:{each:02d}.0000000,10,10" for each in seconds]
    path = tmp_path / "traces" / "AzureLLMInferenceTrace_conv.csv"
    path.parent.mkdir()
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return ArrivalTrace.of(path)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}: {claim.metric}")
def test_every_claim_has_its_place_in_the_paper_and_one_sentence_of_cause(claim: Claim) -> None:
    assert claim.section
    assert claim.cause.endswith(".")
    assert ". " not in claim.cause


class ReportedRow(NamedTuple):
    """A row of the table in docs/results.md."""

    claim: Claim
    measured: Span
    differs: bool
    cause: str


def reported_rows() -> list[ReportedRow]:
    """The rows of the published claims, each with the claim of its papers module."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = text.partition("## Published claims")[2].partition("\n\n**")[0]
    claims = {(each.paper, each.metric): each for each in CLAIMS}
    rows = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        paper = cells[0].partition(" ")[0] if cells else ""
        if len(cells) == 5 and (paper, cells[1]) in claims:
            numbers = cells[3].removesuffix("(differs)").split(" to ")
            measured = Span(float(numbers[0]), float(numbers[-1]))
            differs = cells[3].endswith("(differs)")
            rows.append(ReportedRow(claims[paper, cells[1]], measured, differs, cells[4]))
    return rows


def test_the_results_page_has_every_claim_once() -> None:
    assert [row.claim for row in reported_rows()] == list(CLAIMS)


@pytest.mark.parametrize(
    "row", reported_rows(), ids=lambda row: f"{row.claim.paper}: {row.claim.metric}"
)
def test_a_cause_says_reproduced_only_if_the_reported_span_reaches_the_claim(
    row: ReportedRow,
) -> None:
    is_reached = Measured(row.claim, row.measured).is_reached
    if row.claim.cause.startswith("Reproduced"):
        assert is_reached
    if row.claim.cause.startswith("Not reproduced"):
        assert not is_reached


@pytest.mark.parametrize(
    "row", reported_rows(), ids=lambda row: f"{row.claim.paper}: {row.claim.metric}"
)
def test_the_results_page_flags_and_explains_a_claim_like_the_benchmark(row: ReportedRow) -> None:
    assert row.differs == (Measured(row.claim, row.measured).is_reached is False)
    assert row.cause == row.claim.cause


def test_a_claim_is_reached_where_the_spans_overlap() -> None:
    claim = CLAIMS[0]._replace(claimed=Span(2.0, 4.0))
    spans = {Span(1.0, 2.0): True, Span(4.0, 9.0): True, Span(1.0, 1.9): False, Span(5, 6): False}
    assert {span: Measured(claim, span).is_reached for span in spans} == spans
    assert Measured(claim, Span(1.0, 3.0)).to_claimed == 0.75


def test_a_searched_rate_counts_with_the_resolution_of_its_search() -> None:
    claim = CLAIMS[0]._replace(claimed=Span(2.0, 4.0), resolution=1.1)
    spans = {Span(1.0, 1.9): True, Span(4.3, 9.0): True, Span(1.0, 1.8): False, Span(5, 6): False}
    assert {span: Measured(claim, span).is_reached for span in spans} == spans
    searched = {"capacity", "chatbot", "coder", "summarizer"}
    for each in CLAIMS:
        expected = RESOLUTION if each.metric.partition(",")[0] in searched else 1.0
        assert each.resolution == expected


@pytest.mark.parametrize(
    ("value", "other", "expected"),
    [
        (3.0, 2.0, 1.5),
        (0.0, 2.0, 0.0),
        (2.0, 0.0, math.inf),
        (2.0, math.inf, 0.0),
        (0.0, 0.0, None),
        (math.inf, math.inf, None),
        (None, 2.0, None),
        (2.0, None, None),
    ],
)
def test_a_ratio_of_two_nothings_is_unknown(
    value: float | None, other: float | None, expected: float | None
) -> None:
    assert quotient(value, other) == expected


def test_a_claim_of_which_a_part_is_unknown_is_neither_reached_nor_different() -> None:
    row = Measured(CLAIMS[0], Span.of([1.0, None]))
    assert (row.value, row.is_reached, row.to_claimed) == (None, None, None)
    lines = table([PaperResult([row], [Change("Wu", "half", {"tokens": None})])]).splitlines()
    assert lines[2].split()[-2:] == ["unknown", "-"]
    assert lines[-1].split()[-1] == "-"
    assert row.document()["measured"] is None


@pytest.mark.parametrize(
    ("ours", "rival", "expected"), [(4.0, 1.0, 0.75), (0.0, 1.0, -math.inf), (0.0, 0.0, None)]
)
def test_a_system_that_keeps_nothing_saves_less_than_nothing(
    ours: float, rival: float, expected: float | None
) -> None:
    results = {
        ("a", claims_wu.OURS): [{"tokens": ours}],
        ("a", claims_wu.LTR): [{"tokens": rival}],
    }
    assert claims_wu.saving(results, "a", "tokens", claims_wu.LTR) == expected


def test_without_a_paying_user_there_is_no_tail_of_their_tokens() -> None:
    documents = [{"p99_tbt_s": {"paying": 0.2}}, {"p99_tbt_s": {"free": 0.1}}]
    assert claims_bari.tail_tbt_s(documents[:1]) == 0.2
    assert claims_bari.tail_tbt_s(documents) is None


def test_the_table_marks_what_differs_and_lists_the_changes() -> None:
    near, far = (Measured(CLAIMS[0], Span(value, value)) for value in (CLAIMS[0].claimed.low, 0.1))
    changes = [Change("Wu", "as it is", {"tokens": 1.0}), Change("Wu", "half", {"tokens": 0.5})]
    lines = table([PaperResult([near, far], changes)]).splitlines()
    assert sum(line.endswith("differs") for line in lines) == 1
    assert [line.split()[-1] for line in lines[-2:]] == ["1.00", "0.50"]


def test_arrivals_of_a_trace_have_the_mean_rate_and_the_generators_programs(
    trace: ArrivalTrace,
) -> None:
    load = load_at_trace_times(CONFIG, trace, rate_per_s=2.0, seed=3)
    until_s = load.window_s[1]
    same = generate_load(CONFIG.source, rate_per_s=2.0, seed=3, warmup_s=5.0, window_s=20.0)
    assert sum(each.arrival_s < until_s for each in load.programs) == 2.0 * until_s
    pairs = list(zip(load.programs, same.programs, strict=False))
    assert all(own.stages == other.stages for own, other in pairs)
    assert any(own.arrival_s != other.arrival_s for own, other in pairs)
    assert load.decided_s >= max(each.arrival_s for each in load.programs)


def test_only_without_a_folder_clustered_arrivals_replace_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert azure_arrivals(None) is None
    assert "gamma" in capsys.readouterr().err
    with pytest.raises(TraceMissing, match="AzureLLMInferenceTrace_conv"):
        azure_arrivals(tmp_path)


def test_a_setting_names_the_arrivals_that_are_simulated(
    lab: Callable[..., Lab], trace: ArrivalTrace
) -> None:
    claims = [each for each in CLAIMS if each != each.with_arrivals("")]
    assert {each.paper for each in claims} == {"Wu", "Chen"}
    for own, name in ((lab(), CLUSTERED), (replace(lab(), azure=trace), "Azure arrivals")):
        assert all(each.with_arrivals(own.arrivals).setting.startswith(name) for each in claims)
    [coder] = [each for each in CLAIMS if each.metric.startswith("coder")]
    assert coder.setting.startswith(CLUSTERED)


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--first-seed", "-1", "seeds=-1"),
        ("--window-s", "nan", "window_s=nan"),
        ("--warmup-s", "-1", "warmup_s=-1"),
        ("--data", "/nowhere", "/nowhere/traces"),
    ],
)
def test_bad_options_are_refused_for_every_paper(
    paper: str, option: str, value: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--paper", paper, option, value]) == 2
    messages = capsys.readouterr().err
    assert reason in messages
    assert "begins" not in messages


def test_a_pause_that_the_schedule_allows_breaks_the_pace() -> None:
    early = [0.1 + 0.01 * number for number in range(30)]
    paused = [*early, *(each + 1.5 for each in early)]
    steady = [0.1 * number for number in range(1, 60)]
    assert (met(stream(*steady)), met_at_pace(stream(*steady))) == (True, True)
    assert (met(stream(*paused)), met_at_pace(stream(*paused))) == (True, False)
    assert not met_at_pace(stream(2.5))


def test_half_of_the_first_tokens_missing_leaves_no_median_ttft() -> None:
    silent = replace(
        stream(1.0),
        calls=(
            (
                CallOutcome(
                    submitted_s=0.0, prompt_tokens=1, output_tokens=1, token_times_s=(), ended=False
                ),
            ),
        ),
        ended_s=None,
    )
    assert median_ttft_s([stream(1.0), stream(3.0), silent]) == 3.0
    assert median_ttft_s([stream(1.0), silent]) is None


def test_every_change_of_the_thesis_changes_one_assumption() -> None:
    base = claims_wu.SETTING
    fields = list(base.__dataclass_fields__)
    changed = [
        sum(getattr(each, name) != getattr(base, name) for name in fields)
        for each in claims_wu.CHANGES.values()
    ]
    assert changed == [0] + [1] * (len(changed) - 1)


def test_a_change_of_one_system_leaves_the_runs_of_the_other_as_they_are(
    lab: Callable[..., Lab],
) -> None:
    ours, ltr = claims_wu.OURS, claims_wu.LTR

    def cell(name: str, **changes: Any) -> Cell:
        return claims_wu.cell_of(lab(), name, replace(claims_wu.SETTING, **changes))

    assert cell(ltr, waiting_s=9.0, added_up="own", goodput="requests") == cell(ltr)
    assert cell(ours, rivals_wait_s=9.0, preempts=False, late_last=True) == cell(ours)
    assert cell(ours, slots=9) != cell(ours)


class FakeSession:
    """A session in which a rate keeps its promise up to a limit."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.tried: list[float] = []

    def run(self, name: str, tasks: Sequence[ClaimRun]) -> list[dict[str, Any]]:
        self.tried += [task.rate_per_s for task in tasks]
        return [{"share": float(task.rate_per_s <= self.limit_s)} for task in tasks]


@pytest.fixture
def lab() -> Callable[..., Lab]:
    def lab_of(session: Any = None) -> Lab:
        return Lab(session, seeds=(10, 11))

    return lab_of


@pytest.mark.parametrize("limit_s", [0.3, 3.0, 40.0])
def test_the_highest_rate_is_found_within_the_resolution(
    limit_s: float, lab: Callable[..., Lab]
) -> None:
    cell = Cell(CONFIG, Conditions(), PolicySpec("fcfs"), 2.0)

    def is_kept(documents: Documents) -> bool:
        return all(each["share"] == 1.0 for each in documents)

    found = lab(FakeSession(limit_s)).highest_rate("x", cell, is_kept)
    assert found is not None
    assert found <= limit_s <= 1.11 * found


@pytest.mark.parametrize("limit_s", [0.0, 1e9])
def test_a_rate_beyond_all_that_are_tried_is_unknown(
    limit_s: float, lab: Callable[..., Lab], capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell(CONFIG, Conditions(), PolicySpec("fcfs"), 2.0)

    def is_kept(documents: Documents) -> bool:
        return all(each["share"] == 1.0 for each in documents)

    assert lab(FakeSession(limit_s)).highest_rate("x", cell, is_kept) is None
    assert "x: unknown" in capsys.readouterr().err


def test_equal_cells_are_run_once(lab: Callable[..., Lab]) -> None:
    session = FakeSession(1.0)
    cells = [Cell(CONFIG, Conditions(), PolicySpec("fcfs"), rate) for rate in (1.0, 2.0, 1.0)]
    documents = lab(session).documents("x", cells)
    assert session.tried == [1.0, 1.0, 2.0, 2.0]
    assert documents[0] == documents[2] != documents[1]


def test_sarathis_budget_is_the_largest_within_the_tpot() -> None:
    cost = claims_chen.MACHINE.step_cost
    budget = claims_chen.tokens_within(claims_chen.MACHINE, 0.1)
    took_s = [cost.seconds(Composition.of_prompt(budget + more)) for more in (0, 1)]
    assert took_s[0] <= 0.1 < took_s[1]


def test_a_machine_half_as_fast_takes_twice_as_long_for_any_step() -> None:
    machine = claims_chen.MACHINE
    slow = claims_bari.slowed(machine, 2.0)
    step = Composition(300, 40, 9000, ((260, 100),))
    assert slow.step_cost.seconds(step) == pytest.approx(2.0 * machine.step_cost.seconds(step))


@pytest.mark.parametrize(("num_requests", "batch"), [(2, 1), (4, 1), (5, 2)])
def test_annealing_predicts_at_most_the_best_of_all_orders(num_requests: int, batch: int) -> None:
    setting = claims_huang.Setting(num_requests, batch)
    for requests in claims_huang.queues_of(setting, (0, 1, 2)):
        prediction = claims_huang.prediction_of(setting, requests)
        best = claims_huang.best_of_all(prediction)
        arrival = prediction.score(np.arange(num_requests))
        assert arrival <= claims_huang.annealed_score(prediction) + 1e-12 <= best + 1e-9


@pytest.mark.usefixtures("imported_vllm")
def test_a_queue_of_one_earns_the_same_under_both_policies() -> None:
    setting = claims_huang.Setting(1, 1)
    requests = claims_huang.requests_of(setting, 0)
    ours, vllm = (
        claims_huang.simulated(requests, each) for each in claims_huang.policies_of(setting)
    )
    assert ours == vllm
    assert (ours.num_met, ours.gain) == (1, 1.0 / ours.latency_s)


@pytest.mark.usefixtures("imported_vllm")
def test_a_run_drops_what_waits_too_long_and_observes_only_as_long_as_asked(
    trace: ArrivalTrace,
) -> None:
    config = replace(CONFIG, window_s=4.0, warmup_s=0.0, slots=1)

    def measured(**conditions: Any) -> dict[str, Any]:
        return ClaimRun(
            config=config,
            conditions=Conditions(arrivals=trace, **conditions),
            policy=PolicySpec("fcfs"),
            rate_per_s=2.0,
            seed=1,
        ).run()

    patient = measured(waiting_s=NEVER_S, observed_s=8.0)
    assert patient["median_ttft_s"] is None
    assert patient["met_share"] >= patient["paced_share"] >= 0.0
    impatient = measured(waiting_s=0.5, observed_s=8.0)
    assert impatient["median_ttft_s"] is None
    assert impatient != patient


def test_an_unknown_paper_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--paper", "nothing"])
    assert "nothing" in capsys.readouterr().err
