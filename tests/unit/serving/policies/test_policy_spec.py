"""PolicySpec: it survives the process boundary, and invalid parameters are refused at once."""

import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidEngineConfig
from serving.policies.table import DEFAULT_POLICY, POLICIES, PolicySpec
from tests.unit.serving.serving_examples import request, step


@given(st.sampled_from(sorted(POLICIES)), st.integers(0, 64))
def test_every_spec_survives_json(name: str, batch: int) -> None:
    spec = PolicySpec(name, {"batch": batch})
    assert PolicySpec.from_json(spec.to_json()) == spec
    assert PolicySpec.from_json(json.dumps(spec.to_json())) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_the_default_policy_is_in_the_table() -> None:
    assert PolicySpec().name == DEFAULT_POLICY
    assert DEFAULT_POLICY in POLICIES
    assert PolicySpec.from_json({"name": "edf"}).params == {}


def test_parameters_reach_the_policy() -> None:
    view = step(request("a"), request("b"))
    assert PolicySpec("fcfs", {"batch": 1}).build()(view).run == {"a"}
    assert PolicySpec("calm_published", {"frame_steps": 7}).build()(view).steps == 7


@pytest.mark.parametrize(
    ("name", "params", "hint"),
    [
        ("magic", {}, "known: fcfs, priority, edf"),
        ("fcfs", {"view": 1}, "known: batch"),
        ("edf", {"frame_steps": 5}, "known: batch"),
        ("fcfs", {"batch": -1}, "batch must be a whole number from 0"),
        ("edf", {"batch": "4"}, "batch must be a whole number"),
        ("calm_published", {"batch": -2}, "batch must be a whole number from 0"),
        ("calm_published", {"frame_steps": 0}, "frame_steps must be"),
        ("calm_published", {"frame_steps": -5}, "frame_steps must be"),
        ("calm_published", {"level": 1.0}, "level must be within"),
        ("calm_published", {"cutoff": 1.5}, "cutoff must be a number from 0 to 1"),
        ("calm_published", {"cutoff": -1.0}, "cutoff must be a number from 0 to 1"),
        ("calm_published", {"cutoff": math.nan}, "cutoff must be a number"),
        (
            "calm_published",
            {"starvation_tokens": -1.0},
            "starvation_tokens must be a number from 0",
        ),
        ("plas", {"quantum_s": -1.0}, "quantum_s must be a number from 1e-06"),
        ("plas", {"levels": 0}, "levels must be a whole number from 1"),
        ("plas", {"starvation_ratio": -5.0}, "starvation_ratio must be a number from 0"),
        ("lsdf", {"exponent": -1.0}, "exponent must be a number from 0"),
        ("lsdf", {"quantum_steps": 0}, "quantum_steps must be a whole number from 1"),
        ("slai", {"offset": -5.0}, "offset must be a number from 0"),
        ("annealing", {"window": -1}, "window must be a whole number from 1"),
        ("annealing", {"heat": -1.0}, "heat must be a number from 0"),
        ("rad", {"tile_tokens": -256}, "tile_tokens must be a whole number from 1"),
        ("annealing", {"level": 1.0}, "level must be within"),
        ("lsdf", {"level": 0.0}, "level must be within"),
        ("slai", {"level": 3.0}, "level must be within"),
        ("slos_serve", {"level": -0.5}, "level must be within"),
        ("slai", {"batch": -1}, "batch=-1"),
        ("rad", {"batch": -1}, "batch=-1"),
        ("slos_serve", {"batch": -1}, "batch=-1"),
        ("slos_serve", {"candidates": -1}, "candidates=-1"),
        ("calm", {"pace": math.nan}, "pace must be a number"),
        ("calm", {"pace": -1.0}, "pace must be a number from 0"),
        ("calm", {"pace": "abc"}, "pace must be a number"),
        ("calm", {"token_share": 7}, "token_share must be a number from 0 to 1"),
        ("calm", {"utilisation": True}, "utilisation must be a number"),
        ("calm", {"frame_steps": 2.5}, "frame_steps must be a whole number"),
        ("calm", {"price": 3}, "price must be true or false"),
    ],
)
def test_invalid_policies_and_parameters_are_refused(
    name: str, params: dict[str, float], hint: str
) -> None:
    with pytest.raises(InvalidEngineConfig, match=hint):
        PolicySpec(name, params)


@pytest.mark.parametrize("document", ["", "{", "[]", "3", "null", {}, {"params": {}}, "{}"])
def test_a_document_that_is_not_a_spec_is_a_named_error(document: object) -> None:
    with pytest.raises(InvalidEngineConfig, match="not a policy spec"):
        PolicySpec.from_json(document)  # type: ignore[arg-type]
