"""Checkpoints: the file of an engine, whatever is in it, and whatever the disk does."""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from serving.engine.observers.step_tracker import StepTracker
from serving.engine.observers.user_statistics import UserStatistics
from serving.engine.scheduler import checkpoints
from serving.engine.scheduler.checkpoints import (
    IDLE_PERIOD_S,
    PERIOD_S,
    Checkpoint,
    Checkpoints,
    SchedulerState,
    decoded,
    encoded,
)
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.slo import BEST_EFFORT
from serving.step_cost import Composition

PREDICTED = replace(BEST_EFFORT, length=LengthSketch((50.0,) * len(LENGTH_LEVELS)))


def state_of(*names: str) -> SchedulerState:
    """The state of an engine that has computed 9 steps and answered each of these users once."""
    users, tracker = UserStatistics(), StepTracker()
    for name in names:
        number = users.open(name, 0.0)
        users.learn_length(number, BEST_EFFORT, 70)
        users.learn_length(number, PREDICTED, 70)
        users.close(number, 0.0)
    for tokens in range(1, 10):
        tracker.measured(Composition.of_prompt(tokens), 0.01 * tokens)
    return SchedulerState(users.state(0.0), tracker.state())


STATE = state_of("ann", "bob")


@contextmanager
def opened(folder: Path, *, model: str = "m", machine: str = "gpu") -> Iterator[Checkpoints]:
    """The checkpoints of an engine, which ends without a last one."""
    of_engine = Checkpoints.open(folder, model=model, machine=machine)
    assert of_engine is not None
    try:
        yield of_engine
    finally:
        of_engine._wait()
        of_engine._lock.release()


def file_in(folder: Path) -> Path:
    [file] = folder.glob("*.checkpoint")
    return file


def closed_with(folder: Path, state: SchedulerState, *, machine: str = "gpu") -> None:
    of_engine = Checkpoints.open(folder, model="m", machine=machine)
    assert of_engine is not None
    of_engine.close(state)


def test_the_next_engine_begins_with_what_the_last_one_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "schedulers"
    with opened(folder) as first:
        assert first.read() is None
    closed_with(folder, state_of("carl"))
    closed_with(folder, STATE)
    with opened(folder) as next_one:
        found = next_one.read()
    assert found is not None
    state, age_s = found
    assert (state, 0 <= age_s < 60) == (STATE, True)
    assert stat.S_IMODE(file_in(folder).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_engines_of_one_model_at_once_have_a_file_each(tmp_path: Path) -> None:
    with opened(tmp_path) as first, opened(tmp_path) as second:
        first.write(STATE)
        second.write(state_of("carl"))
    with opened(tmp_path) as first, opened(tmp_path) as second, opened(tmp_path) as third:
        found, found_by_second = first.read(), second.read()
        assert found is not None
        assert found_by_second is not None
        assert (found[0], found_by_second[0]) == (STATE, state_of("carl"))
        assert third.read() is None


def test_an_engine_of_another_model_has_another_file(tmp_path: Path) -> None:
    closed_with(tmp_path, STATE)
    with opened(tmp_path, model="other") as other:
        assert other.read() is None


def test_the_cost_of_a_step_on_another_machine_is_not_restored(tmp_path: Path) -> None:
    closed_with(tmp_path, STATE)
    with opened(tmp_path, machine="cpu") as other:
        found = other.read()
    assert found is not None
    assert found[0] == SchedulerState(STATE.users, None)


@pytest.mark.parametrize("set_back_s", [0.0, 1e6])
def test_the_age_of_a_checkpoint_is_that_of_the_system_s_clock(
    tmp_path: Path, set_back_s: float
) -> None:
    closed_with(tmp_path, STATE)
    written_s = decoded(file_in(tmp_path).read_bytes()).written_s
    with opened(tmp_path) as later:
        later._wall_clock = lambda: written_s + 90.0 - set_back_s
        found = later.read()
    assert found is not None
    assert found[1] == (0.0 if set_back_s else 90.0)


WHOLE = encoded(Checkpoint("m", "gpu", 0.0, STATE))
DAMAGED = {
    "empty": b"",
    "cut in its header": WHOLE[:9],
    "cut in its digest": WHOLE[:30],
    "truncated": WHOLE[:-1],
    "longer": WHOLE + b"\0",
    "a bit was flipped": WHOLE[:-40] + bytes([WHOLE[-40] ^ 1]) + WHOLE[-39:],
    "of another version": WHOLE.replace(b"scheduler 1\n", b"scheduler 9\n"),
    "of another program": b'{"users": []}',
    "of another model": encoded(Checkpoint("other", "gpu", 0.0, STATE)),
    "of another shape": encoded(Checkpoint("m", "gpu", 0.0, ("users", "steps"))),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_file_that_is_no_checkpoint_causes_a_warning_and_is_replaced(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    closed_with(tmp_path, STATE)
    file_in(tmp_path).write_bytes(data)
    with opened(tmp_path) as of_engine:
        assert of_engine.read() is None
        of_engine.write(STATE)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert str(file_in(tmp_path)) in record.getMessage()
    with opened(tmp_path) as next_one:
        assert next_one.read() is not None
    assert len(caplog.records) == 1


def test_what_a_killed_engine_was_writing_does_not_count(tmp_path: Path) -> None:
    closed_with(tmp_path, STATE)
    file_in(tmp_path).with_suffix(".part").write_bytes(WHOLE[:100])
    with opened(tmp_path) as next_one:
        found = next_one.read()
        next_one.write(state_of("carl"))
    assert found is not None
    assert found[0] == STATE
    assert decoded(file_in(tmp_path).read_bytes()).state == state_of("carl")


def test_an_engine_goes_on_if_it_cannot_write_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed_with(tmp_path, STATE)
    file = file_in(tmp_path)
    file.unlink()
    file.mkdir()  # which a file cannot replace
    with opened(tmp_path) as of_engine:
        for _ in range(3):
            of_engine.write(STATE)
            of_engine._wait()
        assert caplog.text.count("is not kept") == 1
        file.rmdir()
        of_engine.write(STATE)
        of_engine._wait()
        assert of_engine.read() is not None
    assert len(caplog.records) == 1


def test_an_engine_goes_on_without_a_folder_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert Checkpoints.open(tmp_path / "file" / "schedulers", model="m", machine="gpu") is None
    assert caplog.text.count("is not kept") == 1


def test_more_engines_than_files_go_on_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_ENGINES", 1)
    with opened(tmp_path):
        assert Checkpoints.open(tmp_path, model="m", machine="gpu") is None
    assert "has no free file" in caplog.text


@pytest.mark.parametrize(("is_idle", "period_s"), [(False, PERIOD_S), (True, IDLE_PERIOD_S)])
def test_a_checkpoint_is_due_every_period(tmp_path: Path, is_idle: bool, period_s: float) -> None:
    with opened(tmp_path) as opened_one:
        now_s = 50.0
        of_engine = Checkpoints(
            opened_one._file, opened_one._lock, model="m", machine="gpu", clock=lambda: now_s
        )
        assert not of_engine.is_due(is_idle=is_idle)
        now_s += period_s
        assert of_engine.is_due(is_idle=is_idle)
        of_engine.write(STATE)
        of_engine._wait()
        assert not of_engine.is_due(is_idle=is_idle)
        now_s += period_s
        assert of_engine.is_due(is_idle=is_idle)
