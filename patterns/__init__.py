"""Patterns of past runs: their calls, dependencies and times; they predict those of a live run.

What computes with arrays is loaded when it is first used: NumPy takes time to import, and code that
only describes a run (nodes, stages, pictures) does not need it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from patterns.amortization import (
    Formulation,
    accumulated_shares,
    amortized_s,
    share_of,
    stage_deadlines_s,
)
from patterns.codec import (
    CODEC_VERSION,
    decode,
    decode_stages,
    encode,
    encode_stages,
    stages_in,
)
from patterns.condensing import averaged, encode_within
from patterns.errors import (
    CodecError,
    CorruptKernel,
    CorruptPattern,
    CyclicGraph,
    InvalidBandwidth,
    InvalidEdge,
    InvalidNode,
    InvalidPrefix,
    InvalidShare,
    InvalidStage,
    MissingAttribute,
    NotDirected,
    NothingToCluster,
    PatternError,
    PatternTooLarge,
    ShapeMismatch,
    UnknownVersion,
    WrongAttribute,
    WrongView,
)
from patterns.graph import PatternGraph, from_networkx
from patterns.nodes import Kind, LlmNode, Node, ToolNode
from patterns.stages import CallCount, Stage, next_stage, stage_depths

if TYPE_CHECKING:
    from patterns.clustering import Clustering, cluster, cluster_by_silhouette
    from patterns.features import Outlook, PatternTable, tabulate
    from patterns.fitting import fit_kernel
    from patterns.kernel import StageKernel, distances, gaussian_kernel, similarities
    from patterns.library import CAPACITY, KeptPattern, PatternLibrary
    from patterns.matching import BEST_K, Estimate, LiveMatch, Match, Matcher
else:
    _MODULES = {
        "BEST_K": "matching",
        "CAPACITY": "library",
        "Clustering": "clustering",
        "Estimate": "matching",
        "KeptPattern": "library",
        "LiveMatch": "matching",
        "Match": "matching",
        "Matcher": "matching",
        "Outlook": "features",
        "PatternLibrary": "library",
        "PatternTable": "features",
        "StageKernel": "kernel",
        "cluster": "clustering",
        "cluster_by_silhouette": "clustering",
        "distances": "kernel",
        "fit_kernel": "fitting",
        "gaussian_kernel": "kernel",
        "similarities": "kernel",
        "tabulate": "features",
    }

    def __getattr__(name: str) -> Any:
        """A public name of a module that is loaded when it is first used (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "BEST_K",
    "CAPACITY",
    "CODEC_VERSION",
    "CallCount",
    "Clustering",
    "CodecError",
    "CorruptKernel",
    "CorruptPattern",
    "CyclicGraph",
    "Estimate",
    "Formulation",
    "InvalidBandwidth",
    "InvalidEdge",
    "InvalidNode",
    "InvalidPrefix",
    "InvalidShare",
    "InvalidStage",
    "KeptPattern",
    "Kind",
    "LiveMatch",
    "LlmNode",
    "Match",
    "Matcher",
    "MissingAttribute",
    "Node",
    "NotDirected",
    "NothingToCluster",
    "Outlook",
    "PatternError",
    "PatternGraph",
    "PatternLibrary",
    "PatternTable",
    "PatternTooLarge",
    "ShapeMismatch",
    "Stage",
    "StageKernel",
    "ToolNode",
    "UnknownVersion",
    "WrongAttribute",
    "WrongView",
    "accumulated_shares",
    "amortized_s",
    "averaged",
    "cluster",
    "cluster_by_silhouette",
    "decode",
    "decode_stages",
    "distances",
    "encode",
    "encode_stages",
    "encode_within",
    "fit_kernel",
    "from_networkx",
    "gaussian_kernel",
    "next_stage",
    "share_of",
    "similarities",
    "stage_deadlines_s",
    "stage_depths",
    "stages_in",
    "tabulate",
]
