"""Generated loads: programs before, within and after the window; traces; sources."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import virtual_engine
from serving.sim.drive.driver import VirtualTime
from serving.sim.programs.predictions import LengthErrors
from serving.sim.workloads.load_generator import (
    GeneratedLoad,
    Source,
    backlog,
    check_trace_timing,
    generate_load,
    outcome_known_s,
)
from serving.slo import SloKind
from serving.workload_errors import BadTrace, InvalidWorkload, TraceMissing

MIXED = Source.generator("mixed")


def make_load(source: Source = MIXED, **changes: object) -> GeneratedLoad:
    arguments = {"rate_per_s": 2.0, "seed": 0, "warmup_s": 20.0, "window_s": 60.0}
    return generate_load(source, **{**arguments, **changes})  # type: ignore[arg-type]


def azure(path: Path, seconds: list[float]) -> Source:
    """A trace with a request at each of these seconds; request n has n + 1 prompt tokens."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for number, second in enumerate(seconds):
        lines.append(f"2026-01-01 10:{int(second // 60):02}:{second % 60:09.6f},{number + 1},5")
    path.write_text("\n".join(lines))
    return Source.file(path)


@pytest.mark.parametrize("arrivals", [None, "poisson", "gamma", "burst", "day"])
def test_programs_arrive_until_every_counted_program_is_decided(arrivals: str | None) -> None:
    load = make_load(arrivals=arrivals)
    from_s, to_s = load.window_s
    assert (from_s, to_s) == (20.0, 80.0)
    counted = [each for each in load.programs if from_s <= each.arrival_s < to_s]
    assert max(map(outcome_known_s, counted)) == load.decided_s > to_s
    times = [each.arrival_s for each in load.programs]
    assert times == sorted(times)
    assert load.decided_s - 10.0 < times[-1] < load.decided_s
    rate_after = sum(time_s >= to_s for time_s in times) / (load.decided_s - to_s)
    assert rate_after == pytest.approx(2.0, rel=0.5)


def test_a_burst_is_in_the_window_and_there_is_none_after_it() -> None:
    times = [each.arrival_s for each in make_load(arrivals="burst", rate_per_s=20.0).programs]
    busiest = max(range(150), key=lambda second: sum(second <= time < second + 4 for time in times))
    assert 20 <= busiest < 80


def test_one_seed_gives_the_same_programs_and_another_seed_other_ones() -> None:
    assert make_load() == make_load()
    assert make_load(seed=1).programs[0].stages != make_load().programs[0].stages


def test_a_higher_rate_has_the_same_programs_at_earlier_times() -> None:
    light, heavy = (make_load(rate_per_s=rate).programs for rate in (1.0, 3.0))
    assert [each.stages for each in heavy[:50]] == [each.stages for each in light[:50]]
    assert heavy[50].arrival_s < light[50].arrival_s


def test_a_trace_keeps_its_arrival_pattern_at_another_rate(tmp_path: Path) -> None:
    trace_s = [0.0, 1.0, 1.5, 4.0, 4.0, 9.0, 10.0, 12.0, 13.0, 20.0]
    source = azure(tmp_path / "t.csv", trace_s)
    load = make_load(source, rate_per_s=0.08, warmup_s=0.0, window_s=100.0)  # 8 in 100 s
    times = [each.arrival_s for each in load.programs]
    assert sum(time_s < 100.0 for time_s in times) == 8
    scale = 100.0 / 13.0  # the ninth arrives when the window ends
    assert times[:8] == pytest.approx([time_s * scale for time_s in trace_s[:8]])
    prompts = [each.prompt_tokens for each in load.programs]
    assert prompts[:10] == list(range(1, 11))[: len(prompts)]


