"""On real workflows, the comparisons of benchmarks/patterns.py still have the same winners.

The workflows' token counts are real; their times are simulated.
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


@pytest.mark.slow
@every_dataset
def test_several_patterns_predict_better_than_the_nearest_one(dataset: str) -> None:
    predicted = LeaveOneOut(real_graphs(dataset), bests=(1,)).predicted
    best = mean(relative_errors(predicted, BEST_K))
    assert best < mean(relative_errors(predicted, 1))
    for other in (Formulation.STAGE, Formulation.REMAINING):
        assert best < mean(relative_errors(predicted, BEST_K, other))


def test_a_single_call_takes_one_step_for_its_prompt_and_one_for_each_further_token() -> None:
    prompt_s = COST.seconds(Composition.of_prompt(100))
    decode_s = [COST.seconds(Composition(1, 1, 100 + n, ())) for n in (1, 2)]
    assert call_seconds([Call(100, 1)]) == pytest.approx([prompt_s])
    assert call_seconds([Call(100, 3)]) == pytest.approx([prompt_s + sum(decode_s)])


def test_a_long_prompt_is_prefilled_in_chunks_beside_decodes() -> None:
    short, long = call_seconds([Call(10, 50), Call(5000, 1)])
    alone = call_seconds([Call(10, 50)])[0]
    assert long > call_seconds([Call(5000, 1)])[0]
    assert short > alone


def test_parallel_calls_take_longer_than_one_and_less_time_than_sequential_ones() -> None:
    parallel = call_seconds([Call(300, 40)] * 8)
    alone = call_seconds([Call(300, 40)])[0]
    assert alone < max(parallel) < 8 * alone


def test_missing_workflows_and_another_step_time_formula_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "agentic"
    with pytest.raises(DataMissing, match="cannot read"):
        load_graphs(data, "deep_research")
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf" / "a100_llama3_8b_fit.json").write_text('{"formula": "step = 1"}')
    with pytest.raises(DataMissing, match="another formula") as raised:
        load_graphs(data, "deep_research")
    assert FORMULA in str(raised.value)


def test_samples_of_a_call_share_only_its_prompt() -> None:
    one, three = (call_seconds([Call(1000, 40, samples)])[0] for samples in (1, 3))
    separate = call_seconds([Call(1000, 40)] * 3)[-1]
    assert one < three < separate
