"""Repairs a small program: each candidate is tried in a fork of a workspace, side by side.

    python examples/repair.py

The first whose tests pass is adopted, and its changes are shown. The folder itself stays as it is:
`await ws.apply()` would write it. Candidates come from a list here; an agent would ask a model.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from orchestrator import ChangeSet, Workspace, flow, gather, tool, workspace

PROGRAM = """\
def median(numbers):
    return sorted(numbers)[len(numbers) // 2]
"""

TESTS = """\
import unittest

from median import median


class TestMedian(unittest.TestCase):
    def test_of_an_odd_number(self):
        self.assertEqual(median([9, 1, 2]), 2)

    def test_of_an_even_number(self):
        self.assertEqual(median([4, 1, 2, 3]), 2.5)
"""

CANDIDATES = [
    "    return sum(numbers) / len(numbers)  # wrong for most\n",
    "    half = len(numbers) // 2\n"
    "    ordered = sorted(numbers)\n"
    "    return ordered[half] if len(numbers) % 2 else (ordered[half - 1] + ordered[half]) / 2\n",
]

PYTHON = Path(sys.executable).resolve()
"""Programs in a workspace do not see a virtual environment that lies in /tmp."""


@tool(effects="env")
async def try_out(ws: Workspace, body: str) -> bool:
    """Put another body into the program, and run its tests."""
    head = (await ws.read("median.py")).splitlines(keepends=True)[0]
    await ws.write("median.py", head + body)
    return (await ws.run([str(PYTHON), "-m", "unittest", "-q"], timeout="30s")).ok


@flow(deadline="60s")
async def repair(folder: str) -> ChangeSet:
    """The changes of the first candidate that passes the tests."""
    async with workspace(folder) as ws:
        forks = await ws.fork(len(CANDIDATES))
        passed = await gather(
            *(try_out(fork, body) for fork, body in zip(forks, CANDIDATES, strict=True))
        )
        if True in passed:
            await ws.adopt(forks[passed.index(True)])
        await ws.run("rm -rf __pycache__")
        return await ws.changeset()


def main() -> None:
    """Repair a program in a temporary folder."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        Path(folder, "median.py").write_text(PROGRAM)
        Path(folder, "test_median.py").write_text(TESTS)
        changes = asyncio.run(repair(folder))
        print(changes.text or "no candidate passed the tests")


if __name__ == "__main__":
    main()
