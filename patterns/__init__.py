"""Patterns of past runs: what they called, how long it took, and what it says of a live one."""

from patterns.codec import CODEC_VERSION, decode, decode_stages, encode, encode_stages
from patterns.errors import (
    CodecError,
    CorruptPattern,
    CyclicGraph,
    InvalidEdge,
    InvalidNode,
    InvalidPrefix,
    InvalidStage,
    MissingAttribute,
    NotDirected,
    PatternError,
    PatternTooLarge,
    UnknownVersion,
    WrongAttribute,
    WrongView,
)
from patterns.graph import PatternGraph, from_networkx
from patterns.nodes import Kind, LlmNode, Node, ToolNode
from patterns.stages import CallCount, Stage, next_stage, stage_depths

__all__ = [
    "CODEC_VERSION",
    "CallCount",
    "CodecError",
    "CorruptPattern",
    "CyclicGraph",
    "InvalidEdge",
    "InvalidNode",
    "InvalidPrefix",
    "InvalidStage",
    "Kind",
    "LlmNode",
    "MissingAttribute",
    "Node",
    "NotDirected",
    "PatternError",
    "PatternGraph",
    "PatternTooLarge",
    "Stage",
    "ToolNode",
    "UnknownVersion",
    "WrongAttribute",
    "WrongView",
    "decode",
    "decode_stages",
    "encode",
    "encode_stages",
    "from_networkx",
    "next_stage",
    "stage_depths",
]
