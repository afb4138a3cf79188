"""The line that shows in a notebook's cell what its runs do."""

from __future__ import annotations

import asyncio

from orchestrator.display.notebook import NotebookProgress, in_notebook
from orchestrator.events import CallFinished, CallStarted, RunFinished, RunStarted


class Page:
    """A notebook's page: the lines in the order in which they appeared, as they are now."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.cell = 1
        self.now_s = 0.0
        self.num_changes = 0
        self.progress = NotebookProgress(
            show=self._show, cell=lambda: self.cell, clock=lambda: self.now_s
        )

    def _show(self, text: str) -> PageLine:
        self.lines.append(text)
        return PageLine(self, len(self.lines) - 1)

    def begin(self, run_id: str, flow: str = "article", deadline_s: float | None = 30.0) -> None:
        self.progress.on_event(RunStarted(run_id, flow, deadline_s))

    def call(self, run_id: str, name: str, *, node: int = 0) -> None:
        event = CallStarted(run_id, node, "llm", f"random:{name}", 0, self.now_s, 15.0)
        self.progress.on_event(event)

    def call_ended(self, run_id: str, *, node: int = 0, tokens: int = 60) -> None:
        self.progress.on_event(CallFinished(run_id, node, 0, "completed", self.now_s, tokens))

    def end(self, run_id: str, status: str = "completed", error: str | None = None) -> None:
        self.progress.on_event(RunFinished(run_id, status, self.now_s, error_type=error))


class PageLine:
    def __init__(self, page: Page, index: int) -> None:
        self._page, self._index = page, index

    def update(self, text: str) -> None:
        self._page.lines[self._index] = text
        self._page.num_changes += 1


async def test_a_run_leaves_one_line_that_says_how_it_ended() -> None:
    page = Page()
    page.progress.say("starting vLLM")
    page.begin("r1")
    page.call("r1", "outline")
    page.now_s = 1.8
    page.call_ended("r1")
    page.end("r1")
    assert page.lines == ["article: completed in 1.8 s of 30.0 s; 1 call, 60 tokens"]


async def test_a_failed_run_says_so_with_its_error() -> None:
    page = Page()
    page.begin("r1", deadline_s=None)
    page.now_s = 0.2
    page.end("r1", "failed", "DeadlineExceeded")
    assert page.lines == ["article: failed (DeadlineExceeded) in 200 ms; 0 calls, 0 tokens"]


async def test_the_line_is_redrawn_while_a_run_goes_on_and_no_longer() -> None:
    page = Page()
    page.begin("r1")
    page.call("r1", "outline")
    page.now_s = 2.0
    async with asyncio.timeout(30):
        while "2.0 s of 30.0 s, 28.0 s left" not in page.lines[0]:  # noqa: ASYNC110 - no event says it
            await asyncio.sleep(0.01)
    assert "stage 0 outline, due in 13.0 s; 1 running" in page.lines[0]
    page.end("r1")
    changes, page.now_s = page.num_changes, 9.0
    await asyncio.sleep(0.6)  # longer than the interval of redrawing
    assert page.num_changes == changes


async def test_many_runs_of_one_cell_share_its_line_and_are_counted() -> None:
    page = Page()
    for number in range(31):
        page.begin(f"r{number}")
        page.end(f"r{number}", "failed" if number == 7 else "completed")
    assert len(page.lines) == 1
    assert page.lines[0].startswith("31 runs: 30 completed, 1 failed; last article: completed")


async def test_runs_side_by_side_are_counted_and_the_latest_is_described() -> None:
    page = Page()
    page.begin("r1", "first")
    page.begin("r2", "second")
    assert page.lines[0].startswith("runs: 2 running; second: ")
    page.end("r2")
    page.end("r1")
    assert page.lines[0].startswith("2 runs: 2 completed; last first: ")


async def test_each_cell_has_a_line_and_a_run_stays_in_that_where_it_began() -> None:
    page = Page()
    page.begin("r1", "first")
    page.cell = 2
    page.begin("r2", "second")
    page.end("r1")
    assert [line.partition(":")[0] for line in page.lines] == ["first", "second"]
    assert "completed" in page.lines[0]
    assert "completed" not in page.lines[1]
    page.end("r2")


async def test_a_name_cannot_break_the_line() -> None:
    page = Page()
    page.begin("r1", "a\nb\x1b[2J\u2028c")
    page.end("r1")
    assert page.lines[0].isprintable()


def test_this_is_no_notebook() -> None:
    assert not in_notebook()
