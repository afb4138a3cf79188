"""On real workflows, the figures that benchmarks/patterns.py prints hold their direction.

The workflows' token counts are real, their times simulated.
"""

from pathlib import Path

import pytest

from benchmarks.data_files import Call
from benchmarks.leave_one_out import LeaveOneOut, mean, relative_errors
from benchmarks.step_time import (
    COST,
    DATASETS,
    FORMULA,
    DataMissing,
    call_seconds,
    load_graphs,
)
from patterns import BEST_K, Formulation, PatternGraph, encode_stages
from serving.step_cost import Composition
from tests import places

DATA = places.DATA / "agentic"

every_dataset = pytest.mark.parametrize("dataset", DATASETS)


def real_graphs(dataset: str) -> list[PatternGraph]:
    if not DATA.exists():
        pytest.skip("no ../shared/data/agentic beside this checkout")
    return load_graphs(DATA, dataset)


@every_dataset
def test_the_stages_of_a_workflow_with_simulated_times_take_at_most_200_bytes(
    dataset: str,
) -> None:
    assert max(len(encode_stages(graph.stages)) for graph in real_graphs(dataset)) <= 200


@every_dataset
def test_the_best_few_foretell_better_than_the_nearest_one(dataset: str) -> None:
    predicted = LeaveOneOut(real_graphs(dataset), bests=(1,)).predicted
    best = mean(relative_errors(predicted, BEST_K))
    assert best < mean(relative_errors(predicted, 1))
    for other in (Formulation.STAGE, Formulation.REMAINING):
        assert best < mean(relative_errors(predicted, BEST_K, other))


def test_a_lone_call_takes_a_step_for_its_prompt_and_one_for_each_further_token() -> None:
    prompt_s = COST.seconds(Composition.of_prompt(100))
    decode_s = [COST.seconds(Composition(1, 1, 100 + n, ())) for n in (1, 2)]
    assert call_seconds([Call(100, 1)]) == pytest.approx([prompt_s])
    assert call_seconds([Call(100, 3)]) == pytest.approx([prompt_s + sum(decode_s)])


def test_a_long_prompt_is_read_in_steps_beside_calls_that_generate() -> None:
    short, long = call_seconds([Call(10, 50), Call(5000, 1)])
    alone = call_seconds([Call(10, 50)])[0]
    assert long > call_seconds([Call(5000, 1)])[0]
    assert short > alone


def test_calls_side_by_side_take_longer_than_one_and_less_than_in_turn() -> None:
    together = call_seconds([Call(300, 40)] * 8)
    alone = call_seconds([Call(300, 40)])[0]
    assert alone < max(together) < 8 * alone


def test_without_the_workflows_or_with_another_fit_the_benchmark_says_so(tmp_path: Path) -> None:
    data = tmp_path / "agentic"
    with pytest.raises(DataMissing, match="cannot read"):
        load_graphs(data, "deep_research")
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf" / "a100_llama3_8b_fit.json").write_text('{"formula": "step = 1"}')
    with pytest.raises(DataMissing, match="another formula") as raised:
        load_graphs(data, "deep_research")
    assert FORMULA in str(raised.value)


def test_samples_of_a_call_share_its_prompt_and_nothing_else() -> None:
    one, three = (call_seconds([Call(1000, 40, samples)])[0] for samples in (1, 3))
    apart = call_seconds([Call(1000, 40)] * 3)[-1]
    assert one < three < apart
