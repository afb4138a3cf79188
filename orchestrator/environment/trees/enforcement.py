"""How far a sandbox confines its programs on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.environment.sandbox.messages import Kind

GAPS: Mapping[str, str] = {
    "landlock": (
        "this kernel has no Landlock: programs write wherever the user may, read hidden folders,"
        " and signal and inspect the user's other processes"
    ),
    "attributes": (
        "programs can change modes, owners, times and extended attributes of files that the user"
        " owns outside of the workspace"
    ),
    "truncate": "programs can cut off files outside of the workspace (Landlock before version 3)",
    "devices": "programs can send control calls to devices that the user may open (before 5)",
    "signals": "programs can signal the user's other processes (Landlock before version 6)",
    "abstract sockets": "programs can reach abstract Unix sockets (Landlock before version 6)",
    "processes": "the limit on the number of processes is not set",
}
"""What may be unconfined, in words."""


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What holds a sandbox's programs.

    Attributes:
        kind: "namespaces", or "landlock" where the system refuses these.
        not_enforced: keys of GAPS.
    """

    kind: Kind
    not_enforced: tuple[str, ...]
