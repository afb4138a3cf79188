"""Errors survive pickling and name their arguments."""

import inspect
import pickle

import pytest

from patterns import errors

SAMPLES = [
    errors.InvalidNode("m/plan", "seconds", -1.0, "0 or more"),
    errors.InvalidStage(2, "members", (), "one or more"),
    errors.InvalidEdge(0, 7, "node indexes are 0 to 3"),
    errors.CyclicGraph(("plan", "act")),
    errors.InvalidPrefix(-1),
    errors.NotDirected("Graph"),
    errors.MissingAttribute("a", "kind", ("seconds",)),
    errors.WrongAttribute("a", "kind", "human", "'llm' or 'tool'"),
    errors.UnknownVersion(9, 1),
    errors.WrongView("stages", "nodes"),
    errors.CorruptPattern("it ends early"),
    errors.PatternTooLarge("nodes", 9, 8),
    errors.ShapeMismatch((2, 3), (4, 1)),
    errors.InvalidBandwidth("output_tokens", 0.0),
    errors.InvalidShare(0.5, 0.25),
    errors.CorruptKernel("no bandwidths"),
    errors.NothingToCluster(5, 4),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_arguments_and_message(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, str(copy)) == (type(error), error.args, str(error))
    assert all(str(part) in str(error) for part in error.args if isinstance(part, str))


def test_every_error_of_the_package_is_a_pattern_error_and_has_a_sample() -> None:
    classes = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    raised = {kind for kind in classes if kind.__module__ == "patterns.errors"}
    assert all(issubclass(kind, errors.PatternError) for kind in raised)
    assert raised - {type(error) for error in SAMPLES} == {errors.PatternError, errors.CodecError}