def test_a_trace_shorter_than_a_run_repeats_and_the_repeats_are_counted(tmp_path: Path) -> None:
    source = azure(tmp_path / "t.csv", [0.0, 1.0, 3.0, 7.0])
    load = make_load(source, rate_per_s=1.0)
    assert load.repeats == len(load.programs) // 4 >= 20
    ids = [each.id for each in load.programs]
    assert len(set(ids)) == len(ids)
    assert [each.prompt_tokens for each in load.programs[:9]] == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    times = [each.arrival_s for each in load.programs]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:3] == pytest.approx(gaps[4:7])
    assert sum(time_s < 80.0 for time_s in times) == 80


def test_seeds_start_at_different_places_of_a_trace(tmp_path: Path) -> None:
    source = azure(tmp_path / "t.csv", [float(second) for second in range(50)])
    firsts = {make_load(source, seed=seed).programs[0].prompt_tokens for seed in range(4)}
    assert len(firsts) == 4
    assert 1 in firsts


def test_the_check_of_trace_times_rejects_exactly_the_rates_that_runs_reject(
    tmp_path: Path,
) -> None:
    source = azure(tmp_path / "t.csv", [0.0, 1.0, 2.0, 3.0, *[4.0] * 12, 5.0, 6.0])

    def is_rejected(work: Callable[[], object]) -> bool:
        try:
            work()
        except InvalidWorkload:
            return True
        return False

    rejected = set()
    for rate in (0.05, 0.1, 0.2):
        seeds = [
            seed
            for seed in range(3)
            if is_rejected(functools.partial(make_load, source, rate_per_s=rate, seed=seed))
        ]
        rejected.update((rate, seed) for seed in seeds)
        for num_seeds in (1, 2, 3):
            check = functools.partial(
                check_trace_timing, source, rate_per_s=rate, seeds=range(num_seeds), until_s=80.0
            )
            assert is_rejected(check) is any(seed < num_seeds for seed in seeds)
    assert rejected == {(0.05, 1), (0.05, 2), (0.1, 2)}


@pytest.mark.parametrize("seconds", [[5.0], [5.0, 5.0, 5.0]])
def test_a_trace_without_different_times_needs_an_arrival_process(
    tmp_path: Path, seconds: list[float]
) -> None:
    source = azure(tmp_path / "t.csv", seconds)
    message = r"t\.csv.* give an arrival process, .*, with --arrivals"
    with pytest.raises(InvalidWorkload, match=message):
        make_load(source)
    with pytest.raises(InvalidWorkload, match=message):
        check_trace_timing(source, rate_per_s=1.0, seeds=(0,), until_s=80.0)
    assert make_load(source, arrivals="poisson").programs


def test_the_kind_of_a_request_is_drawn_each_time_that_it_arrives(tmp_path: Path) -> None:
    source = azure(tmp_path / "t.csv", [0.0, 1.0])
    for arrivals in (None, "poisson"):
        programs = make_load(source, arrivals=arrivals).programs
        for repeats in (programs[::2], programs[1::2]):
            share = sum(each.kind is SloKind.LATENCY for each in repeats) / len(repeats)
            assert share == pytest.approx(0.5, abs=0.25)
        assert {each.kind for each in programs} == {SloKind.LATENCY, SloKind.DEADLINE}
    longer = make_load(source, window_s=90.0).programs
    kinds = [each.kind for each in programs]
    assert [each.kind for each in longer][: len(kinds)] == kinds[: len(longer)]
    assert [each.kind for each in make_load(source, seed=1).programs] != kinds


def test_each_workflow_arrives_once_before_any_arrives_again(tmp_path: Path) -> None:
    stages = [[{"state": "x", "requests": [{"in": 10 + n, "out": 3}]}] for n in range(7)]
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"workflows": [{"stages": each} for each in stages]}))
    programs = make_load(Source.file(path)).programs
    prompts = [each.prompt_tokens for each in programs]
    assert sorted(prompts[:7]) == list(range(10, 17))
    assert prompts[7:14] == prompts[:7]
    assert {each.kind for each in programs} == {SloKind.COMPOUND}


