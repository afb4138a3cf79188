"""The table of routers by name, and RouterSpec: a router's name and parameters as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from serving.errors import InvalidEngineConfig
from serving.parameters import Parameter, check_parameters
from serving.router.choose import (
    Route,
    Router,
    least_loaded,
    power_of_k,
    round_robin,
    slos_serve,
)
from serving.router.snapshot import HORIZONS_S, ReplicaSnapshot, RoutedRequest, Speed
from serving.slo import Slo, SloKind

ROUTERS: Mapping[str, Callable[..., Route]] = MappingProxyType(
    {
        "round_robin": round_robin,
        "least_loaded": least_loaded,
        "power_of_k": power_of_k,
        "slos_serve": slos_serve,
    }
)
"""The routers by name."""

DEFAULT_ROUTER = "power_of_k"


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """A router's name and parameters, JSON-safe.

    Raises:
        InvalidEngineConfig: an unknown router, or a parameter or value that it does not take.
    """

    name: str = DEFAULT_ROUTER
    params: Mapping[str, Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in ROUTERS:
            raise InvalidEngineConfig("router", self.name, f"unknown; known: {', '.join(ROUTERS)}")
        check_parameters("router", self.name, ROUTERS[self.name], self.params)
        self.build()(_TEST_REQUEST, (_TEST_REPLICA,))  # routers check the range of their values

    def build(self) -> Router:
        """The router with its parameters."""
        return partial(ROUTERS[self.name], **self.params)

    def to_json(self) -> dict[str, object]:
        """The spec as a JSON-safe mapping."""
        return {"name": self.name, "params": dict(self.params)}


_TEST_REQUEST = RoutedRequest("test", 0, 1, 1, Slo(kind=SloKind.DEADLINE, deadline_s=1.0))
_TEST_REPLICA = ReplicaSnapshot(
    replica="test",
    speed=Speed(0.001, 0.001, 0.001),
    slots=1,
    num_running=0,
    num_waiting=0,
    running_tokens=0,
    waiting_tokens=0,
    work_s=0.0,
    due_work_s=(0.0,) * len(HORIZONS_S),
    kv_blocks=1,
    free_kv_blocks=1,
    final_kv_blocks=0,
    block_tokens=16,
)
