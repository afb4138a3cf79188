"""For tests of flows: a scripted engine, a virtual clock, crashes, and an unreliable store."""

from orchestrator.testing.exploration import (
    Report,
    explore,
    explore_seeds,
    replay,
    replay_seed,
)
from orchestrator.testing.faults import (
    CRASHES,
    CRASHES_IN_ANY_ORDER,
    LATE_COMMITS,
    LATE_RACES,
    RACES,
    REFUSALS,
    STALLS,
    Faults,
)
from orchestrator.testing.killed_writes import crash_at
from orchestrator.testing.player import Played
from orchestrator.testing.scenario import Scenario
from orchestrator.testing.scripted_engine import Script, ScriptedEngine
from orchestrator.testing.simulation import NeverEnds
from orchestrator.testing.virtual_clock import VirtualClock

__all__ = [
    "CRASHES",
    "CRASHES_IN_ANY_ORDER",
    "LATE_COMMITS",
    "LATE_RACES",
    "RACES",
    "REFUSALS",
    "STALLS",
    "Faults",
    "NeverEnds",
    "Played",
    "Report",
    "Scenario",
    "Script",
    "ScriptedEngine",
    "VirtualClock",
    "crash_at",
    "explore",
    "explore_seeds",
    "replay",
    "replay_seed",
]
