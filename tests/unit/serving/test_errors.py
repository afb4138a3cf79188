"""Errors survive pickling, and two of them survive as a stop reason of vLLM."""

import inspect
import pickle

import pytest

from serving import errors
from serving.errors import (
    AnswerLost,
    InvalidSlo,
    RequestDropped,
    ServingError,
    dropped_stop_reason,
    error_of_stop_reason,
    lost_message,
    rejected_stop_reason,
)

EVERY_ERROR = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, ServingError) and each is not ServingError
]


def arguments(kind: type[ServingError]) -> dict[str, object]:
    """A recognisable value for each argument of an error."""
    values: dict[str, object] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.annotation == "int":
            values[name] = 7
        elif str(parameter.annotation).startswith(("tuple", "Sequence", "list")):
            values[name] = (f"the {name}",)
        else:
            values[name] = f"the {name}"
    return values


@pytest.mark.parametrize("kind", EVERY_ERROR)
def test_every_error_survives_pickling(kind: type[ServingError]) -> None:
    error = kind(*arguments(kind).values())
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.args, str(copy)) == (error.args, str(error))


@pytest.mark.parametrize("kind", EVERY_ERROR)
def test_every_message_contains_all_arguments_of_its_error(kind: type[ServingError]) -> None:
    error = kind(*arguments(kind).values())
    hidden = {"finish_reason"}  # it only decides on the advice in the message
    for name, value in arguments(kind).items():
        parts = value if isinstance(value, tuple) else (value,)
        assert name in hidden or all(str(part) in str(error) for part in parts), name


@pytest.mark.parametrize("reason", ["late", "", "slo_rejected: text of another", "a\nb"])
def test_a_drop_survives_vllms_stop_reason(reason: str) -> None:
    error = error_of_stop_reason("r", dropped_stop_reason(reason))
    assert isinstance(error, RequestDropped)
    assert error.args == ("r", reason)


def test_a_rejection_survives_vllms_stop_reason() -> None:
    original = InvalidSlo("slo_stage", -1, "must not be negative")
    error = error_of_stop_reason("r", rejected_stop_reason(original))
    assert isinstance(error, InvalidSlo)
    assert str(original) in str(error)


def test_a_lost_answer_survives_the_message_of_a_server() -> None:
    error = error_of_stop_reason("r", lost_message("the engine died"))
    assert isinstance(error, AnswerLost)
    assert error.args == ("r", "the engine died")


@pytest.mark.parametrize("stop_reason", [None, 2, "", "###", "slo_weight"])
def test_an_ordinary_stop_reason_is_not_an_error(stop_reason: object) -> None:
    assert error_of_stop_reason("r", stop_reason) is None
