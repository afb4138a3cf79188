"""The table of policies by name, and PolicySpec: a policy's name and parameters as JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from serving.errors import InvalidEngineConfig
from serving.parameters import Limits, Parameter, check_parameters
from serving.policies.baselines.annealing import annealing
from serving.policies.baselines.calm_published import calm_published
from serving.policies.baselines.lsdf import lsdf
from serving.policies.baselines.orderings import edf, fcfs, priority, sjf, srpt
from serving.policies.baselines.plas import plas
from serving.policies.baselines.rad import rad
from serving.policies.baselines.slai import slai
from serving.policies.baselines.slos_serve import slos_serve
from serving.policies.calm.calm import calm
from serving.policies.policy_smoke_test import smoke_test_faults
from serving.references import absolute, is_reference, load_reference
from serving.view import Plan, Policy

POLICIES: Mapping[str, Callable[..., Plan]] = {
    "fcfs": fcfs,
    "priority": priority,
    "edf": edf,
    "sjf": sjf,
    "srpt": srpt,
    "plas": plas,
    "lsdf": lsdf,
    "annealing": annealing,
    "slai": slai,
    "rad": rad,
    "slos_serve": slos_serve,
    "calm_published": calm_published,
    "calm": calm,
}
DEFAULT_POLICY = "calm"

LIMITS: Limits = MappingProxyType(
    {
        "batch": (0, 1_000_000),
        "fairness": (0, 1),
        "utilisation": (0, 1e9),
        "token_share": (0, 1),
        "pace": (0, 1e9),
        "frame_steps": (1, 1_000_000),
        "quantum_s": (1e-6, 1e9),
        "levels": (1, 64),
        "starvation_ratio": (0, 1e9),
        "exponent": (0, 1e9),
        "quantum_steps": (1, 1_000_000),
        "offset": (0, 1_000_000),
        "pressed_offset": (0, 1_000_000),
        "window": (1, 4096),
        "iterations": (0, 10_000),
        "heat": (0, 1e9),
        "tile_tokens": (1, 1_000_000_000),
        "candidates": (0, 4096),
        "cutoff": (0, 1),
        "starvation_tokens": (0, 1e9),
    }
)
"""Minimum and maximum of parameters; a name has the same meaning in every policy that has it."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy's name and parameters: JSON-safe, so it reaches an engine in another process.

    Raises:
        InvalidEngineConfig: an unknown policy, or a parameter or value that it does not accept.
    """

    name: str = DEFAULT_POLICY
    params: Mapping[str, Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if is_reference(self.name):
            object.__setattr__(self, "name", absolute(self.name))
        check_parameters("policy", self.name, self._function(), self.params, LIMITS)
        faults = smoke_test_faults(self.build())
        if faults:
            raise InvalidEngineConfig("policy", self.to_json(), "; ".join(faults))

    @property
    def is_own(self) -> bool:
        """Whether it is a user's own function, given by a reference."""
        return is_reference(self.name)

    @property
    def label(self) -> str:
        """The name for display; of a user's function with its file only if one of ours has it."""
        source, _, function = self.name.rpartition(":")
        return f"{Path(source).name}:{function}" if function in POLICIES and source else function

    def build(self) -> Policy:
        """The policy with its parameters: a pure function of a view."""
        return partial(self._function(), **self.params)

    def _function(self) -> Callable[..., Plan]:
        if self.name in POLICIES:
            return POLICIES[self.name]
        if not is_reference(self.name):
            reason = f"unknown; known: {', '.join(POLICIES)}, or your own as FILE.py:FUNCTION"
            raise InvalidEngineConfig("policy", self.name, reason)
        function: Callable[..., Plan] = load_reference(self.name)
        if not callable(function) or inspect.isbuiltin(function):
            raise InvalidEngineConfig("policy", self.name, "it is not a Python function")
        return function

    def to_json(self) -> dict[str, object]:
        """The spec as a JSON-safe mapping, for `from_json`."""
        return {"name": self.name, "params": dict(self.params)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | str) -> PolicySpec:
        """Read a spec from a mapping or its JSON text; raises InvalidEngineConfig."""
        try:
            data = json.loads(document) if isinstance(document, str) else document
            return cls(name=str(data["name"]), params=dict(data.get("params", {})))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidEngineConfig("policy", document, f"not a policy spec: {error}") from None
