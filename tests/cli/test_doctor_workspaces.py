"""The check of workspaces by `orchestrate doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.work.findings import Level
from cli.work.workspace_checks import check_workspaces
from cli.work.workspace_facts import (
    BackendTrial,
    Costs,
    WorkspaceFacts,
    file_system_of,
    states_folder,
    try_workspaces,
)
from orchestrator.settings import read_settings

WORKS = BackendTrial(Costs(open_ms=21.4, fork_ms=9.2, checkpoint_ms=2.6, rewind_ms=4.0))
OPEN_GAP = BackendTrial(WORKS.costs, gaps=("programs can signal others",))
REFUSED = BackendTrial(problem="the system refuses a user namespace")
MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/vda rw
23 22 0:44 / /var/lib rw,relatime shared:1 - overlay overlay rw,lowerdir=/a
24 22 0:45 / /mnt/a\\040disk rw - xfs /dev/vdb rw
25 22 0:46 / /var rw - tmpfs tmpfs rw
"""


def facts(overlay: BackendTrial, copies: BackendTrial, kind: str = "ext4") -> WorkspaceFacts:
    return WorkspaceFacts(Path("/states"), kind, {"overlay": overlay, "copies": copies})


def test_overlays_that_work_are_ok_with_what_each_operation_costs() -> None:
    found = check_workspaces(facts(WORKS, OPEN_GAP))
    assert (found.level, found.mend) == (Level.OK, "")
    costs = "open 21 ms, fork 9 ms, checkpoint 3 ms, rewind 4 ms"
    assert found.found == f"overlay: {costs}; copies too: {costs}"


def test_what_is_not_confined_by_the_backend_in_use_is_said() -> None:
    assert check_workspaces(facts(OPEN_GAP, WORKS)).found.endswith(
        "; not enforced: programs can signal others"
    )


def test_copies_in_place_of_overlays_are_a_warning_with_the_reason() -> None:
    found = check_workspaces(facts(REFUSED, WORKS))
    assert found.level is Level.WARN
    assert found.found.startswith("copies: open 21 ms")
    assert "overlay fails: the system refuses a user namespace" in found.found
    assert "unprivileged_userns_clone" in found.mend


@pytest.mark.parametrize("copies", [WORKS, REFUSED])
def test_states_on_an_overlay_file_system_belong_elsewhere(copies: BackendTrial) -> None:
    found = check_workspaces(facts(REFUSED, copies, "overlay"))
    assert found.level is Level.WARN
    assert "set ORCHESTRATE_ENVIRONMENTS to a folder on another one" in found.mend


def test_without_any_backend_all_reasons_are_given() -> None:
    found = check_workspaces(facts(REFUSED, BackendTrial(problem="no bash")))
    assert found.found == (
        "no backend works: overlay: the system refuses a user namespace; copies: no bash"
    )


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/ada", "ext4"),
        ("/var/lib", "overlay"),
        ("/var/lib/docker", "overlay"),
        ("/var/library", "tmpfs"),
        ("/mnt/a disk/b", "xfs"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount(
    tmp_path: Path, folder: str, kind: str
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system_of(Path(folder), mounts) == kind
    assert file_system_of(Path(folder), tmp_path / "missing") == ""


def test_the_trial_measures_what_works_and_leaves_nothing(
    tmp_path: Path, subprocesses: None
) -> None:
    found = try_workspaces(read_settings())
    assert found.root == tmp_path / "runs.environments"
    for trial in found.trials.values():
        if trial.costs is None:
            assert trial.problem
        else:
            assert min(trial.costs.open_ms, trial.costs.checkpoint_ms, trial.costs.rewind_ms) > 0
    assert any(trial.costs is not None for trial in found.trials.values())
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_a_reason() -> None:
    trials = try_workspaces(read_settings(environments="/proc/states")).trials
    assert all("/proc cannot be written" in trial.problem for trial in trials.values())


def test_the_states_of_a_store_with_an_invalid_url_are_those_of_the_default_one() -> None:
    settings = read_settings(store="nonsense://")
    assert states_folder(settings).name == "orchestrate.environments"
