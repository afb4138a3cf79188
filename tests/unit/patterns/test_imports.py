"""Importing patterns is cheap: packages that only some functions need are imported by these."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("subprocesses")


def loaded_by(program: str) -> set[str]:
    """The top-level modules that a program loads, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; import json, sys; print(json.dumps([*sys.modules]))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_importing_patterns_loads_neither_kmedoids_nor_networkx() -> None:
    assert not loaded_by("import patterns") & {"kmedoids", "networkx", "sklearn", "scipy", "rich"}


def test_fitting_and_matching_load_neither_kmedoids_nor_networkx() -> None:
    program = """
from patterns import KeptPattern, LlmNode, PatternGraph, PatternLibrary
stages = PatternGraph((LlmNode("m/plan", 1, 1, 1.0),)).stages
library = PatternLibrary(tuple(KeptPattern(key, stages, 0.0) for key in range(9))).fitted()
assert library.compacted(9).evicted(0.0).matcher.begin().estimate()
"""
    assert not loaded_by(f"exec({program!r})") & {"kmedoids", "networkx", "sklearn"}


def test_clustering_loads_kmedoids_when_it_is_called() -> None:
    program = "import numpy, patterns; patterns.cluster(numpy.zeros((3, 3)), 1)"
    assert "kmedoids" in loaded_by(program)
