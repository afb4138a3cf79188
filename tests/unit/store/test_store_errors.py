"""Errors name their cause and what to do, and survive pickling between processes."""

from __future__ import annotations

import pickle

import pytest

from store import errors
from store.errors import StoreError

EXAMPLES: list[StoreError] = [
    errors.StoreLocked("sqlite:///s", "database is locked"),
    errors.StoreFull("sqlite:///s", "disk is full"),
    errors.StoreCorrupt("sqlite:///s", "file is not a database"),
    errors.StoreUnreachable("sqlite:///s", "permission denied"),
    errors.StoreNewer("sqlite:///s", "0099"),
    errors.PayloadEncoded("fernet", "other"),
    errors.PayloadNotEncoded("fernet", "no key"),
    errors.StoreClosed("sqlite:///s"),
    errors.StoreFailed("sqlite:///s", "no such function"),
    errors.RunNotFound("run-1"),
    errors.RunNotFound(""),
    errors.RunAmbiguous("run", ["run-1", "run-2"]),
    errors.RunExists("run-1"),
    errors.RunChanged("run-1"),
    errors.InvalidAttributes("run-1", "NaN"),
    errors.AlreadyRecorded("run-1", "step plan"),
    errors.NotStarted("run-1", "call 3"),
    errors.PayloadMissing("abc123"),
    errors.StateNotFound("def456"),
    errors.QueueDraining("nightly"),
    errors.RunNotQueueable("run-1", "it is running"),
    errors.ScheduleNotFound("nightly"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
class TestEveryError:
    def test_survives_pickling_with_its_arguments(self, error: StoreError) -> None:
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.args, str(copy)) == (type(error), error.args, str(error))

    def test_names_all_of_its_arguments(self, error: StoreError) -> None:
        for argument in error.args:
            for part in argument if isinstance(argument, tuple) else (argument,):
                assert part in str(error)

    def test_says_what_to_do(self, error: StoreError) -> None:
        what_happened, *advice = str(error).replace(";", ".").replace(":", ".").split(". ")
        assert what_happened
        assert advice


def test_the_examples_cover_every_error() -> None:
    assert {type(error) for error in EXAMPLES} == set(StoreError.__subclasses__())
