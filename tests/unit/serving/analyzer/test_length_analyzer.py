"""RequestAnalyzer: the stages of its predictions, and the coverage of its bounds."""

import dataclasses
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.analyzer.analyzer import MIN_STEP_CALLS, RequestAnalyzer
from serving.analyzer.calibration import WATCHED_CALLS
from serving.analyzer.fitted import MIN_CALLS, FittedLengths, fit
from serving.analyzer.samples import Sample
from serving.analyzer.step_calibration import Score
from serving.length_sketch import LENGTH_LEVELS
from tests.places import ROOT
from tests.strategies import examples, law
from tests.unit.serving.analyzer.length_examples import application, call, run_calls

TRAINED = 1500


@pytest.fixture(scope="module")
def model() -> FittedLengths:
    return fit(application(TRAINED), seed=0)


def analyzer_of(model: FittedLengths) -> RequestAnalyzer:
    return RequestAnalyzer.replay(application(TRAINED), model)


def new_calls(num_calls: int, *, factor: float = 1.0, seed: int = 1) -> list[Sample]:
    return application(num_calls, seed=seed, factor=factor)


@pytest.mark.usefixtures("subprocesses")
def test_importing_the_analyzer_does_not_load_machine_learning_libraries() -> None:
    modules = "analyzer", "fitted", "forest", "features"
    imports = "; ".join(f"import serving.analyzer.{module}" for module in modules)
    script = f"import json, sys; {imports}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {"sklearn", "quantile_forest", "pandas", "scipy", "torch", "vllm"}


def test_the_source_changes_from_the_limit_to_the_step_to_the_forest(model: FittedLengths) -> None:
    analyzer = RequestAnalyzer()
    for tokens in range(100, 100 + MIN_STEP_CALLS):
        estimate = analyzer.estimate(call())
        assert (estimate.source, estimate.sketch) == ("limit", None)
        analyzer.observe(call(), estimate, tokens)
    estimate = analyzer.estimate(call())
    assert estimate.source == "step"
    assert estimate.sketch is not None
    assert 100 <= estimate.sketch.tokens[0] <= estimate.sketch.tokens[-1] <= 110
    assert analyzer.estimate(call("write")).source == "limit", "another step has no history yet"
    analyzer.adopt(model)
    assert analyzer.estimate(call()).source == "forest"
    assert analyzer.estimate(call("never seen")).source == "forest"
    report = analyzer.report()
    assert report.sources == {"limit": MIN_STEP_CALLS + 1, "step": 1, "forest": 2}
    assert (report.num_observed, report.num_sketched, report.coverage) == (MIN_STEP_CALLS, 0, None)


def test_calls_like_the_training_calls_are_covered(model: FittedLengths) -> None:
    analyzer = analyzer_of(model)
    samples = new_calls(1000)
    assert run_calls(analyzer, samples) == pytest.approx(0.9, abs=0.03)
    report = analyzer.report()
    assert report.num_shifts == 0
    assert report.coverage is not None
    assert report.coverage == pytest.approx(0.9, abs=0.03)
    assert report.num_observed == report.num_sketched == 1000


def test_the_first_calls_after_a_fit_are_covered_as_well(model: FittedLengths) -> None:
    """The scores that are saved with a forest calibrate it without any new calls."""
    covered = [run_calls(analyzer_of(model), new_calls(60, seed=seed)) for seed in range(2, 12)]
    assert sum(covered) / len(covered) == pytest.approx(0.9, abs=0.04)


def test_the_scores_saved_with_a_forest_calibrate_it_from_the_first_call(
    model: FittedLengths,
) -> None:
    sketch, raw = (
        RequestAnalyzer(dataclasses.replace(model, scores=scores)).estimate(call()).sketch
        for scores in ((Score(0, 0.99),) * 200, ())
    )
    assert sketch is not None
    assert raw is not None
    assert set(sketch.tokens[:-1]) == {raw.tokens[-1]}


def test_every_level_of_a_sketch_has_the_right_coverage(model: FittedLengths) -> None:
    analyzer = analyzer_of(model)
    num_covered = [0] * len(LENGTH_LEVELS)
    for sample in new_calls(2000):
        estimate = analyzer.estimate(sample.features)
        assert estimate.sketch is not None
        for index, bound in enumerate(estimate.sketch.tokens):
            num_covered[index] += sample.output_tokens <= bound
        analyzer.observe(sample.features, estimate, sample.output_tokens)
    for level, covered in zip(LENGTH_LEVELS, num_covered, strict=True):
        assert covered / 2000 == pytest.approx(level, abs=0.04), level


def test_every_step_has_the_same_coverage(model: FittedLengths) -> None:
    """Also after the answers of one step have tripled and those of another have shrunk."""
    factors = {"model:plan": 3.0, "model:search": 0.7, "model:write": 1.0}
    covered: dict[str, list[bool]] = {step: [] for step in factors}

    def on_bound(sample: Sample, bound: float) -> None:
        covered[sample.features.identity].append(sample.output_tokens <= bound)

    changed = [
        dataclasses.replace(
            sample, output_tokens=int(sample.output_tokens * factors[sample.features.identity])
        )
        for sample in new_calls(3000)
    ]
    run_calls(analyzer_of(model), changed, on_bound)
    for step, each in covered.items():
        assert sum(each[300:]) / len(each[300:]) == pytest.approx(0.9, abs=0.03), step


