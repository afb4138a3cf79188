"""Whether a run's process is still there: by what the system tells of it, or by its lease."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.durability.liveness import ORPHANED, is_orphaned, process_identity, status_shown
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import (
    law,
)
from tests.unit.orchestrator.run_samples import a_run


def told_of(process_id: int, **changes: str) -> str:
    """What a process would have recorded of itself, or one that differs from it."""
    boot, namespace, _ = process_identity().split()
    start = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[19]
    return " ".join(({"boot": boot, "namespace": namespace, "start": start} | changes).values())


def test_this_process_is_alive() -> None:
    assert not is_orphaned(a_run())
    assert status_shown(a_run()) == "running"


def test_a_process_that_has_ended_leaves_its_run_orphaned(gone: int) -> None:
    assert is_orphaned(a_run(process_id=gone))
    assert status_shown(a_run(process_id=gone)) == ORPHANED


@pytest.mark.parametrize("process_id", [0, -1, 2**31 - 1, 2**70])
def test_an_id_that_no_process_has_is_of_none_that_lives(process_id: int) -> None:
    assert is_orphaned(a_run(process_id=process_id))


@pytest.mark.parametrize("is_known", [False, True])
def test_a_process_is_alive_until_it_has_ended_whether_or_not_somebody_asked_how(
    living: subprocess.Popen[bytes], is_known: bool
) -> None:
    """A killed process of a container is often kept as a zombie, for good."""
    run = a_run(process_id=living.pid, process=told_of(living.pid) if is_known else None)
    assert not is_orphaned(run)
    living.kill()
    os.waitid(os.P_PID, living.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays
    assert is_orphaned(run)
    living.wait()
    assert is_orphaned(run)


@pytest.mark.parametrize("lapsed", [False, True])
def test_a_process_is_known_by_its_start_whatever_the_clock_says(
    living: subprocess.Popen[bytes], lapsed: bool
) -> None:
    """Whose clock was put back, or forward, and whose lease has run out meanwhile."""
    for claimed_at in (datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)):
        until = datetime.now(UTC) + timedelta(hours=-1 if lapsed else 1)
        facts: dict[str, Any] = {
            "process_id": living.pid,
            "claimed_at": claimed_at,
            "started_at": claimed_at,
            "leased_until": until,
        }
        assert not is_orphaned(a_run(**facts, process=told_of(living.pid)))
        assert is_orphaned(a_run(**facts, process=told_of(living.pid, start="12")))


@pytest.mark.parametrize("process_id", [1, 2**31 - 1])
@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("other", [{"namespace": "pid:[1]"}, {"boot": "another"}], ids=str)
def test_of_another_container_or_boot_of_this_host_only_the_lease_tells(
    process_id: int, hours: int, other: dict[str, str]
) -> None:
    """Containers and machines may share a name; their processes' ids mean nothing to each other."""
    process = told_of(os.getpid(), **other)
    until = datetime.now(UTC) + timedelta(hours=hours)
    run = a_run(process_id=process_id, process=process, leased_until=until)
    assert is_orphaned(run) == (hours < 0)


def test_a_process_of_another_namespace_says_so_whatever_proc_it_sees() -> None:
    """Under a /proc that was mounted outside, its id there is another than its own."""
    script = "import orchestrator.durability.liveness as it; print(it.this_process())"
    inside = [
        "unshare",
        "--user",
        "--map-root-user",
        "--fork",
        "--pid",
        sys.executable,
        "-c",
        script,
    ]
    try:
        told = subprocess.run(inside, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no namespaces can be made here")
    boot, namespace, start = process_identity().split()
    assert told[0] == boot
    assert told[1] != namespace
    assert int(told[2]) >= int(start)


def test_of_a_process_that_recorded_no_more_than_its_id_the_id_tells(
    living: subprocess.Popen[bytes], gone: int
) -> None:
    """Of a former version, or of a system that tells no more."""
    for process in (None, "8c7e3f0a"):
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        assert not is_orphaned(a_run(process_id=living.pid, process=process, claimed_at=long_ago))
        assert is_orphaned(a_run(process_id=gone, process=process))


@settings(law)
@given(seconds=st.integers(-(10**6), 10**6).filter(lambda each: abs(each) > 60))
def test_another_hosts_run_is_orphaned_when_its_lease_has_run_out_and_no_sooner(
    seconds: int,
) -> None:
    """Whatever its process id means here."""
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    for process_id in (0, os.getpid()):
        run = a_run(host="another", leased_until=until, process_id=process_id)
        assert is_orphaned(run) == (seconds < 0)
        assert is_orphaned(a_run(leased_until=until), host="another") == (seconds < 0)


def test_another_hosts_run_without_a_lease_is_left_alone() -> None:
    assert not is_orphaned(a_run(host="another", leased_until=None, process_id=0))


@pytest.mark.parametrize("status", [each for each in Status if each is not Status.RUNNING])
def test_what_has_ended_is_shown_as_it_ended_whoever_is_gone(status: Status) -> None:
    assert status_shown(a_run(status=status, process_id=0)) == str(status)
