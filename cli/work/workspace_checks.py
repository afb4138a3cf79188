"""The check of workspaces: what became of the trials of their backends. Pure."""

from __future__ import annotations

from dataclasses import asdict

from cli.work.findings import Finding, Level
from cli.work.workspace_facts import BackendTrial, WorkspaceFacts

_NO_UPPER_FOLDER = ("overlay", "nfs", "nfs4", "vfat", "exfat")
"""Types of file systems that cannot hold the upper folder of an overlay."""


def check_workspaces(facts: WorkspaceFacts) -> Finding:
    """Which backend works, what it costs and does not confine."""
    works = {name: each for name, each in facts.trials.items() if each.costs is not None}
    if not works:
        found = "; ".join(f"{name}: {each.problem}" for name, each in facts.trials.items())
        return Finding("workspaces", Level.WARN, f"no backend works: {found}", _mend(facts))
    used, *_ = works
    better = [name for name in facts.trials if name not in works]
    parts = [f"{used}: {_costs(works[used])}"]
    parts += [f"{name} fails: {facts.trials[name].problem}" for name in better]
    parts += [f"{name} too: {_costs(works[name])}" for name in works if name != used]
    if works[used].gaps:
        parts.append(f"not enforced: {', and '.join(works[used].gaps)}")
    if used == next(iter(facts.trials)):
        return Finding("workspaces", Level.OK, "; ".join(parts))
    return Finding("workspaces", Level.WARN, "; ".join(parts), _mend(facts))


def _costs(trial: BackendTrial) -> str:
    assert trial.costs is not None, "it works"
    return ", ".join(
        f"{name.removesuffix('_ms')} {value:.0f} ms" for name, value in asdict(trial.costs).items()
    )


def _mend(facts: WorkspaceFacts) -> str:
    if facts.file_system in _NO_UPPER_FOLDER:
        return (
            f"{facts.root} is on a file system of type {facts.file_system}, which cannot hold the "
            "changes of overlays: set ORCHESTRATE_ENVIRONMENTS to a folder on another one"
        )
    return (
        "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0; in a container also its seccomp profile); "
        "overlays in them need Linux 5.11"
    )