def test_the_forest_gives_tighter_bounds_than_the_step_if_features_are_informative(
    model: FittedLengths,
) -> None:
    """Answers grow with their prompts, which a step's history does not contain."""

    def mean_bound(analyzer: RequestAnalyzer) -> float:
        ratios: list[float] = []
        run_calls(
            analyzer,
            new_calls(800),
            lambda sample, bound: ratios.append(bound / sample.output_tokens),
        )
        return sum(ratios) / len(ratios)

    assert mean_bound(analyzer_of(model)) < 0.95 * mean_bound(
        RequestAnalyzer.replay(application(TRAINED))
    )


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.2, 0.6, 1.5, 6.0])
def test_calibration_restores_the_coverage_of_a_biased_forest(factor: float) -> None:
    """It was fitted on answers that are `factor` times as long, and has no scores."""
    biased = fit(application(TRAINED, factor=factor), seed=0)
    without_scores = dataclasses.replace(biased, scores=())
    analyzer = RequestAnalyzer.replay(application(TRAINED), without_scores)
    samples = new_calls(900)
    run_calls(analyzer, samples[:300])
    assert run_calls(analyzer, samples[300:]) == pytest.approx(0.9, abs=0.035)


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_shift_is_detected_and_coverage_is_restored(model: FittedLengths, factor: float) -> None:
    analyzer = analyzer_of(model)
    run_calls(analyzer, new_calls(400))
    assert analyzer.report().num_shifts == 0
    shifted = new_calls(800, factor=factor)
    run_calls(analyzer, shifted[: 2 * WATCHED_CALLS])
    assert analyzer.report().num_shifts >= 1
    assert run_calls(analyzer, shifted[2 * WATCHED_CALLS :]) == pytest.approx(0.9, abs=0.035)


@pytest.mark.slow
def test_coverage_is_right_if_many_answers_end_at_max_tokens() -> None:
    """Half of the long answers are cut, and a bound at the limit covers all of these."""
    samples = application(2400, max_tokens=700)
    atoms = sum(sample.output_tokens == 700 for sample in samples)
    assert atoms > 300
    model = fit(samples[:TRAINED], seed=0)
    analyzer = RequestAnalyzer.replay(samples[:TRAINED], model)
    assert run_calls(analyzer, samples[TRAINED:]) == pytest.approx(0.9, abs=0.03)
    assert analyzer.report().num_shifts == 0


def test_equal_answers_are_not_a_shift() -> None:
    samples = [Sample(call(), 1024) for _ in range(MIN_CALLS + 500)]
    model = fit(samples[:MIN_CALLS], seed=0)
    analyzer = RequestAnalyzer.replay(samples[:MIN_CALLS], model)
    assert run_calls(analyzer, samples[MIN_CALLS:]) == 1.0
    assert analyzer.report().num_shifts == 0
    sketch = analyzer.estimate(call()).sketch
    assert sketch is not None
    assert set(sketch.tokens) == {1024.0}


@settings(law, max_examples=examples(50))
@given(
    st.integers(0, 3000),
    st.integers(0, 10**6),
    st.sampled_from(["plan", "write", "new"]),
    st.lists(st.integers(0, 3000), max_size=40),
)
def test_no_estimate_exceeds_max_tokens(
    model: FittedLengths, max_tokens: int, prompt_tokens: int, step: str, answers: list[int]
) -> None:
    for analyzer in (RequestAnalyzer(), RequestAnalyzer(model)):
        features = call(step, prompt_tokens=prompt_tokens, max_tokens=max_tokens)
        for tokens in answers:
            analyzer.observe(features, analyzer.estimate(features), tokens)
        sketch = analyzer.estimate(features).sketch
        assert sketch is None or sketch.tokens[-1] <= max_tokens


def test_the_same_calls_give_the_same_estimates(model: FittedLengths) -> None:
    def estimates() -> list[tuple[float, ...]]:
        analyzer = analyzer_of(model)
        run_calls(analyzer, new_calls(200))
        sketches = (analyzer.estimate(sample.features).sketch for sample in new_calls(20, seed=9))
        return [sketch.tokens for sketch in sketches if sketch is not None]

    assert estimates() == estimates()


def test_a_replay_gives_the_state_of_the_live_analyzer(model: FittedLengths) -> None:
    samples = application(TRAINED + 300)
    live = RequestAnalyzer.replay(samples[:TRAINED], model)
    run_calls(live, samples[TRAINED:])
    replayed = RequestAnalyzer.replay(samples, model)
    assert replayed.report() == live.report()
    for step in ("plan", "write", "new"):
        assert replayed.estimate(call(step)) == live.estimate(call(step))


def test_a_replay_does_not_observe_calls_that_the_model_was_fitted_on(model: FittedLengths) -> None:
    assert analyzer_of(model).report().num_observed == 0
    without_model = RequestAnalyzer.replay(application(TRAINED)).report()
    assert without_model.num_observed == TRAINED
    assert without_model.coverage == pytest.approx(0.9, abs=0.03)


def test_the_outcome_of_a_former_model_s_estimate_does_not_calibrate_the_new_one(
    model: FittedLengths,
) -> None:
    analyzer = RequestAnalyzer(model)
    old = [analyzer.estimate(call()) for _ in range(2 * WATCHED_CALLS)]
    analyzer.adopt(model)
    fresh = RequestAnalyzer(model).estimate(call("new"))
    for estimate in old:
        analyzer.observe(call(), estimate, 100_000)
    assert analyzer.estimate(call("new")) == fresh
    assert analyzer.report().coverage == 0.0
