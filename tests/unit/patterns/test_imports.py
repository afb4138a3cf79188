"""Importing patterns stays cheap: what only some callers need is loaded when they need it."""

import json
import subprocess
import sys


def loaded_by(program: str) -> set[str]:
    """The top-level modules that a program loads, in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; import json, sys; print(json.dumps([*sys.modules]))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_importing_patterns_loads_no_clustering_and_no_graph_package() -> None:
    assert not loaded_by("import patterns") & {"kmedoids", "networkx", "sklearn", "scipy", "rich"}


def test_fitting_and_matching_load_no_clustering_package_either() -> None:
    program = """
from patterns import KeptPattern, LlmNode, PatternGraph, PatternLibrary
stages = PatternGraph((LlmNode("m/plan", 1, 1, 1.0),)).stages
library = PatternLibrary(tuple(KeptPattern(key, stages, 0.0) for key in range(9))).fitted()
assert library.compacted(9).evicted(0.0).matcher.begin().estimate()
"""
    assert not loaded_by(f"exec({program!r})") & {"kmedoids", "networkx", "sklearn"}


def test_clustering_loads_its_package_when_it_is_called() -> None:
    program = "import numpy, patterns; patterns.cluster(numpy.zeros((3, 3)), 1)"
    assert "kmedoids" in loaded_by(program)
