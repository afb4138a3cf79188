"""Checkpoints while a service writes: a database in each is as after a crash, and never corrupt.

BUSY_CHECKPOINTS=200 pytest tests/unit/orchestrator/environment/test_busy_database.py
"""

from __future__ import annotations

import os
import random
import shlex
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.environment.beginning import workspace
from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.states.location import environments_place
from orchestrator.environment.states.managed_root import ManagedRoot
from orchestrator.environment.states.stored_states import States
from orchestrator.environment.trees.sandbox_client import Sandbox
from orchestrator.environment.workspace import Workspace

pytestmark = pytest.mark.usefixtures("subprocesses")

NUM_CHECKPOINTS = int(os.environ.get("BUSY_CHECKPOINTS", "40"))
PYTHON = Path(sys.executable).resolve()
"""Not the virtual environment's: a checkout may lie in /tmp, and a sandbox has one of its own."""

WRITER = """
import random, sqlite3, sys
database, chance = sqlite3.connect("busy.db", isolation_level=None), random.Random(0)
database.execute(f"PRAGMA journal_mode = {sys.argv[1]}")
database.execute("PRAGMA synchronous = OFF")
database.execute("PRAGMA cache_size = 10")  # so that pages are written in the middle of transactions
database.execute("CREATE TABLE IF NOT EXISTS pairs (id INTEGER PRIMARY KEY, one BLOB, other BLOB)")
database.execute("CREATE INDEX IF NOT EXISTS by_one ON pairs (one)")
while True:
    database.execute("BEGIN")
    for _ in range(chance.randint(1, 30)):
        value = chance.randbytes(chance.choice([20, 20, 500, 5000]))
        database.execute("INSERT OR REPLACE INTO pairs VALUES (?, ?, ?)", (chance.randrange(300), value, value))
    database.execute("COMMIT")
"""  # noqa: E501

MAPPER = """
import mmap, os, time
with open("mapped", "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 4096)
while True:
    turn = open("turn").read() if os.path.exists("turn") else ""
    if turn and mapped[: len(turn)] != turn.encode():
        mapped[: len(turn)] = turn.encode()
        open("done.new", "w").write(turn)
        os.rename("done.new", "done")
    time.sleep(0.001)
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHESTRATE_STORE", f"sqlite:///{tmp_path}/runs.db")
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


async def serve(ws: Workspace, name: str, program: str, *arguments: str) -> None:
    """Run a Python program as a service."""
    try:
        await ws.write(f"{name}.py", program)
    except SandboxFailed as error:
        pytest.skip(f"this system refuses sandboxes: {error}")
    command = shlex.join([str(PYTHON), "-I", f"{name}.py", *arguments])
    await ws.service(name, command)


def problems(state_id: str, folder: Path) -> list[str]:
    """What is wrong with the database of a checkpoint."""
    root = ManagedRoot(environments_place(os.environ["ORCHESTRATE_STORE"]).root)
    states = States(root)
    folder.mkdir()
    for path, entry in states.manifest(states.get(state_id)).items():
        if path.startswith("busy.db"):
            (folder / path).write_bytes(root.blobs.read(entry.content))
    with closing(sqlite3.connect(folder / "busy.db")) as database:
        try:
            found = [row[0] for row in database.execute("PRAGMA integrity_check")]
            [differ] = database.execute("SELECT count(*) FROM pairs WHERE one != other").fetchone()
        except sqlite3.DatabaseError as error:
            return [str(error)]
    return [each for each in found if each != "ok"] + ["half a row"] * differ


@pytest.mark.slow
@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_a_database_that_is_written_all_the_time_is_whole_in_every_checkpoint(
    base: Path, tmp_path: Path, journal: str
) -> None:
    chance, states = random.Random(0), list[str]()
    async with workspace(base) as ws:
        await serve(ws, "writer", WRITER, journal)
        await ws.run("until test -s busy.db; do sleep 0.01; done")
        for _ in range(NUM_CHECKPOINTS):
            await ws.run(["sleep", f"{chance.uniform(0, 0.02):.4f}"])
            states.append((await ws.checkpoint()).state)
    assert len(set(states)) > NUM_CHECKPOINTS / 2, "it wrote between them"
    found = [problems(state, tmp_path / str(n)) for n, state in enumerate(states)]
    assert [each for each in found if each] == []


@pytest.mark.skipif(
    not hasattr(Sandbox, "mapped_writers"), reason="sandboxes do not tell of mapped files yet"
)
async def test_a_file_that_is_written_in_memory_is_read_anew_and_its_writer_is_named(
    base: Path,
) -> None:
    """The second change of a page in memory does not show in the file's times."""
    (base / "mapped").write_bytes(bytes(4096))
    root = ManagedRoot(environments_place(os.environ["ORCHESTRATE_STORE"]).root)
    async with workspace(base) as ws:
        await serve(ws, "mapper", MAPPER)
        for turn in "12345":
            await ws.write("turn", turn)
            await ws.run(f'until test "$(cat done)" = {turn}; do sleep 0.01; done 2> /dev/null')
            state = (await ws.checkpoint()).state
            writers = ws.position.mounting.live.seen.mapped
            assert any(Path(each.path).name == "mapped" for each in writers)
            manifest = States(root).manifest(States(root).get(state))
            assert root.blobs.read(manifest["mapped"].content)[:1] == turn.encode()
