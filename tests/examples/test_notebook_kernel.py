"""The SDK in a notebook's kernel, where an event loop runs: what stays open, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.places import ROOT

CELLS = [
    """
import asyncio, os, threading
from langgraph.graph import START, MessagesState, StateGraph
from orchestrator import Settings, WouldBlock, flow, llm, open_runtime
from orchestrator.langgraph import attach

def engines():
    return [thread for thread in threading.enumerate() if thread.name == "engine"]

@flow(deadline="60s")
async def short(topic: str) -> str:
    return await llm(topic, max_tokens=3)
""",
    "await short('a'); first = engines(); print(f'{len(first)} engine')",
    "await asyncio.gather(short('b'), short('c')); print('the same:', engines() == first)",
    """
builder = StateGraph(MessagesState).add_node("n", lambda state: state).add_edge(START, "n")
graph = attach(builder.compile())
try:
    graph.invoke({"messages": []})
except WouldBlock as error:
    print(error)
""",
    "print('graph:', await graph.ainvoke({'messages': []}))",
    "handle = await short.options(run_id='in-background').start('d')",
    "print('background:', (await handle).run_id)",
    """
async with open_runtime(Settings(slots=8)) as runtime:
    result = await runtime.run(short, 'e')
print('own runtime:', result.in_time, engines() == first)
""",
    "await short('f'); second = engines(); print(f'{len(second)} engine again')",
    """
os.environ["ORCHESTRATE_SLOTS"] = "4"
await short('g')
print('other settings:', engines() != second)
""",
]


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.engine
@pytest.mark.slow
def test_the_engine_stays_between_cells_and_may_be_closed_for_another(tmp_path: Path) -> None:
    source, target = tmp_path / "cells.ipynb", tmp_path / "executed.ipynb"
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    nbformat.write(notebook, source)  # type: ignore[no-untyped-call]
    process = subprocess.run(
        [sys.executable, "-m", "tests.examples.execute_notebook", str(source), str(target)],
        cwd=ROOT,
        env=os.environ
        | {"ORCHESTRATE_STORE": f"sqlite:///{tmp_path / 'runs.db'}", "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    executed = nbformat.read(target, as_version=4)  # type: ignore[no-untyped-call]
    printed = "".join(
        output.text
        for cell in executed.cells
        for output in cell.outputs
        if output.get("name") == "stdout"
    )
    assert printed.splitlines() == [
        "1 engine",
        "the same: True",
        "LangGraph.invoke would block forever, as it waits for the event loop that it blocks:"
        " await its async form (ainvoke, astream), or call it from a thread",
        "graph: {'messages': []}",
        "background: in-background",
        "own runtime: True False",
        "1 engine again",
        "other settings: True",
    ]
