"""After a loss of power a SQLite store has what it synced: no external effect is done twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import OutcomeUnknown
from tests.places import ROOT
from tests.recovery.effects_flow import AFTER_EFFECT, IN_EFFECT, run

pytestmark = [
    pytest.mark.usefixtures("subprocesses"),
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
    ),
]


@pytest.fixture(scope="module")
def logged_syncs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for LD_PRELOAD, which logs the synced size of a write-ahead log."""
    library = tmp_path_factory.mktemp("library") / "power_loss.so"
    source = Path(__file__).with_name("power_loss.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def lose_power(folder: Path, moment: str, logged_syncs: Path) -> None:
    """Run until the process kills itself, and cut the write-ahead log to its last sync."""
    sizes = folder / "synced"
    killed = subprocess.run(
        [sys.executable, "-m", "tests.recovery.effects_flow", str(folder)],
        cwd=ROOT,
        env=os.environ
        | {"LD_PRELOAD": str(logged_syncs), "SYNCED_SIZES": str(sizes), "KILL": moment},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    synced = int(sizes.read_text().split()[-1]) if sizes.exists() else 0
    log = folder / "runs.db-wal"
    assert log.stat().st_size > 0, "the log was not copied into the database meanwhile"
    os.truncate(log, synced)
    (folder / "runs.db-shm").unlink()


async def test_an_effect_that_had_begun_is_not_repeated(tmp_path: Path, logged_syncs: Path) -> None:
    lose_power(tmp_path, IN_EFFECT, logged_syncs)
    with pytest.raises(OutcomeUnknown):
        await run(str(tmp_path))
    assert (tmp_path / "sent").read_text() == "sent\n"


async def test_an_effect_that_had_ended_is_replayed(tmp_path: Path, logged_syncs: Path) -> None:
    lose_power(tmp_path, AFTER_EFFECT, logged_syncs)
    assert await run(str(tmp_path)) == ["sent", "noted"]
    assert (tmp_path / "sent").read_text() == "sent\n"
