"""Whether a run's process is alive: by what the system reports, or by the run's lease."""

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


def identity_of(process_id: int, **changes: str) -> str:
    """The identity that a process would record, with some parts changed."""
    boot, namespace, _ = process_identity().split()
    start = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[19]
    return " ".join(({"boot": boot, "namespace": namespace, "start": start} | changes).values())


def test_this_process_is_alive() -> None:
    assert not is_orphaned(a_run())
    assert status_shown(a_run()) == "running"


@pytest.mark.usefixtures("subprocesses")
def test_a_process_that_has_ended_leaves_its_run_orphaned(dead_process_id: int) -> None:
    assert is_orphaned(a_run(process_id=dead_process_id))
    assert status_shown(a_run(process_id=dead_process_id)) == ORPHANED


@pytest.mark.parametrize("process_id", [0, -1, 2**31 - 1, 2**70])
def test_a_run_with_an_id_that_no_process_has_is_orphaned(process_id: int) -> None:
    assert is_orphaned(a_run(process_id=process_id))


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("is_known", [False, True])
def test_a_process_counts_as_ended_also_while_it_is_a_zombie(
    living_process: subprocess.Popen[bytes], is_known: bool
) -> None:
    """In containers a killed process often stays a zombie forever."""
    run = a_run(
        process_id=living_process.pid, process=identity_of(living_process.pid) if is_known else None
    )
    assert not is_orphaned(run)
    living_process.kill()
    os.waitid(os.P_PID, living_process.pid, os.WEXITED | os.WNOWAIT)  # now it is a zombie
    assert is_orphaned(run)
    living_process.wait()
    assert is_orphaned(run)


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("expired", [False, True])
def test_a_process_is_identified_by_its_start_time_whatever_the_clock_and_the_lease(
    living_process: subprocess.Popen[bytes], expired: bool
) -> None:
    """The system clock may have been changed, and the lease may have expired."""
    for claimed_at in (datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)):
        until = datetime.now(UTC) + timedelta(hours=-1 if expired else 1)
        fields: dict[str, Any] = {
            "process_id": living_process.pid,
            "claimed_at": claimed_at,
            "started_at": claimed_at,
            "leased_until": until,
        }
        assert not is_orphaned(a_run(**fields, process=identity_of(living_process.pid)))
        assert is_orphaned(a_run(**fields, process=identity_of(living_process.pid, start="12")))


@pytest.mark.parametrize("process_id", [1, 2**31 - 1])
@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("other", [{"namespace": "pid:[1]"}, {"boot": "another"}], ids=str)
def test_a_run_of_another_container_or_boot_is_orphaned_once_its_lease_has_expired(
    process_id: int, hours: int, other: dict[str, str]
) -> None:
    """Containers and machines may have the same host name, but their process ids are unrelated."""
    process = identity_of(os.getpid(), **other)
    until = datetime.now(UTC) + timedelta(hours=hours)
    run = a_run(process_id=process_id, process=process, leased_until=until)
    assert is_orphaned(run) == (hours < 0)


@pytest.mark.usefixtures("subprocesses")
def test_a_process_in_another_pid_namespace_has_another_identity_under_the_same_proc() -> None:
    """Under a /proc that was mounted outside, it has another id than within its namespace."""
    script = "import orchestrator.durability.liveness as it; print(it.process_identity())"
    command = [
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
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine cannot create PID namespaces")
    identity = result.stdout.split()
    boot, namespace, start = process_identity().split()
    assert identity[0] == boot
    assert identity[1] != namespace
    assert int(identity[2]) >= int(start)


@pytest.mark.usefixtures("subprocesses")
def test_a_process_without_a_recorded_identity_is_found_by_its_id(
    living_process: subprocess.Popen[bytes], dead_process_id: int
) -> None:
    """Recorded by a former version, or on another system than Linux."""
    for process in (None, "8c7e3f0a"):
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        assert not is_orphaned(
            a_run(process_id=living_process.pid, process=process, claimed_at=long_ago)
        )
        assert is_orphaned(a_run(process_id=dead_process_id, process=process))


@settings(law)
@given(seconds=st.integers(-(10**6), 10**6).filter(lambda each: abs(each) > 60))
def test_a_run_of_another_host_is_orphaned_exactly_when_its_lease_has_expired(
    seconds: int,
) -> None:
    """Even if a process with the same id runs here."""
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    for process_id in (0, os.getpid()):
        run = a_run(host="another", leased_until=until, process_id=process_id)
        assert is_orphaned(run) == (seconds < 0)
        assert is_orphaned(a_run(leased_until=until), host="another") == (seconds < 0)


def test_a_run_of_another_host_without_a_lease_is_not_orphaned() -> None:
    assert not is_orphaned(a_run(host="another", leased_until=None, process_id=0))


@pytest.mark.parametrize("status", [each for each in Status if each is not Status.RUNNING])
def test_a_run_that_has_ended_is_shown_with_its_status_even_if_its_process_is_gone(
    status: Status,
) -> None:
    assert status_shown(a_run(status=status, process_id=0)) == str(status)
