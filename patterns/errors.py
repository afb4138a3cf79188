"""Errors of pattern graphs, their documents, kernels and clusters.

Every error keeps its constructor's arguments, so that it survives pickling between processes.
"""

from collections.abc import Hashable
from typing import Any


class PatternError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidNode(PatternError):
    """A call was recorded with an invalid value: a bug of the code that recorded it."""

    def __init__(self, identity: object, field: str, value: object, rule: str) -> None:
        super().__init__(identity, field, value, rule)

    def __str__(self) -> str:
        return "node {!r}: {} is {!r}, but must be {}".format(*self.args)


class InvalidStage(PatternError):
    """The fields of a stage contradict each other."""

    def __init__(self, index: int, field: str, value: object, rule: str) -> None:
        super().__init__(index, field, value, rule)

    def __str__(self) -> str:
        return "stage {}: {} is {!r}, but must be {}".format(*self.args)


class InvalidEdge(PatternError):
    """An edge does not lead from one node of the graph to another."""

    def __init__(self, parent: object, child: object, rule: str) -> None:
        super().__init__(parent, child, rule)

    def __str__(self) -> str:
        return "edge {!r} -> {!r}: {}".format(*self.args)


class CyclicGraph(PatternError):
    """Some calls depend on each other in a cycle, so that none of them could have begun.

    Args:
        cycle: the nodes of one cycle, each once, in the direction of its edges.
    """

    def __init__(self, cycle: tuple[Any, ...]) -> None:
        super().__init__(cycle)
        self.cycle = cycle

    def __str__(self) -> str:
        shown = [repr(node) for node in (*self.cycle, *self.cycle[:1])]
        if len(shown) > 12:
            shown[6:-5] = [f"({len(shown) - 11} more)"]
        return f"these calls depend on each other: {' -> '.join(shown)}"


class InvalidPrefix(PatternError):
    """A prefix of a graph was requested with a negative number of stages."""

    def __init__(self, num_stages: int) -> None:
        super().__init__(num_stages)

    def __str__(self) -> str:
        return "a prefix has 0 stages or more, not {}".format(*self.args)


class NotDirected(PatternError):
    """An undirected graph was given: it does not say which call depends on which."""

    def __init__(self, found: str) -> None:
        super().__init__(found)

    def __str__(self) -> str:
        return "expected a networkx.DiGraph, got {}".format(*self.args)


class MissingAttribute(PatternError):
    """A node of a networkx graph lacks an attribute that its kind needs."""

    def __init__(self, label: Hashable, attribute: str, found: tuple[str, ...]) -> None:
        super().__init__(label, attribute, found)

    def __str__(self) -> str:
        label, attribute, found = self.args
        has = ", ".join(found) or "none"
        return f"node {label!r} has no attribute {attribute!r} (it has: {has})"


class WrongAttribute(PatternError):
    """A node of a networkx graph has an attribute of a wrong type or value."""

    def __init__(self, label: Hashable, attribute: str, value: object, rule: str) -> None:
        super().__init__(label, attribute, value, rule)

    def __str__(self) -> str:
        return "node {!r}: attribute {} is {!r}, but must be {}".format(*self.args)


class CodecError(PatternError):
    """Base of the errors of encoding and decoding."""


class UnknownVersion(CodecError):
    """The document was written by another version of this program."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(found, known)

    def __str__(self) -> str:
        return "pattern document of version {}; this program reads version {}".format(*self.args)


class WrongView(CodecError):
    """The document is valid but holds the other view: stages instead of nodes, or the reverse."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found, expected)

    def __str__(self) -> str:
        return "the document holds {}, not {}".format(*self.args)


class CorruptPattern(CodecError):
    """The bytes are not a pattern document, or are damaged; they cannot be repaired."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return "not a pattern document: {}".format(*self.args)


class PatternTooLarge(CodecError):
    """A pattern exceeds a limit of documents."""

    def __init__(self, what: str, found: int, limit: int) -> None:
        super().__init__(what, found, limit)

    def __str__(self) -> str:
        return "{}: {} found, a document holds at most {}".format(*self.args)


class ShapeMismatch(PatternError):
    """Two arrays of feature vectors cannot be compared because of their shapes."""

    def __init__(self, left: tuple[int, ...], right: tuple[int, ...]) -> None:
        super().__init__(left, right)

    def __str__(self) -> str:
        return "feature vectors of shapes {} and {} cannot be compared".format(*self.args)


class InvalidBandwidth(PatternError):
    """A bandwidth of a kernel is not above 0, or a kernel has a wrong number of bandwidths."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__(name, value)

    def __str__(self) -> str:
        return "kernel: {} is {!r}, but must be above 0".format(*self.args)


class InvalidShare(PatternError):
    """The shares of a run's time are not ascending within (0, 1]."""

    def __init__(self, before: float, share: float) -> None:
        super().__init__(before, share)

    def __str__(self) -> str:
        return "share {1!r} after share {0!r}: shares must ascend, above 0 and up to 1".format(
            *self.args
        )


class CorruptKernel(PatternError):
    """A stored kernel cannot be read; fitting the application's patterns again replaces it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return "not a kernel document: {}".format(*self.args)


class NothingToCluster(PatternError):
    """More clusters than patterns were requested, or none."""

    def __init__(self, num_clusters: int, num_patterns: int) -> None:
        super().__init__(num_clusters, num_patterns)

    def __str__(self) -> str:
        return "cannot make {} clusters of {} patterns".format(*self.args)