def test_a_backlog_arrives_at_time_0_without_slos(tmp_path: Path) -> None:
    for source in (MIXED, azure(tmp_path / "t.csv", [0.0, 2.0])):
        programs = backlog(source, num_programs=9, seed=0)
        assert len({each.id for each in programs}) == 9
        assert {each.arrival_s for each in programs} == {0.0}
        assert {each.kind for each in programs} == {SloKind.BEST_EFFORT}
        assert {each.deadline_s for each in programs} == {None}


def test_the_key_of_a_trace_depends_on_its_content_not_on_its_path(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    original = azure(tmp_path / "t.csv", [0.0, 2.0])
    moved = azure(tmp_path / "other" / "renamed.csv", [0.0, 2.0])
    changed = azure(tmp_path / "t.csv", [0.0, 3.0])
    assert original.key() == moved.key() != changed.key()
    assert original.name != moved.name
    assert original.key() != MIXED.key() != Source.generator("coder").key()


def test_programs_do_not_depend_on_the_name_of_the_trace_file(tmp_path: Path) -> None:
    first, renamed = (azure(tmp_path / name, [0.0, 2.0, 3.0]) for name in ("a.csv", "b.txt"))
    assert make_load(first) == make_load(renamed)
    assert backlog(first, num_programs=5, seed=1) == backlog(renamed, num_programs=5, seed=1)


def test_a_trace_with_a_call_longer_than_the_kv_cache_is_rejected_before_the_call_is_drawn(
    tmp_path: Path,
) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 9, "output_length": 3}\n'
        '{"timestamp": 9000, "input_length": 466765, "output_length": 500}\n'
    )
    config = ExperimentConfig(source=Source.file(path))
    config.source.check_fits(467_265)
    message = r"long\.jsonl.*line 2 has 466,765 prompt tokens .* of 500, .* holds 467,264 tokens"
    with pytest.raises(InvalidWorkload, match=message):
        virtual_engine(config, PolicySpec("fcfs"), (), VirtualTime())


def test_a_trace_of_requests_is_rejected_with_prefix_caching(tmp_path: Path) -> None:
    source = azure(tmp_path / "t.csv", [0.0, 2.0])
    assert ExperimentConfig(source=source)
    with pytest.raises(InvalidWorkload, match=r"t\.csv.*prefix caching would change nothing"):
        ExperimentConfig(source=source, prefix_caching=True)
    path = tmp_path / "w.json"
    stage = {"kind": "value", "calls": [{"in": 9, "out": 3, "n": 2}]}
    path.write_text(json.dumps({"workflows": [{"stages": [stage]}]}))
    for other in (Source.file(path), MIXED):
        assert ExperimentConfig(source=other, prefix_caching=True)


def test_a_trace_that_changes_is_rejected_by_every_later_run(tmp_path: Path) -> None:
    source = azure(tmp_path / "t.csv", [0.0, 2.0])
    before = make_load(source)
    azure(tmp_path / "t.csv", [0.0, 3.0])
    for work in (lambda: make_load(source), lambda: backlog(source, num_programs=3, seed=0)):
        with pytest.raises(BadTrace, match="changed while in use: start again"):
            work()
    azure(tmp_path / "t.csv", [0.0, 2.0])
    assert make_load(source) == before


def test_a_file_name_that_is_not_unicode_is_shown_as_unicode_and_the_file_is_found(
    tmp_path: Path,
) -> None:
    source = azure(tmp_path / os.fsdecode(b"tr\xff.csv"), [0.0, 2.0])
    assert (source.name, source.file_name) == ("tr\ufffd", "tr\ufffd.csv")
    program = make_load(source).programs[0]
    assert LengthErrors().sketch(program.id, 5)
    assert MIXED.file_name is None


def test_an_invalid_source_or_arrival_process_raises_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidWorkload, match="known: mixed"):
        Source.generator("nonsense")
    with pytest.raises(TraceMissing):
        Source.file(tmp_path / "none.csv")
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadTrace):
        Source.file(tmp_path / "odd.csv")
    with pytest.raises(InvalidWorkload, match="arrivals"):
        make_load(arrivals="nonsense")
