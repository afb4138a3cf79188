"""The benchmark of replicas: ratios to single replicas, its table, invalid arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from benchmarks import replicas
from benchmarks.replicas import Cell, Figures, ReplicaConfig, rows, table


def figures(token_goodput: float, *, deadline: float | None = None) -> Figures:
    return Figures(
        token_goodput=token_goodput,
        request_goodput=0.0,
        latency=0.75,
        deadline=deadline,
        compound=None,
        busiest_share=0.5,
        demoted=0.0,
        withdrawn=0.0,
        schedule_ms_per_step=0.25,
    )


def fake_run(config: ReplicaConfig, cells: Sequence[Cell], jobs: int) -> dict[Cell, Figures]:
    return {cell: figures(100.0 * cell.replicas + cell.seed) for cell in cells}


@pytest.fixture(autouse=True)
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "run", fake_run)


def test_ratios_compare_means_with_the_same_capacity_of_single_replicas() -> None:
    single, several = Cell("edf", 1.0, 1, "none", 0), Cell("edf", 1.0, 4, "round_robin", 0)
    results = rows(
        {
            single: figures(90.0),
            single._replace(seed=1): figures(110.0),
            several: figures(380.0),
        },
        slow=1.0,
    )
    assert [row.token_ratio for row in results] == pytest.approx([1.0, 0.95])
    assert [row.request_ratio for row in results] == [None, None]


def test_attainment_of_a_kind_is_averaged_over_the_seeds_that_have_the_kind() -> None:
    cell = Cell("edf", 1.0, 1, "none", 0)
    shares = (None, 0.2, 0.6)
    results = {
        cell._replace(seed=seed): figures(1.0, deadline=share) for seed, share in enumerate(shares)
    }
    [row] = rows(results, slow=1.0)
    assert row.figures.deadline == pytest.approx(0.4)
    assert row.figures.compound is None
    line = table([row], seeds=1, singles=3).splitlines()[2]
    assert line.split()[4:10] == ["1", "1.00", "0.00", "-", "0.75", "0.40"]
    assert line.split()[10] == "-"


def test_the_output_states_the_numbers_of_seeds_that_its_ratios_compare(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert replicas.main(["--replicas", "2", "--singles", "3"]) == 0
    text = capsys.readouterr().out
    assert "over --seeds 1, to N times that of one replica over --singles 3" in text
    assert replicas.main(["--replicas", "2", "--singles", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["simulated"], document["seeds"], document["singles"]) == (True, 1, 3)
    assert document["rows"][0]["figures"]["compound"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "nope"], "error: policy='nope': unknown; known: fcfs"),
        (["--policy", "edf:batch"], "NAME:KEY=VALUE"),
        (["--router", "nope"], "error: router='nope'"),
    ],
)
def test_an_invalid_policy_or_router_is_an_error_without_a_table(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replicas.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--replicas", "0", "--singles", "0"],
        ["--replicas", "2,0"],
        ["--singles", "0"],
        ["--seeds", "0"],
        ["--loads", "0"],
        ["--loads", "high"],
        ["--slow", "0"],
        ["--jobs", "0"],
    ],
)
def test_arguments_that_leave_nothing_to_run_are_rejected(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        replicas.main(arguments)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert arguments[0] in captured.err
    assert captured.out == ""
