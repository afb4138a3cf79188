"""What a replica needs."""

from __future__ import annotations

import pickle

import pytest

from serving.engine.setup.config import EngineConfig
from serving.replicas.replica_spec import ReplicaSpec, gpus_of


@pytest.mark.parametrize(
    ("arguments", "platform", "gpus"),
    [
        ({}, "gpu", 1),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 3}, "gpu", 6),
        ({"tensor_parallel_size": 2}, "cpu", 0),
    ],
)
def test_a_replica_has_a_gpu_for_each_rank(
    arguments: dict[str, int], platform: str, gpus: int
) -> None:
    assert gpus_of(arguments, platform) == gpus


def test_a_spec_can_be_sent_to_another_machine_and_hides_its_keys() -> None:
    spec = ReplicaSpec(EngineConfig(), api_key="secret", keys="secret", vllm_flags=("--x",))
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert "secret" not in repr(spec)
