"""Type checkers see the user's own signatures of decorated functions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("subprocesses")

PROGRAM = """
from pydantic import BaseModel
from orchestrator import flow, gather, llm, step, tool


class Point(BaseModel):
    x: int

@step
async def a_step(text: str, *, times: int = 1) -> list[str]: ...
@flow
async def a_flow(text: str) -> Point: ...
@flow(deadline="60s", name="other")
async def another_flow(text: str, times: int) -> bytes: ...
@step(retries=3, timeout="5s", cache="1h")
async def a_tried_step(text: str) -> bytes: ...
@step
def a_plain_step(text: str) -> bytes: ...
@flow(deadline="60s")
def a_plain_flow(text: str) -> bytes: ...
@tool(effects="pure")
def a_pure_tool(number: float) -> dict[str, int]: ...
@tool
def a_tool(number: float) -> dict[str, int]: ...
@tool
async def an_async_tool(number: float) -> complex: ...

reveal_type(a_step)
reveal_type(a_flow)
reveal_type(another_flow)
reveal_type(another_flow.options(deadline=5))
reveal_type(a_tried_step)
reveal_type(a_plain_step)
reveal_type(a_plain_flow)
reveal_type(a_pure_tool)
reveal_type(a_tool)
reveal_type(an_async_tool)

async def main() -> None:
    reveal_type(await a_step("x", times=2))
    reveal_type(await a_flow("x"))
    reveal_type((await a_flow.run("x")).value)
    reveal_type(await a_flow.start("x"))
    reveal_type((await a_flow.resume("an-id")).value)
    reveal_type(await a_tool(1))
    reveal_type(await an_async_tool(1))
    reveal_type(await gather(a_step("x"), a_flow("y")))
    reveal_type(await gather(a_step("x"), a_flow("y"), a_tool(1)))
    reveal_type(await gather(*(a_step(c) for c in "abc")))
    reveal_type(await llm("x"))
    reveal_type(await llm("x", schema=Point))
    reveal_type(await llm("x", schema={"type": "object"}))
    a_step(5)  # wrong
    await a_step("x", time=2)  # wrong
    await a_flow()  # wrong
    await another_flow("x", "y")  # wrong
    a_tool("x")  # wrong
    await gather(5)  # wrong
    await llm("x", schema=Point, max_token=3)  # wrong
"""

REVEALED = [
    "(text: str, *, times: int) -> Coroutine[None, None, list[str]]",
    "Flow[[text: str], Point]",
    "Flow[[text: str, times: int], bytes]",
    "Flow[[text: str, times: int], bytes]",
    "(text: str) -> Coroutine[None, None, bytes]",
    "(text: str) -> Coroutine[None, None, bytes]",
    "Flow[[text: str], bytes]",
    "(number: float) -> Coroutine[None, None, dict[str, int]]",
    "(number: float) -> Coroutine[None, None, dict[str, int]]",
    "(number: float) -> Coroutine[None, None, complex]",
    "list[str]",
    "Point",
    "Point",
    "RunHandle[Point]",
    "Point",
    "dict[str, int]",
    "complex",
    "tuple[list[str], Point]",
    "tuple[list[str], Point, dict[str, int]]",
    "tuple[list[str], ...]",
    "str",
    "Point",
    "Any",
]


MYPY = [
    *(sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull),
    *("--disable-error-code", "empty-body"),
]
PYRIGHT = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_decorated_functions_keep_their_types(tmp_path: Path, checker: list[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [*checker, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    revealed = re.findall(r'(?:Revealed type is|Type of ".*" is) "(.*)"', done.stdout)
    assert [plain(type_) for type_ in revealed] == REVEALED, done.stdout + done.stderr
    wrong = [n for n, line in enumerate(PROGRAM.splitlines(), start=1) if "# wrong" in line]
    refused = re.findall(r"program\.py:(\d+):.* error", done.stdout)
    assert sorted(set(map(int, refused))) == wrong, done.stdout


def plain(revealed: str) -> str:
    """A revealed type in a form common to both checkers: without modules, the numbers of type
    variables, and the values of defaults."""
    short = re.sub(r"\b[a-z_]+\.(?=\w)|\?", "", revealed.removeprefix("def "))
    return re.sub(r" = \w+| ?=(?=[,)])", "", re.sub(r"Flow\[\((.*?)\),", r"Flow[[\1],", short))
